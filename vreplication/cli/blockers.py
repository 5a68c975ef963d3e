"""`blockers ID`: who holds the cut-over of a workflow up now.

What must stay true: it reads and never writes, and ends nobody.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from vreplication import names
from vreplication.cli import options
from vreplication.cli.say import json_line, say
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.state import workflows
from vreplication.state.groups import Group
from vreplication.workflows import blocking, lookup
from vreplication.workflows.blocking import Blocking

HELP = """
Who holds the cut-over of a workflow up now: sessions, prepared XA branches, old snapshots; and what else does.

Example:

  vreplication blockers orders-region --json
"""
_HEADER = ("Connection", "User", "Since", "What", "Statement")


def blockers(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    servers = options.servers(source, source_file, None, None)
    found = lookup.find(servers, names.check_workflow(workflow))
    # Who blocks a move stands on its source, and a feed has no cut-over.
    if found.is_move or found.is_feed:
        raise Refused(
            f"Workflow {workflow} is no online DDL.", cure=f"`vreplication status {workflow}` says all of it."
        )
    for each in _at_work(found.home, found.group) if found.group else (workflow,):
        _show(found.home, each, is_json=is_json)


def _at_work(url: SourceUrl, group: Group) -> list[str]:
    """Of several tables those that have begun and not switched: each has a cut-over of its own. Raises Refused."""
    with connect(url) as session:
        rows = [row for each in group.members if (row := workflows.find(session, each))]
    if found := [row.id for row in rows if not (row.has_ended or row.is_cut)]:
        return found
    raise Refused(
        f"No table of workflow {group.id} waits for a cut-over.",
        cure=f"`vreplication status {group.id}` says how each is.",
    )


def _show(url: SourceUrl, workflow: str, *, is_json: bool) -> None:
    with connect(url) as session:
        found = blocking.read(session, workflow)
    if is_json:
        json_line({"event": "blockers", "workflow": workflow, **found.as_json()})
    else:
        _print(workflow, found)


def _print(workflow: str, found: Blocking) -> None:
    if not found.blockers:
        say(f"{workflow}: nobody blocks the cut-over.")
    else:
        console, table = Console(), Table(*_HEADER, box=None, pad_edge=False, title=None)
        for row in map(_row, found.as_json()["blockers"]):
            table.add_row(*map(mask, row))
        console.print(table)
    for sentence in found.others:
        say(f"{workflow}: {sentence}")


def _row(blocker: dict[str, Any]) -> tuple[str, ...]:
    who = f"{blocker['user']}@{blocker['host']}" if blocker["user"] else ""
    certain = "" if blocker["is_certain"] else " (perhaps)"
    number = "" if blocker["connection_id"] is None else str(blocker["connection_id"])
    since = f"{blocker['age_seconds']:.0f} s"
    return number, who, since, f"{blocker['kind']}{certain}", blocker["statement"] or "idle"

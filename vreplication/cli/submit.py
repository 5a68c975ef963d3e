"""`submit` and `queue`: put a migration into the queue, see what waits and why, take one out.

What must stay true: a request is checked as the command of its kind checks it, with the same sentences, before it is
stored; neither command starts anything: the DAG scheduled_migrations does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from vreplication import names
from vreplication.cli import asked, options
from vreplication.cli.completion import of_words
from vreplication.cli.operate import by
from vreplication.cli.say import PROGRAM, json_line, say
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.request import check_limit
from vreplication.planning.spec import Spec
from vreplication.state import layout
from vreplication.state.queue import KIND
from vreplication.workflows.move_tables.spec import MoveSpec

if TYPE_CHECKING:
    from vreplication.scheduler.due import Standing

SUBMIT_HELP = """
Put an online DDL, or a move of tables, into the queue of the server where its state is; Airflow's DAG
scheduled_migrations starts it when it is due. `submit` alone is `submit online-ddl`.
"""
ONLINE_DDL_HELP = """
Put an online DDL into the queue of its server.

Examples:

  vreplication submit --table orders --alter "ADD COLUMN note TEXT" --not-before 2026-12-24T02:00:00Z

  vreplication submit --table orders --alter "ADD INDEX (note(20))" --workflow orders-2 --after orders-1 --priority 5
"""
MOVE_HELP = """
Put a move of tables into the queue of the server that they go to. Airflow has a connection to the one they come from.

Example:

  vreplication submit move-tables --source-conn-id shop_old --table orders --table items --workflow shop-1
"""
QUEUE_HELP = """
List the queue in the order of its starts, with what each migration waits for; or take one out, or move it.
"""
EMPTY = f'Nothing has been submitted; do so with: {PROGRAM} submit --table NAME --alter "CLAUSES"'

_NotBefore = Annotated[
    str | None,
    typer.Option("--not-before", metavar="TIME", help="Not before this time: 2026-12-24T02:00:00Z, or with +01:00."),
]
_After = Annotated[
    str | None, typer.Option("--after", metavar="ID", help="Only when this workflow is complete; it may come later.")
]
_Cutover = Annotated[
    str | None,
    typer.Option(
        "--cutover",
        metavar="auto|manual|window",
        autocompletion=of_words(("auto", "manual", "window")),
        help="manual: hold before the cut-over until `release`; window: until the maintenance window. [default: auto]",
    ),
]
_Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", help="Greater goes first; else in order. [default: 0]")
]

_Table = Annotated[
    list[str] | None, typer.Option("--table", metavar="NAME", help="The table, `name` or `schema.name`.")
]
_Atomic = Annotated[bool, typer.Option("--atomic", hidden=True, help="Refused: a queued migration has one table.")]
_SourceConnection = Annotated[
    str | None, typer.Option("--source-conn-id", metavar="ID", help="Airflow connection of the source.")
]
_ReplicaConnection = Annotated[
    str | None,
    typer.Option("--replica-conn-id", metavar="ID", help="Airflow connection of a replica, on which the copy reads."),
]
_QUEUE = {"not_before": _NotBefore, "after": _After, "priority": _Priority, "cutover": _Cutover}
_CONNECTIONS = {"source_conn_id": _SourceConnection, "replica_conn_id": _ReplicaConnection}


def _online_ddl(_: typer.Context, *, atomic: bool, is_json: bool, **values: Any) -> None:
    tables = values["table"] or ()
    if atomic or len(tables) > 1:
        raise Refused(
            "A queued online DDL has one table.",
            cure="Submit each by itself (--after puts one behind the other), or run `vreplication online-ddl` now.",
        )
    url = options.resolve(values["source"], values["source_file"])
    _submit(url, asked.given(Spec, values | {"table": tables[0] if tables else None}), values, is_json)


def _move_tables(_: typer.Context, *, is_json: bool, **values: Any) -> None:
    servers = options.servers(None, None, values["target"], values["target_file"], is_target=True)
    assert servers.target
    given = asked.given(MoveSpec, values) | {name: values[name] for name in _CONNECTIONS}
    _submit(servers.target, given | {KIND: "move_tables"}, values, is_json)


online_ddl = asked.with_options(
    _online_ddl,
    Spec,
    before={"source": options.SourceOption, "source_file": options.SourceFileOption, **_QUEUE, "table": _Table},
    after={"atomic": _Atomic, "is_json": options.JsonOption},
)
move_tables = asked.with_options(
    _move_tables,
    MoveSpec,
    before={"target": options.TargetOption, "target_file": options.TargetFileOption, **_CONNECTIONS, **_QUEUE},
    after={"is_json": options.JsonOption},
)


def _submit(url: SourceUrl, given: Mapping[str, Any], values: Mapping[str, object], is_json: bool) -> None:
    from vreplication.scheduler import queueing

    # The queue takes an empty one for none: the table would be switched at once instead of in a window.
    if values["cutover_window"] == "":
        raise Refused("cutover_window: it is empty.")
    # Before a server is asked: what is wrong with a request is wrong of it on every server.
    check_limit(given.get("lag_replicas"), given.get("max_lag"))
    entry = queueing.make_entry(url.database, {**given, **{name: values[name] for name in queueing.QUEUE_FIELDS}})
    with connect(url) as session:
        queueing.submit(session, entry, by())
    if is_json:
        json_line({"event": "submitted", "workflow": entry.workflow})
    else:
        say(f"Submitted as {entry.workflow}; {PROGRAM} queue shows what it waits for.")


def queue(
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    remove: Annotated[
        str | None, typer.Option("--remove", metavar="ID", help="Take out one that waits, or is not begun by its run.")
    ] = None,
    earlier: Annotated[str | None, typer.Option("--earlier", metavar="ID", help="Before the one above.")] = None,
    later: Annotated[str | None, typer.Option("--later", metavar="ID", help="Behind the one below.")] = None,
    first: Annotated[str | None, typer.Option("--first", metavar="ID", help="Before all that wait.")] = None,
    is_json: options.JsonOption = False,
) -> None:
    url = options.resolve(source, source_file)
    given = {"remove": remove, "earlier": earlier, "later": later, "first": first}
    acts = {name: names.check_workflow(workflow) for name, workflow in given.items() if workflow is not None}
    if len(acts) > 1:
        raise Refused(f"--{' and --'.join(acts)} are two acts.", cure="Give one of them at a time.")
    if not acts:
        return _list(url, is_json)
    ((act, workflow),) = acts.items()
    if act == "remove":
        return _remove(url, workflow, is_json)
    return _move(url, workflow, act, is_json)


def _remove(url: SourceUrl, workflow: str, is_json: bool) -> None:
    from vreplication.scheduler import queueing

    with connect(url) as session:
        queueing.remove(session, workflow, by())
    if is_json:
        json_line({"event": "removed", "workflow": workflow})
    else:
        say(f"Removed {workflow} from the queue.")


def _move(url: SourceUrl, workflow: str, where: str, is_json: bool) -> None:
    from vreplication.scheduler import queueing

    with connect(url) as session:
        queueing.move(session, workflow, by(), where)
    if is_json:
        json_line({"event": "moved", "workflow": workflow})
    else:
        say(f"Moved {workflow} {where} in the queue.")


def _list(url: SourceUrl, is_json: bool) -> None:
    from vreplication.scheduler import due, queueing

    with connect(url) as session:
        found = due.standings(queueing.look(session))
        # Only then: an empty list would say that nothing was submitted, also where the sidecar cannot be read.
        if not found:
            layout.check_readable(session)
    if is_json:
        for standing in found:
            json_line(standing.as_json())
    else:
        # Into a file or a pipe Rich would fold lines at 80 columns.
        console = Console(width=None if Console().is_terminal else 200, soft_wrap=True)
        console.print(table_of(found) if found else Text(EMPTY))


def table_of(found: list[Standing]) -> Text:
    """A line an entry, and below it its ALTER and what it waits for: 80 columns are enough."""
    rows = [_HEADER, *(_cells(s) for s in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [Text("  ".join(c.ljust(w) for c, w in zip(_HEADER, widths, strict=True)).rstrip(), style="bold")]
    for standing, cells in zip(found, rows[1:], strict=True):
        lines.append(Text("  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()))
        lines += [Text(f"  {mask(remark)}", style="bright_black") for remark in _remarks(standing)]
    return Text("\n").join(lines)


_HEADER = ("Workflow", "Table", "State", "Not before", "After", "Priority")


def _cells(standing: Standing) -> tuple[str, ...]:
    fields = standing.as_json()
    shown = (fields["workflow"], fields["table"], fields["state"], fields["not_before"], fields["after"])
    return (*(str(value or "") for value in shown), f"{fields['priority']}{', moved' if fields['moved'] else ''}")


def _remarks(standing: Standing) -> list[str]:
    alter = " ".join(str(standing.entry.spec.get("alter", "")).split())
    return [text for text in (alter, " ".join(standing.why.split())) if text]

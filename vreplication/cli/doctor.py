"""`doctor`: what is wrong with a server, and the command that fixes each.

What must stay true: nothing is written; exit 0 only where nothing at all was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from vreplication.cli import options
from vreplication.cli.say import json_line, say
from vreplication.mysql.session import connect

if TYPE_CHECKING:
    from vreplication.scheduler.doctor import Finding
    from vreplication.workflows.lookup import Servers

HELP = """
Say what is wrong with this server, and the command that fixes each; writes nothing.

That is: settings under which plans are refused or warned, privileges that the user lacks, a sidecar of another release,
workflows that failed or have no active worker, leases of dead processes, binary logs that are gone before they were
read, and tables and triggers of ours that are left over. With --target both ends of moves are looked at, each as such.
Exit 0: nothing; 1: something; 2: bad input.
"""


def doctor(
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    found = _examine(options.servers(source, source_file, target, target_file))
    for each in found:
        if is_json:
            json_line({"event": "found", **each.as_json()})
        else:
            say(f"{each.server and f'{each.server}: '}{each.kind} {each.what}: {each.why}\n  fix: {each.cure}")
    if is_json:
        json_line({"event": "doctor", "found": len(found)})
    else:
        say(f"{len(found)} found." if found else "Nothing is wrong.")
    raise typer.Exit(1 if found else 0)


def _examine(servers: Servers) -> list[Finding]:
    from vreplication.scheduler import doctor as look

    # Which of the two was named makes no difference: alone it is looked at as any server.
    if servers.source is None or servers.target is None:
        with connect(servers.given[0]) as session:
            return look.examine(session)
    with connect(servers.source) as source, connect(servers.target) as target:
        return look.examine_both(source, target)

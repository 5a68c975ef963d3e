"""`doctor`: what is wrong with a server, and the command that fixes each.

What must stay true: nothing is written; exit 0 only where nothing at all was found.
"""

from __future__ import annotations

import typer

from vreplication.cli import options
from vreplication.cli.say import json_line, say
from vreplication.mysql.session import connect

HELP = """
Say what is wrong with this server, and the command that fixes each; writes nothing.

That is: settings under which plans are refused or warned, a sidecar of another release, workflows that failed or that
nobody works on, leases of dead processes, binary logs that are gone before they were read, and tables and triggers of
ours that are left over. Exit 0: nothing; 1: something; 2: bad input.
"""


def doctor(
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    from vreplication.scheduler import doctor as look

    with connect(options.resolve(source, source_file)) as session:
        found = look.examine(session)
    for each in found:
        if is_json:
            json_line({"event": "found", **each.as_json()})
        else:
            say(f"{each.kind} {each.what}: {each.why}\n  fix: {each.cure}")
    if is_json:
        json_line({"event": "doctor", "found": len(found)})
    else:
        say(f"{len(found)} found." if found else "Nothing is wrong.")
    raise typer.Exit(1 if found else 0)

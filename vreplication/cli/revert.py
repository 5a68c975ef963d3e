"""`revert`: back to the original of an online DDL, while its window is open.

What must stay true: it asks first where a person can be asked, naming what would be lost.
"""

from __future__ import annotations

import threading

import typer

from vreplication import names
from vreplication.cli import invocation, logs, options, outcome, show
from vreplication.cli.attend import attend
from vreplication.cli.operate import ask, by, done
from vreplication.cli.watcher import watch
from vreplication.errors import Refused
from vreplication.mysql.url import SourceUrl
from vreplication.workflows import lookup


def revert(
    context: typer.Context,
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """Of an online DDL with --revert-window: switch back to the original, which has all that was written since."""
    from vreplication.workflows import operate

    url = options.resolve(source, source_file)
    found = lookup.find(lookup.Servers(source=url), names.check_workflow(workflow))
    if found.group:
        raise Refused(
            f"{workflow} has {len(found.group.members)} tables, which are reverted one by one.",
            cure=f"Name one of them: {found.group.members[0]}, …",
        )
    # Before the question, for what would be lost is a part of it; and it refuses where there is no way back.
    words = " ".join(operate.check_revert(url, workflow))
    ask(f"Switch the table of workflow {workflow} back to its original? {words}".strip(), yes or is_json)
    logs.start(workflow)
    raise typer.Exit(_carry_out(url, workflow, words, invocation.of(context).args, is_json))


def _carry_out(url: SourceUrl, workflow: str, words: str, args: tuple[str, ...], is_json: bool) -> int:
    from vreplication.workflows import operate
    from vreplication.workflows.online_ddl import ending

    stop, display = threading.Event(), show.choose(is_json=is_json)
    if words:
        display.note(words)
    result = attend(
        lambda: operate.revert(url, workflow, by(), stop, display.note),
        stop=stop,
        display=display,
        watcher=watch(url, workflow),
    )
    if result is None:
        done("revert", workflow, "Released; the process that keeps the original level switches back.", is_json)
        return 0
    code = outcome.finish(result, is_json=is_json, again=outcome.bare_command(args))
    # Behind the last line: killed before it, the same command finds that nobody was told, and tells it.
    ending.note_told(url, result)
    return code

"""`pause`, `resume`, `release`, `tune`, `cancel`, `verify` and `cleanup`: an operator's acts on a workflow by its id.

What must stay true: what removes something asks first where a person can be asked; in a script the command itself is
the agreement.
"""

from __future__ import annotations

import getpass
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vreplication import names
from vreplication.cli import invocation, logs, options, outcome, show
from vreplication.cli.attend import attend
from vreplication.cli.say import PROGRAM, json_line, say
from vreplication.cli.watcher import watch
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.url import SourceUrl
from vreplication.progress import numbers
from vreplication.state.verdicts import CLEAN, Verdict

if TYPE_CHECKING:
    from vreplication.state.groups import Group


def pause(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Stop copying; catch-up goes on, so nothing is lost. `resume` goes on."""
    from vreplication.workflows import operate

    url = options.resolve(source, source_file)
    if group := _group(url, workflow):
        _on_each(url, group, "paused", lambda each: operate.pause(url, each, by()), is_json, paused=1)
        return
    limit = operate.pause(url, names.check_workflow(workflow), by())
    words = f"Paused; resume with: {PROGRAM} resume {workflow}"
    _done("paused", workflow, f"{words}\n{limit}" if limit else words, is_json)


def release(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Let a workflow with --cutover manual switch as soon as it is ready; remembered when it comes early."""
    from vreplication.workflows import operate

    url = options.resolve(source, source_file)
    if group := _group(url, workflow):
        _on_each(url, group, "released", lambda each: operate.release(url, each, by()), is_json, released_by=by())
        return
    operate.release(url, names.check_workflow(workflow), by())
    _done("released", workflow, "Released; the cut-over follows as soon as the gate is open.", is_json)


def tune(
    workflow: options.WorkflowArgument,
    copy_parallelism: Annotated[
        int | None, typer.Option("--copy-parallelism", metavar="N", help="Copying tasks at a time from now on.")
    ] = None,
    chunk_millis: Annotated[
        int | None, typer.Option("--chunk-millis", metavar="MS", help="Time a chunk may take from now on.")
    ] = None,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Let a running copy work harder or less hard; nothing is restarted."""
    from vreplication.workflows import effort

    url = options.resolve(source, source_file)
    asked_for = {"copy_parallelism": copy_parallelism, "chunk_millis": chunk_millis}
    if group := _group(url, workflow):
        _on_each(url, group, "tuned", lambda each: effort.tune(url, each, by(), asked_for), is_json)
        return
    words = effort.tune(url, names.check_workflow(workflow), by(), asked_for)
    if is_json:
        json_line({"event": "tuned", "workflow": workflow, **asked_for})
    else:
        say(words)


def cancel(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """End a workflow and remove what it made; the source table is untouched."""
    from vreplication.workflows import operate

    url = options.resolve(source, source_file)
    names.check_workflow(workflow)
    _ask(f"Cancel workflow {workflow}? Its shadow table is removed; the source table is untouched.", yes or is_json)
    logs.start(workflow)
    if group := _group(url, workflow):
        _on_each(url, group, "cancelled", lambda each: operate.cancel(url, each, by()), is_json, cancel_requested=1)
        return
    result = operate.cancel(url, workflow, by())
    code = outcome.finish(result, is_json=is_json)
    # The run that was cancelled ends with 3; the act of cancelling it has succeeded.
    raise typer.Exit(0 if result.event == "cancelled" else code)


def cleanup(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """Drop the retired table of a complete workflow: there is no way back to the original afterwards."""
    from vreplication.workflows import operate

    url = options.resolve(source, source_file)
    names.check_workflow(workflow)
    _ask(f"Drop the retired table of workflow {workflow}, the original with its rows?", yes or is_json)
    if group := _group(url, workflow):
        from vreplication.workflows.group import check_complete

        check_complete(url, group)
    removed = [what for each in (group.members if group else (workflow,)) for what in operate.cleanup(url, each, by())]
    if is_json:
        json_line({"event": "cleaned_up", "workflow": workflow, "removed": removed})
    else:
        say("\n".join(f"Removed {what}." for what in removed) or "Nothing was left to remove.")


def resume(
    context: typer.Context,
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Unpause a living workflow; one without an active worker is run on from where it stopped."""
    url = options.resolve(source, source_file)
    if group := _group(url, workflow):
        raise typer.Exit(_resume_group(url, group, invocation.of(context).args, is_json))
    raise typer.Exit(_resume(url, names.check_workflow(workflow), invocation.of(context).args, is_json))


def _resume_group(url: SourceUrl, group: Group, args: tuple[str, ...], is_json: bool) -> int:
    from vreplication.cli import several
    from vreplication.workflows import group as groups

    groups.unpause(url, group, by())
    if groups.is_driven(url, group):
        _done("resumed", group.id, "Resumed; its process goes on.", is_json)
        return 0
    return several.run(groups.tables_of(group), url, args, is_json=is_json, is_resumed=True)


def _group(url: SourceUrl, workflow: str) -> Group | None:
    """Where the id is of several tables."""
    from vreplication.workflows import group

    return group.find(url, names.check_workflow(workflow))


def _on_each(
    url: SourceUrl, group: Group, event: str, act: Callable[[str], object], is_json: bool, **asked: Any
) -> None:
    from vreplication.workflows import group as groups

    done = groups.act(url, group, act, **asked)
    if is_json:
        json_line({"event": event, "workflow": group.id, "tables": done})
    else:
        begun = f" ({', '.join(done)})" if done else ""
        say(f"{event.capitalize()}: {len(done)} of {len(group.members)} tables{begun}; those to come, too.")


def _resume(url: SourceUrl, workflow: str, args: tuple[str, ...], is_json: bool) -> int:
    from vreplication.workflows import ending, operate

    logs.start(workflow)
    stop, display = threading.Event(), show.choose(is_json=is_json)
    result = attend(
        lambda: operate.resume(url, workflow, by(), stop, display.note),
        stop=stop,
        display=display,
        watcher=watch(url, workflow),
    )
    if result is None:
        _done("resumed", workflow, "Resumed; its process goes on.", is_json)
        return 0
    code = outcome.finish(result, is_json=is_json, again=outcome.bare_command(args))
    ending.note_told(url, result)
    return code


def verify(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    spark_master: options.SparkMasterOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Compare the shadow table with the source, row by row, under live writes. Exits with 1 when they differ."""
    url = options.resolve(source, source_file)
    if group := _group(url, workflow):
        raise Refused(
            f"{workflow} has {len(group.members)} tables, which are verified one by one.",
            cure=f"Name one of them: {group.members[0]}, …",
        )
    verdict = _verify(url, names.check_workflow(workflow), spark_master or "local[*]", is_json)
    is_clean = verdict.verdict == CLEAN
    if is_json:
        json_line(_verdict_fields(workflow, verdict))
    else:
        say(_verdict_text(verdict))
    raise typer.Exit(0 if is_clean else 1)


def _verify(url: SourceUrl, workflow: str, spark_master: str, is_json: bool) -> Verdict:
    from vreplication.workflows import operate

    logs.start(workflow)
    stop = threading.Event()
    return attend(
        lambda: operate.verify(url, workflow, spark_master, stop),
        stop=stop,
        display=show.choose(is_json=is_json),
        watcher=watch(url, workflow),
    )


def _verdict_fields(workflow: str, verdict: Verdict) -> dict[str, object]:
    return {
        "event": "verified",
        "workflow": workflow,
        "verdict": verdict.verdict,
        "rows_compared": verdict.rows_compared,
        "mismatches": verdict.mismatches,
        "repaired": verdict.repaired,
        "hot_keys": len(verdict.hot_keys),
        "details": verdict.details,
    }


def _verdict_text(verdict: Verdict) -> str:
    parts = [
        f"{verdict.verdict}: {numbers.count(verdict.rows_compared)} rows compared",
        f"{numbers.count(verdict.mismatches)} differ",
        f"{numbers.count(verdict.repaired)} repaired",
    ]
    if verdict.hot_keys:
        parts.append(f"{numbers.count(len(verdict.hot_keys))} written to all the time (compared again at the cut-over)")
    return "\n".join(t for t in (", ".join(parts) + ".", verdict.details) if t)


def by() -> str:
    """Who acts, for the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _ask(question: str, is_yes: bool) -> None:
    if is_yes or not invocation.is_terminal():
        return
    if not typer.confirm(mask(question), err=True):
        raise Refused("Nothing was done.")


def _done(event: str, workflow: str, words: str, is_json: bool) -> None:
    if is_json:
        json_line({"event": event, "workflow": workflow})
    else:
        say(words)


COMMANDS = (pause, resume, release, tune, cancel, verify, cleanup)

"""`pause`, `resume`, `release`, `tune`, `cancel`, `verify`, `cleanup`, `reverse`, `complete`: acts on a workflow by id.

What must stay true: what removes something asks first where a person can be asked; in a script the command itself is
the agreement.
"""

from __future__ import annotations

import getpass
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vreplication import names
from vreplication.cli import asked, invocation, logs, options, outcome, show
from vreplication.cli.attend import attend, stopping_on_signals
from vreplication.cli.say import PROGRAM, json_line, say
from vreplication.cli.watcher import watch
from vreplication.errors import Refused, Terminal
from vreplication.masking import mask
from vreplication.mysql.url import SourceUrl
from vreplication.planning.request import HELD_BY, Request
from vreplication.progress import numbers
from vreplication.state.verdicts import CLEAN, Verdict
from vreplication.workflows import lookup
from vreplication.workflows.lookup import Found

if TYPE_CHECKING:
    from vreplication.state.groups import Group


def pause(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Stop copying; catch-up goes on, so nothing is lost. `resume` goes on."""
    from vreplication.workflows import operate

    servers = options.servers(source, source_file, target, target_file)
    found = _find(servers, workflow)
    url = found.home
    if group := found.group:
        _on_each(url, group, "paused", lambda each: operate.pause(url, each, by()), is_json, paused=1)
        return
    limit = operate.pause(url, workflow, by())
    words = f"Paused; resume with: {PROGRAM} resume {workflow}"
    done("paused", workflow, f"{words}\n{limit}" if limit else words, is_json)


def release(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Let a workflow with --cutover manual switch as soon as it is ready; remembered when it comes early."""
    from vreplication.workflows import operate

    servers = options.servers(source, source_file, target, target_file)
    found = _find(servers, workflow)
    url = found.home
    if group := found.group:
        _on_each(url, group, "released", lambda each: operate.release(url, each, by()), is_json, released_by=by())
        return
    operate.release(url, workflow, by())
    done("released", workflow, "Released; the cut-over follows as soon as the gate is open.", is_json)


_EFFORT: dict[str, Any] = {
    "copy_parallelism": Annotated[
        int | None, typer.Option("--copy-parallelism", metavar="N", help="Copying tasks at a time from now on.")
    ],
    "chunk_millis": Annotated[
        int | None, typer.Option("--chunk-millis", metavar="MS", help="Time a chunk may take from now on.")
    ],
}
_SERVERS = {
    "source": options.SourceOption,
    "source_file": options.SourceFileOption,
    "target": options.TargetOption,
    "target_file": options.TargetFileOption,
    "lag_replicas_file": options.LagReplicasFileOption,
}


@asked.with_parameters(
    {
        "workflow": options.WorkflowArgument,
        **_EFFORT,
        **{name: asked.anew(Request, name, "As of online-ddl, from now on; off: no more.") for name in HELD_BY},
        **_SERVERS,
        "is_json": options.JsonOption,
    }
)
def tune(_: typer.Context, workflow: str, is_json: bool, **values: Any) -> None:
    """Let a running copy work harder or less hard, and change what holds it back; nothing is restarted."""
    from vreplication.engine import effort

    servers = options.servers(**{name: values[name] for name in _SERVERS})
    asked_for = {name: values[name] for name in _EFFORT}
    asked_for |= {name: values[name] for name in HELD_BY if values[name] is not None}
    # Before a server is asked: what is wrong here is wrong of every workflow.
    effort.checked(asked_for)
    found = _find(servers, workflow)
    url = found.home
    if found.is_feed:
        raise Refused(f"{workflow} is a change feed, and copies nothing that could be tuned.")
    if group := found.group:
        _on_each(url, group, "tuned", lambda each: effort.tune(url, each, by(), asked_for), is_json)
        return
    words = effort.tune(url, workflow, by(), asked_for)
    if is_json:
        json_line({"event": "tuned", "workflow": workflow, **asked_for})
    else:
        say(words)


def cancel(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Of a change feed: end it even where Kafka cannot be told.")
    ] = False,
    source_lost: options.SourceLostOption = False,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """End a workflow and remove what it made; the source table is untouched."""
    from vreplication.workflows import operate

    servers = options.servers(source, source_file, target, target_file)
    names.check_workflow(workflow)
    ask(f"Cancel workflow {workflow}? What it made is removed; the source's tables are untouched.", yes or is_json)
    logs.start(workflow)
    found = _find(servers, workflow)
    url = found.home
    if force and not found.is_feed:
        raise Refused(f"{workflow} is no change feed, and its cancel has nothing to be forced.", cure="Leave it out.")
    if source_lost:
        raise typer.Exit(_without_source("cancel", found, workflow, is_json))
    if group := found.group:
        _on_each(url, group, "cancelled", lambda each: _cancel_one(url, each), is_json, cancel_requested=1)
        return
    if found.is_feed:
        raise typer.Exit(_cancel_feed(found, workflow, is_json, is_forced=force))
    result = operate.cancel(url, workflow, by(), found.source)
    code = outcome.finish(result, is_json=is_json, is_move=found.is_move)
    # The run that was cancelled ends with 3; the act of cancelling it has succeeded.
    raise typer.Exit(0 if result.event == "cancelled" else code)


def _cancel_one(url: SourceUrl, workflow: str) -> None:
    """Of several tables. Raises Terminal where something of it stays: the others are cancelled all the same."""
    from vreplication.workflows import operate

    result = operate.cancel(url, workflow, by())
    if result.event != "cancelled":
        left = ", ".join(each.what for each in result.leftovers)
        cure = f"Left behind: {left}; `{PROGRAM} cancel {workflow}` removes it." if left else ""
        raise Terminal(f"Workflow {workflow} is not cancelled: {result.reason}", cure=cure)


def _cancel_feed(found: Found, workflow: str, is_json: bool, *, is_forced: bool) -> int:
    from vreplication.cli.changefeed import sink_password
    from vreplication.workflows import operate

    result = operate.cancel(found.home, workflow, by(), sink_password=sink_password(None), is_forced=is_forced)
    code = outcome.finish(result, is_json=is_json, is_move=True)
    return 0 if result.event == "cancelled" else code


def cleanup(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    is_of_duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Drop the side table of --on-duplicate, and nothing else.")
    ] = False,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """Drop the retired table of a complete workflow: there is no way back to the original afterwards."""
    from vreplication.workflows import operate

    servers = options.servers(source, source_file, target, target_file)
    names.check_workflow(workflow)
    what = "side table" if is_of_duplicates else "retired table"
    rows = "which holds the rows that did not stay" if is_of_duplicates else "the original with its rows"
    ask(f"Drop the {what} of workflow {workflow}, {rows}?", yes or is_json)
    found = _find(servers, workflow)
    if found.group:
        from vreplication.workflows.online_ddl.group import check_complete

        # Before the first of them is dropped: a group that is not complete keeps every original.
        check_complete(found.home, found.group)
    members = found.group.members if found.group else (workflow,)
    if is_of_duplicates:
        removed = [gone for each in members for gone in operate.drop_duplicates(found.home, each, by())]
    else:
        removed = [gone for each in members for gone in operate.cleanup(found.home, each, by(), found.source)]
    if is_json:
        json_line({"event": "cleaned_up", "workflow": workflow, "removed": removed})
    else:
        say("\n".join(f"Removed {gone}." for gone in removed) or "Nothing was left to remove.")


def resume(
    context: typer.Context,
    workflow: options.WorkflowArgument,
    source: options.SourcesOption = None,
    source_file: options.SourceFilesOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    replica: options.ReplicaOption = None,
    replica_file: options.ReplicaFileOption = None,
    lag_replicas_file: options.LagReplicasFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Unpause a living workflow; one without an active worker is run on from where it stopped."""
    at_replica = options.replica(replica, replica_file)
    servers, further = options.with_further(source, source_file, target, target_file, lag_replicas_file)
    found, args = _find(servers, workflow), invocation.of(context).args
    if found.group:
        raise typer.Exit(_resume_group(found.home, found.group, args, is_json))
    if found.is_feed:
        raise typer.Exit(_resume_feed((found.home, *further), workflow, args, is_json))
    if further:
        raise Refused(f"Workflow {workflow} has one source.", cure="Name it alone.")
    raise typer.Exit(_resume(found, workflow, args, is_json, at_replica))


def _resume_feed(sources: tuple[SourceUrl, ...], workflow: str, args: tuple[str, ...], is_json: bool) -> int:
    from vreplication.cli.changefeed import Telling, sink_password
    from vreplication.workflows.changefeed import run as feed

    logs.start(workflow)
    stop = threading.Event()
    with stopping_on_signals(stop), Telling(is_json=is_json) as telling:
        result = feed.resume(
            sources, workflow, sink_password(None), stop=stop, notify=telling.note, watch=telling.follow
        )
    if result is None:
        done("resumed", workflow, "Resumed; its process goes on.", is_json)
        return 0
    return outcome.finish(result, is_json=is_json, again=outcome.bare_command(args), is_move=True)


def _resume_group(url: SourceUrl, group: Group, args: tuple[str, ...], is_json: bool) -> int:
    from vreplication.cli import several
    from vreplication.workflows.online_ddl import group as groups

    # Also those that have not begun: each finds the wish when its turn comes.
    groups.unpause(url, group, by())
    driven, idle = groups.by_driver(url, group)
    if driven:
        _say_resumed(group, idle, is_json)
        return 0
    return several.run(groups.tables_of(group, url.database), url, args, is_json=is_json, is_resumed=True)


def _say_resumed(group: Group, idle: Sequence[str], is_json: bool) -> None:
    """idle: what the process that goes on does not work on: one of them had failed, or it is another one's process."""
    if is_json:
        json_line({"event": "resumed", "workflow": group.id, "idle": list(idle)})
        return
    say("Resumed; its process goes on.")
    if idle:
        say(f"No process works on {', '.join(idle)}; go on with one by: {PROGRAM} resume {idle[0]}")


def _find(servers: lookup.Servers, workflow: str) -> Found:
    """Where the workflow's state is. Raises Refused."""
    return lookup.find(servers, names.check_workflow(workflow))


def _on_each(
    url: SourceUrl, group: Group, event: str, act: Callable[[str], object], is_json: bool, **asked: Any
) -> None:
    from vreplication.workflows.online_ddl import group as groups

    done = groups.act(url, group, act, **asked)
    if is_json:
        json_line({"event": event, "workflow": group.id, "tables": done})
    else:
        begun = f" ({', '.join(done)})" if done else ""
        # What is not noted of the group is told those alone that have begun.
        to_come = "; those to come, too" if asked else ""
        say(f"{event.capitalize()}: {len(done)} of {len(group.members)} tables{begun}{to_come}.")


def _resume(found: Found, workflow: str, args: tuple[str, ...], is_json: bool, replica: SourceUrl | None = None) -> int:
    from vreplication.workflows import operate
    from vreplication.workflows.online_ddl import ending

    logs.start(workflow)
    if found.is_move:
        from vreplication.workflows.move_tables import operate as moving

        # Before a display is drawn: what is refused here is one sentence, with nothing begun.
        moving.check_resume(found.home, found.source, workflow, replica)
    stop, display = threading.Event(), show.choose(is_json=is_json)
    result = attend(
        lambda: operate.resume(found.home, workflow, by(), stop, display.note, found.source, replica),
        stop=stop,
        display=display,
        watcher=watch(found.home, workflow),
    )
    if result is None:
        done("resumed", workflow, "Resumed; its process goes on.", is_json)
        return 0
    code = outcome.finish(result, is_json=is_json, again=outcome.bare_command(args), is_move=found.is_move)
    if not found.is_move:
        # Behind the last line: killed before it, the same command finds that nobody was told, and tells it.
        ending.note_told(found.home, result)
    return code


def reverse(
    context: typer.Context,
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """Of tables that have moved: send the writes back to the source, switched and verified as they came."""
    servers = options.servers(source, source_file, target, target_file)
    names.check_workflow(workflow)
    ask(f"Switch the tables of workflow {workflow} back to the source?", yes or is_json)
    raise typer.Exit(_carry_out("reverse", _find(servers, workflow), workflow, invocation.of(context).args, is_json))


def complete(
    context: typer.Context,
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    source_lost: options.SourceLostOption = False,
    accept_lost_writes: options.AcceptLostWritesOption = False,
    yes: options.YesOption = False,
    is_json: options.JsonOption = False,
) -> None:
    """Of tables that have moved: end the way back. The source's tables are renamed, or dropped (--retired drop)."""
    servers = options.servers(source, source_file, target, target_file)
    names.check_workflow(workflow)
    if accept_lost_writes and not source_lost:
        raise Refused("--accept-lost-writes goes with --source-lost alone.", cure="Leave it out.")
    lost = " What the source took since a switch back is lost." if accept_lost_writes else ""
    ask(f"Complete workflow {workflow}? There is no way back to the source afterwards.{lost}", yes or is_json)
    if source_lost:
        found = _find(servers, workflow)
        raise typer.Exit(_without_source("complete", found, workflow, is_json, accepts_loss=accept_lost_writes))
    raise typer.Exit(_carry_out("complete", _find(servers, workflow), workflow, invocation.of(context).args, is_json))


def _without_source(what: str, found: Found, workflow: str, is_json: bool, *, accepts_loss: bool = False) -> int:
    """Of tables that move: their old server is gone for good."""
    from vreplication.workflows.move_tables import lost_source

    logs.start(workflow)
    if what == "complete":
        result = lost_source.complete(found.home, found.source, workflow, by(), accepts_loss=accepts_loss)
    else:
        result = lost_source.cancel(found.home, found.source, workflow, by())
    outcome.finish(result, is_json=is_json, is_move=True)
    return 0


def _carry_out(what: str, found: Found, workflow: str, args: tuple[str, ...], is_json: bool) -> int:
    from vreplication.workflows.move_tables import operate as moving

    logs.start(workflow)
    stop, display = threading.Event(), show.choose(is_json=is_json)
    operator = moving.Operator(
        home=found.home, source=found.source, workflow=workflow, by=by(), stop=stop, notify=display.note
    )
    carry_out = (moving.reverse if what == "reverse" else moving.complete)(operator)
    result = attend(carry_out, stop=stop, display=display, watcher=watch(found.home, workflow))
    # Behind the switch back `reverse` would be refused; what keeps the target level then is a resume.
    again = outcome.bare_command(args) if result.event != "reversed" else None
    return outcome.finish(result, is_json=is_json, again=again, is_move=True)


def verify(
    workflow: options.WorkflowArgument,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    spark_master: options.SparkMasterOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Compare the new table with the source, row by row, under live writes. Exits with 1 when they differ."""
    servers = options.servers(source, source_file, target, target_file)
    found = _find(servers, workflow)
    if found.group:
        raise Refused(
            f"{workflow} has {len(found.group.members)} tables, which are verified one by one.",
            cure=f"Name one of them: {found.group.members[0]}, …",
        )
    verdict = _verify(found, workflow, spark_master or "local[*]", is_json)
    is_clean = verdict.verdict == CLEAN
    if is_json:
        json_line(_verdict_fields(workflow, verdict))
    else:
        say(_verdict_text(verdict))
    raise typer.Exit(0 if is_clean else 1)


def _verify(found: Found, workflow: str, spark_master: str, is_json: bool) -> Verdict:
    from vreplication.workflows import operate

    logs.start(workflow)
    stop = threading.Event()
    return attend(
        lambda: operate.verify(found.home, workflow, spark_master, stop, found.source),
        stop=stop,
        display=show.choose(is_json=is_json),
        watcher=watch(found.home, workflow),
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
        # A user's number without a name, as in many containers.
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def ask(question: str, is_yes: bool) -> None:
    if is_yes or not invocation.is_terminal():
        return
    if not typer.confirm(mask(question), err=True):
        raise Refused("Nothing was done.")


def done(event: str, workflow: str, words: str, is_json: bool) -> None:
    if is_json:
        json_line({"event": event, "workflow": workflow})
    else:
        say(words)


COMMANDS = (pause, resume, release, tune, cancel, verify, cleanup, reverse, complete)

"""The end of a run, for people and for programs: what came of it, what is left behind, how to go on.

What must stay true: the last JSON line has the keys of docs/cli.md whatever happened; nothing here decides an exit code
but by the error's own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vreplication.cli import logs
from vreplication.cli.say import PROGRAM, error, json_line, say
from vreplication.errors import Cancelled, Interrupted, Refused, VReplicationError
from vreplication.masking import without_password
from vreplication.progress import numbers
from vreplication.state.workflows import IN_PLACE

if TYPE_CHECKING:
    from vreplication.engine.result import Result

_EVENTS = ((Refused, "refused"), (Cancelled, "cancelled"), (Interrupted, "interrupted"))


def finish(result: Result, *, is_json: bool, again: str | None = None, is_move: bool = False) -> int:
    """Print the end of a run; `again` is the command that goes on with it, where there is something to go on with.

    is_move: of tables that move, whose reason says itself which side serves.
    """
    if again and result.resume_command:
        # The run knows its workflow alone; how it was called has the servers and the files of their passwords.
        result = replace(result, resume_command=again)
    if is_json:
        json_line(_fields(result))
    elif result.event == "complete":
        say(_complete(result, is_move=is_move))
    elif result.event == "reversed":
        say(_reversed(result))
    else:
        error(_not_complete(result, is_move=is_move))
    return result.exit_code


def fields(result: Result, again: str) -> dict[str, Any]:
    """The last JSON line of several workflows."""
    return _fields(replace(result, resume_command=again if result.resume_command else None))


def _fields(result: Result) -> dict[str, Any]:
    return {
        "event": result.event,
        "workflow": result.workflow,
        "reason": result.reason,
        "shadow_table": result.shadow_table,
        "retired_table": result.retired_table,
        "side_table": result.side_table,
        "side_rows": result.side_rows,
        "rows_copied": result.rows_copied,
        "events_applied": result.events_applied,
        "cutover_millis": result.cutover_millis,
        "write_stall_millis": result.write_stall_millis,
        "strategy": result.strategy,
        "strategy_reason": result.strategy_reason,
        "resume_command": result.resume_command,
        "leftovers": [{"what": left.what, "command": left.command} for left in result.leftovers],
    }


def error_fields(reason: BaseException, text: str) -> dict[str, Any]:
    """The last JSON line of a run that ended before it had a result."""
    event = next((name for kind, name in _EVENTS if isinstance(reason, kind)), "failed")
    names = (
        "shadow_table", "retired_table", "side_table", "side_rows", "rows_copied", "events_applied", "cutover_millis",
        "write_stall_millis",
        "strategy", "strategy_reason", "resume_command",
    )  # fmt: skip
    return {"event": event, "workflow": None, "reason": text, **dict.fromkeys(names), "leftovers": []}


def report(failure: VReplicationError, *, is_json: bool) -> int:
    """Print an error that ended the command."""
    if is_json:
        json_line(error_fields(failure, str(failure)))
    error(str(failure))
    return failure.exit_code


def _complete(result: Result, *, is_move: bool) -> str:
    if result.reverts:
        return _taken_back(result)
    lines = [f"Complete: workflow {result.workflow}, {_done(result)}.", *_stall(result, is_move=is_move)]
    if result.reason:
        lines.append(f"But {result.reason[0].lower()}{result.reason[1:]}")
    if result.is_fallback:
        lines.append(f"It was done online. {result.strategy_reason}")
    if result.side_table:
        lines.append(
            f"{numbers.count(result.side_rows or 0)} rows gave way to another one of their value and are in "
            f"{result.side_table}; drop it with: {_cleanup(result)} --duplicates"
        )
    if result.retired_table and is_move:
        lines.append(
            f"The source's tables are kept there as {result.retired_table}; drop them with: {_cleanup(result)}"
        )
    elif result.retired_table:
        lines.append(f"The original is kept as {result.retired_table}; drop it with: {_cleanup(result)}")
    return "\n".join(lines + _leftovers(result))


def _taken_back(result: Result) -> str:
    changes = numbers.count(result.events_applied or 0)
    lines = [f"Reverted: workflow {result.reverts}, {changes} changes carried back.", *_stall(result, is_move=False)]
    if result.retired_table:
        cleanup = f"{PROGRAM} cleanup {result.reverts}"
        lines.append(f"The new table is kept as {result.retired_table}; drop it with: {cleanup}")
    return "\n".join(lines)


def _stall(result: Result, *, is_move: bool) -> list[str]:
    if result.write_stall_millis is None:
        return []
    waited = numbers.millis(result.write_stall_millis)
    if result.strategy in IN_PLACE:
        return [f"Writers waited at most {waited}."]
    if is_move:
        return [f"The last switch denied writes for {waited}."]
    switch = "" if result.cutover_millis is None else f" (the whole cut-over {numbers.millis(result.cutover_millis)})"
    return [f"Writers waited at most {waited}{switch}."]


def _reversed(result: Result) -> str:
    lines = [
        f"Switched back: the source serves the tables of workflow {result.workflow}.",
        *_stall(result, is_move=True),
    ]
    if result.resume_command:
        lines.append(f"The target is not kept level now; resume with: {result.resume_command}")
    else:
        lines.append("Its process goes on, and keeps the target level.")
    lines.append(f"It switches again after: {PROGRAM} release {result.workflow}")
    return "\n".join(lines)


def _cleanup(result: Result) -> str:
    return f"{PROGRAM} cleanup {result.workflow}"


def _done(result: Result) -> str:
    if result.strategy in IN_PLACE:
        return f"altered in place ({result.strategy})"
    copied = "rows" if result.rows_copied is None else f"{numbers.count(result.rows_copied)} rows"
    if not result.events_applied:
        return f"{copied} copied"
    return f"{copied} copied, {numbers.count(result.events_applied)} changes applied"


def _not_complete(result: Result, *, is_move: bool) -> str:
    reason = result.reason or ""
    lines = [reason if reason.lower().startswith(result.event) else f"{result.event}: {reason}".removesuffix(": ")]
    is_untold = result.event in ("failed", "cancelled") and "untouched" not in reason and not is_move
    if is_untold and _is_untouched(result):
        lines.append("The source table is untouched.")
    lines += _leftovers(result)
    if result.resume_command:
        lines.append(f"Resume with: {result.resume_command}")
    if result.event == "failed" and logs.current():
        lines.append(f"The log is {logs.current()}.")
    return "\n".join(lines)


def _is_untouched(result: Result) -> bool:
    """Until the cut-over the source table is untouched; afterwards the original has a new name."""
    return result.cutover_millis is None


def _leftovers(result: Result) -> list[str]:
    if not result.leftovers:
        return []
    return ["Left behind:", *(f"  {left.what}; remove it with: {left.command}" for left in result.leftovers)]


def same_command(args: Sequence[str], workflow: str) -> str:
    """The command as it was given, with --workflow and without passwords."""
    # Without its id the same command would begin another workflow, where one is to continue.
    named = any(re.match(r"--workflow(=|$)", word) for word in args)
    return bare_command([*args, *(() if named else ("--workflow", workflow))])


def bare_command(args: Sequence[str]) -> str:
    """The command as it was given, without passwords."""
    return shlex.join([PROGRAM, *map(_bare, args)])


def _bare(word: str) -> str:
    name, equals, value = word.partition("=") if re.match(r"--[a-z-]+=", word) else ("", "", word)
    return f"{name}{equals}{without_password(value)}" if "://" in value else word

"""Figures as sentences: grouped thousands, units always, and the reason where a figure is not known.

What must stay true: an unknown figure is never shown as 0; a percentage is cut, not rounded, so that 100 means done.
"""

from __future__ import annotations

from vreplication.cutover.blockers import Blocker
from vreplication.cutover.reasons import LEFT_BEHIND
from vreplication.engine.effort import Effort
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.moved import Moved, MovedTable
from vreplication.progress.snapshot import Snapshot
from vreplication.state.moves import Side
from vreplication.ui import FEEDS, feeds
from vreplication.ui.reading import About

_PHASES = {
    Phase.CATCHING_UP: "catching up",
    Phase.WAITING: "waiting at the gate",
    Phase.CUTTING_OVER: "cutting over",
    Phase.SWITCHED: "switched, the way back is open",
}
_THEN = {
    Phase.VERIFYING: "copied; being verified",
    Phase.WAITING: "verified; switched when the gate opens",
    Phase.CUTTING_OVER: "verified; being switched now",
    Phase.SWITCHED: "switched; kept level for the way back until it is completed",
}
_BEFORE_COPY = frozenset({Phase.PLANNING, Phase.PREPARING})


def is_waiting_for_you(seen: Snapshot, about: About) -> bool:
    # A paused one needs a resume first, and one that is being cancelled nothing: a release would do neither any good.
    is_stopped = seen.is_paused or seen.is_cancel_requested
    return seen.phase is Phase.WAITING and about.needs_release and not is_stopped


def is_waiting_for_its_window(seen: Snapshot, about: About) -> bool:
    return seen.phase is Phase.WAITING and about.is_held and not about.needs_release and not seen.is_paused


def phase(seen: Snapshot, about: About) -> str:
    if is_waiting_for_you(seen, about):
        return "waiting for you"
    if is_waiting_for_its_window(seen, about):
        return f"waiting for its window{_held_word(seen)}"
    waits = ", waiting" if is_held_up(seen, about) else ""
    return f"{_PHASES.get(seen.phase, str(seen.phase))}{_held_word(seen) or waits}"


def is_leaving_tables(seen: Snapshot) -> bool:
    """Some came after the plan, and hold the switch until a release that is given from now on."""
    return any(each["code"] == LEFT_BEHIND for each in seen.gate_reasons or ())


def is_held_up(seen: Snapshot, about: About) -> bool:
    """A feed that waits for its broker, or its source."""
    return about.kind == FEEDS and bool(seen.waiting_for) and not seen.has_ended


def _held_word(seen: Snapshot) -> str:
    """A word beside the colour."""
    if seen.has_ended:
        return ""
    if seen.is_paused:
        return ", paused"
    return ", silent" if seen.is_silent else (", throttled" if seen.throttled else "")


def state(seen: Snapshot, about: About) -> str:
    """For counting and filtering: running, waiting, done, failed, cancelled."""
    ends = {Phase.COMPLETE: "done", Phase.FAILED: "failed", Phase.CANCELLED: "cancelled"}
    waiting = "waiting" if is_waiting_for_you(seen, about) else "running"
    return ends.get(seen.phase, waiting)


def tone(seen: Snapshot, about: About) -> str:
    """The colour's name: one means one thing everywhere."""
    ends = {Phase.COMPLETE: "proven", Phase.FAILED: "failed", Phase.CANCELLED: "ended"}
    is_held = seen.is_paused or seen.is_silent or seen.throttled or is_waiting_for_you(seen, about)
    is_held = is_held or is_held_up(seen, about)
    return ends.get(seen.phase, "held" if is_held else "moving")


def unknown(seen: Snapshot, figure: str = "") -> str:
    """Why a figure about now is not known."""
    if seen.has_ended:
        return "the run has ended"
    if seen.is_silent and seen.updated_seconds_ago is not None:
        return f"no sign of life for {numbers.duration(seen.updated_seconds_ago)}"
    if seen.phase in _BEFORE_COPY:
        return "begins with the copy"
    if figure == "copy":
        return "not known yet" if seen.phase is Phase.COPYING else "the copy is done"
    return "not known yet"


def rows(seen: Snapshot) -> str:
    if not seen.rows_copied and seen.rows_total is None:
        return "not counted" if seen.has_ended else "not counted yet"
    if seen.rows_total is None:
        return f"{numbers.fine(seen.rows_copied)} rows"
    # The total may be the server's estimate, which a copy can pass.
    copied, total = seen.rows_copied, max(seen.rows_total, seen.rows_copied)
    about = "" if seen.is_rows_total_exact else "about "
    if copied == total:
        return f"all {about}{total:,} rows" if seen.is_rows_total_exact else f"{copied:,} rows"
    is_told_apart = numbers.fine(copied) != numbers.fine(total)
    shown = numbers.fine if is_told_apart else "{:,}".format
    return f"{shown(copied)} of {about}{shown(total)} rows"


def percent_unknown(seen: Snapshot, about: About) -> str:
    if about.kind == FEEDS:
        return f"{numbers.fine(seen.rows_copied)} rows sent"
    return "not copied yet" if seen.phase in _BEFORE_COPY else "share copied: not known"


def rate(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{numbers.fine(value)} {unit}/s"


def lag(seen: Snapshot) -> str | None:
    return None if seen.lag_seconds is None else f"lag {numbers.duration(seen.lag_seconds)}"


def backlog(seen: Snapshot) -> str | None:
    return None if seen.backlog is None else f"backlog {numbers.fine(seen.backlog)} changes"


def converging(seen: Snapshot) -> str:
    known = {True: "converging", False: "writes come faster than they are applied"}
    return "" if seen.converging is None else known[seen.converging]


def eta_unknown(seen: Snapshot, about: About) -> str:
    """Why there is no ETA, or what comes next where none is to be expected."""
    if seen.has_ended:
        return ""
    if seen.phase is Phase.STREAMING:
        return "goes on until it is cancelled"
    if seen.is_paused:
        return "ETA when it is resumed"
    if seen.eta_reason:
        return f"no ETA: {seen.eta_reason}"
    if seen.is_silent:
        return f"no ETA: {unknown(seen)}"
    if seen.phase is Phase.VERIFYING:
        return f"{_THEN[seen.phase]}, then switched {cutover(about)}"
    return _THEN.get(seen.phase, "ETA not known yet")


def throttle(seen: Snapshot, about: About) -> str:
    """What slows it, in words that say so too when nothing does."""
    if about.kind == FEEDS:
        return feeds.throttle(seen)
    if seen.has_ended:
        return "Nothing: the run has ended."
    if seen.is_paused:
        return "It is paused: no new chunk and no cut-over; changes are still applied."
    if seen.is_silent and seen.updated_seconds_ago is not None:
        ago = numbers.duration(seen.updated_seconds_ago)
        return f"No progress for {ago}: its process is dead, stopped or cut off."
    if seen.behind:
        return f"Catch-up: {seen.behind}."
    return f"Throttled: {seen.throttled}" if seen.throttled else "Nothing: not throttled."


def tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def effort(seen: Snapshot, found: Effort) -> str:
    """How hard it may work, and what chunks come of it."""
    limits = found.limits
    fixed = f"{limits.chunk_rows:,} rows a chunk, fixed" if limits.chunk_rows else f"{limits.chunk_millis:,} ms a chunk"
    lately = ""
    if seen.chunk_rows is not None and seen.chunk_millis is not None:
        lately = f"; lately {seen.chunk_rows:,} rows in {seen.chunk_millis:,.0f} ms"
    more = f" {found.shortfall}" if found.shortfall else ""
    return f"{tasks(limits.copy_parallelism)} at a time, {fixed}{lately}.{more}"


def blocker(found: Blocker) -> str:
    """Who, in a few words."""
    if found.connection_id is None:
        return "a prepared XA branch"
    who = f"{found.user}@{found.host}, " if found.user else ""
    return f"connection {found.connection_id} ({who}{numbers.duration(found.age_seconds)})"


def cutover(about: About) -> str:
    """When it is switched."""
    if about.window:
        return f"in the window {about.window}, or when it is released"
    return "by itself" if about.cutover == "auto" else "when it is released"


def notes(seen: Snapshot, about: About) -> list[str]:
    """What is to be said in a list's row, most pressing first."""
    found = [numbers.silence(seen), _held(seen), _behind(seen), _waits(seen), _windowed(seen, about), _ended(seen)]
    return [text for text in found if text]


def _held(seen: Snapshot) -> str:
    if seen.has_ended:
        return ""
    if seen.is_cancel_requested:
        return "being cancelled"
    return "paused" if seen.is_paused else (f"throttled: {seen.throttled}" if seen.throttled else "")


def _behind(seen: Snapshot) -> str:
    return f"catch-up: {seen.behind}" if seen.behind else ""


def _waits(seen: Snapshot) -> str:
    return f"waits for: {seen.waiting_for}" if seen.waiting_for and not seen.has_ended else ""


def _windowed(seen: Snapshot, about: About) -> str:
    is_to_come = about.is_held and not about.needs_release and not seen.has_ended
    return f"switched {cutover(about)}" if is_to_come else ""


def _ended(seen: Snapshot) -> str:
    return (seen.reason or "").splitlines()[0] if seen.has_ended and seen.reason else ""


def safety(seen: Snapshot, about: About) -> str:
    """Is it safe?"""
    if about.kind == FEEDS:
        return feeds.safety(seen)
    if about.moved is not None:
        return _safety_of_move(seen, about.moved)
    if seen.phase is Phase.COMPLETE:
        return f"The new table is in place.{_original(seen)}"
    if about.is_cut:
        return "The new table is in place; cleaning up is not finished."
    if seen.phase in (Phase.FAILED, Phase.CANCELLED):
        return f"{seen.source_table} is untouched."
    return f"{seen.source_table} is untouched until the cut-over, and every write to it goes on."


def _safety_of_move(seen: Snapshot, move: Moved) -> str:
    if seen.phase is Phase.CANCELLED:
        return "The source's tables are as they were; it serves."
    if move.serving is Side.TARGET or seen.phase is Phase.COMPLETE:
        kept = "" if seen.phase is Phase.COMPLETE else " The source is kept level and takes no writes of others."
        return f"The target, {move.target_at}, serves.{kept}"
    if move.switches:
        return f"The source, {move.source_at}, serves again; the target is kept level."
    return "The source's tables are untouched until the switch, and every write to them goes on."


def serves(move: Moved) -> str:
    """Where the application writes."""
    return f"the {move.serving}, {move.source_at if move.serving is Side.SOURCE else move.target_at}"


def moved_rows(table: MovedTable) -> str:
    about = "" if table.rows_total is None else f" of about {numbers.fine(max(table.rows_total, table.rows_copied))}"
    rows = numbers.fine(table.rows_copied)
    return f"{rows} rows, all copied" if table.is_copied else f"{rows}{about} rows"


def _original(seen: Snapshot) -> str:
    return f" The original, if it was kept, is {seen.retired_table}." if seen.retired_table else ""


def expected(seen: Snapshot, about: About) -> str:
    """What, if anything, is expected of the person."""
    if seen.phase is Phase.FAILED:
        is_moved = about.moved is not None and about.is_cut
        end = f"end the way back with `vreplication complete {seen.workflow}`" if is_moved else "cancel"
        return f"Clear the failed task (or `vreplication resume`) once the cause is fixed, or {end}."
    if seen.has_ended:
        return "Nothing."
    if seen.is_cancel_requested:
        return "Nothing: it is being cancelled."
    return _expected_of_living(seen, about)


def expected_act(seen: Snapshot, about: About) -> str:
    """The one button that `expected` asks for; '': it asks for none, or leaves a choice."""
    if seen.has_ended or seen.is_cancel_requested:
        return ""
    if seen.is_paused:
        return "resume"
    # A release of one without a worker is noted and not acted on; it has to be resumed first.
    return "release" if is_waiting_for_you(seen, about) and not seen.is_silent else ""


def _expected_of_switched(move: Moved) -> str:
    if move.asked:
        return f"Nothing: {move.asked} was asked for by {move.asked_by}."
    return "Complete it when no way back is wanted any more, or reverse it."


def _expected_of_living(seen: Snapshot, about: About) -> str:
    if seen.is_paused:
        return "Resume it when it may go on."
    if seen.is_silent:
        return f"Clear its task in Airflow, or `vreplication resume {seen.workflow}`: it has no active worker."
    if about.kind == FEEDS:
        return feeds.expected(seen)
    if about.moved is not None and about.is_cut:
        return _expected_of_switched(about.moved)
    if is_leaving_tables(seen):
        return "Drop or rename the tables that came after the plan, or release it to switch without them."
    if is_waiting_for_you(seen, about):
        return "Release the cut-over."
    if about.released_by:
        return f"Released by {about.released_by}; nothing more."
    if about.window:
        return f"Nothing: it is switched in the window {about.window}. A release does not wait for that."
    return "Nothing now; it will wait for your release." if about.needs_release else "Nothing: it goes on by itself."

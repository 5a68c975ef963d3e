"""The buttons that a workflow's page shows, each with its question: what will happen, and what will not.

What must stay true: only those that make sense now; every sentence is whole, for it is all that a person reads before
the act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from vreplication.engine.effort import WHEN, Effort
from vreplication.phases import OVER, Phase
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import LEAST_CHUNK_MILLIS, MOST_CHUNK_MILLIS, MOST_PARALLELISM
from vreplication.ui import FEEDS, words
from vreplication.ui.reading import About, Kept, LeftOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A value that is asked for. `value`: as it is now.

    Numbers from `least` to `most`; else text of this shape, and '' takes it away.
    """

    name: str
    label: str
    value: int | float | str
    least: int | None = None
    most: int | None = None
    shape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """`will` and `wont` are whole sentences; {table} stands for the source table.

    yes: what agrees to it, where `label` and "it" make no sentence.
    is_expected: of the person, now; it alone stands out.
    is_asked: False for what is done at once, since the button beside it takes it back.
    """

    act: str
    label: str
    question: str
    will: str
    wont: str
    is_grave: bool = False
    fields: tuple[Field, ...] = ()
    is_asked: bool = True
    is_expected: bool = False
    yes: str = ""

    def about(self, table: str | None) -> Button:
        said = {name: getattr(self, name).replace("{table}", table or "") for name in ("question", "will", "wont")}
        return replace(self, **said)


_PAUSE = Button(
    act="pause",
    label="Pause",
    question="Pause the migration of {table}?",
    will="No new chunk is copied and the tables are not switched until it is resumed.",
    wont="Changes to {table} are still applied, so nothing is lost or has to be copied again.",
)
_RESUME = Button(
    act="resume",
    label="Resume",
    question="Resume the migration of {table}?",
    will="Its process goes on where it stopped.",
    wont="No process is started: if none is left, clear the task in Airflow or use `vreplication resume`.",
)
_RELEASE = Button(
    act="release",
    label="Release",
    question="Release the cut-over of {table}?",
    will="The tables are switched as soon as the copy is verified and caught up; writers wait for some seconds "
    "at most.",
    wont="It is not forced: unproven rows or a blocking connection still hold it. It cannot be taken back "
    "(pausing holds it again). Your name goes into the journal.",
    is_grave=True,
)
_RELEASE_WITHOUT = replace(_RELEASE, will=f"Tables that came after the plan stay on the source. {_RELEASE.will}")
_TUNE = Button(
    act="tune",
    label="Tune",
    question="How hard may the copy of {table} work?",
    will=WHEN,
    wont="Nothing is restarted or copied again, and catch-up goes first as before. Your name goes into the journal.",
)
_CANCEL = Button(
    act="cancel",
    label="Cancel",
    question="Cancel the migration of {table}?",
    will="The shadow table and everything copied so far are removed; to change the table later is to begin again.",
    wont="{table} is untouched: no row and no column of it changes.",
    is_grave=True,
)
_RELEASE_MOVE = replace(
    _RELEASE,
    question="Release the switch of {table}?",
    will="The target takes the writes as soon as all is verified and caught up; writers are refused, or wait, for some "
    "seconds at most.",
)
_CANCEL_MOVE = replace(
    _CANCEL,
    question="Cancel the move of {table}?",
    will="The tables on the target and everything copied so far are removed; to move them later is to begin again.",
    wont="The tables on the source are untouched: the application goes on there.",
)
_REVERSE = Button(
    act="reverse",
    label="Reverse",
    question="Switch {table} back to the source?",
    will="The source takes the writes again as soon as both sides are level and verified; writers are refused, or "
    "wait, for some seconds at most. The application is told by the hook.",
    wont="No write that the target has taken is lost. Your name goes into the journal.",
    is_grave=True,
)
_COMPLETE = Button(
    act="complete",
    label="Complete",
    question="Complete the move of {table}?",
    will="The reverse stream ends; on the source the tables get their retired names, or are dropped where that was "
    "asked for.",
    wont="The tables on the target stay as they are. It cannot be taken back: there is no Reverse any more.",
    is_grave=True,
)
_REVERT = replace(
    _RELEASE,
    label="Revert",
    question="Switch {table} back to its original?",
    will="The original takes the name again as soon as it is level and verified; writers wait for seconds at most. "
    "Columns that it does not have are left behind in the new table.",
    wont="No write to the columns that it has is lost. Your name goes into the journal.",
)
_END_WINDOW = replace(
    _CANCEL,
    label="End the way back",
    yes="End it",
    question="End the way back of {table}?",
    will="The original is emptied and dropped: there is no revert any more.",
    wont="{table}, as it is now, is untouched.",
)
_CLEAN_UP = Button(
    act="cleanup",
    label="Clean up",
    question="Drop the original?",
    yes="Drop it",
    will="{kept} is dropped with its rows, for good. Your name goes into the journal.",
    wont="{table}, as it is now, is untouched.",
    is_grave=True,
)
_DROP_LEFT_OUT = replace(
    _CLEAN_UP,
    act="cleanup-duplicates",
    label="Drop rows left out",
    will="{kept} is dropped, for good, with the rows that gave way to others. Your name goes into the journal.",
)
_OF_WAY_BACK = {_RELEASE: _REVERT, _CANCEL: _END_WINDOW}
_PAUSE_FEED = replace(
    _PAUSE,
    question="Pause the feed of {table}?",
    will="Nothing is sent until it is resumed; it goes on where it stands.",
    wont="No change is lost as long as the source keeps its binary log for so long.",
)
_CANCEL_FEED = replace(
    _CANCEL,
    question="Cancel the feed of {table}?",
    will="Nothing is sent any more, and it cannot be resumed: to send these tables again is to begin another feed into "
    "another topic.",
    wont="{table} is untouched; the topic and what it holds stay.",
)
_FORCE = Button(
    act="force-cancel",
    label="Cancel without Kafka",
    question="End the feed of {table} although Kafka does not answer?",
    will="Nothing of ours sends any more, and it cannot be resumed. Kafka is not told: whether the last transaction "
    "was committed is not known, and a process that is cut off may still commit what it had read.",
    wont="{table} is untouched; the topic and what it holds stay, where there still is one.",
    is_grave=True,
)
_OF_FEED = {
    _PAUSE: _PAUSE_FEED,
    _RESUME: replace(_RESUME, question="Resume the feed of {table}?"),
    _CANCEL: _CANCEL_FEED,
}
_OF_MOVE = {_RELEASE: _RELEASE_MOVE, _CANCEL: _CANCEL_MOVE}
_REMOVE = Button(
    act="remove",
    label="Remove",
    question="Take {table} out of the queue?",
    will="It is not started, and its id stays taken: to change the table after all is to submit it anew. What was to "
    "come after it stays held.",
    wont="{table} is untouched. Your name goes into the journal.",
    is_grave=True,
)
_FIRST, _EARLIER, _LATER = (
    Button(act=act, label=label, question="", will="", wont="", is_asked=False)
    for act, label in (("first", "First"), ("earlier", "Earlier"), ("later", "Later"))
)
_HELD_BACK = (Phase.PREPARING, Phase.COPYING, Phase.CATCHING_UP, Phase.VERIFYING)
"""While the server is asked what it bears."""
_LIMITS = {
    "max_load": ("Copy nothing while one of these status variables is above its limit", "Threads_running=25,…"),
    "max_lag": ("Copy nothing while a replica is further behind, seconds", "seconds"),
    "lag_replicas": ("Replicas whose lag counts; those that the server lists, where none is named", "host:port,…"),
    "nice_ratio": ("Rest after each chunk, in multiples of the time that it took", "0 to 100"),
    "latency_factor": ("How many times as long the application's commits may take; 0: work on regardless", "1.5"),
    "max_history_list": ("Copy nothing while InnoDB's history list is longer, entries", "entries"),
    "min_disk_free": ("Copy nothing while the server's disk has less free", "20G"),
    "throttle_query": ("Copy nothing while the first value of this query is above 0", "SELECT …"),
    "throttle_http": ("Copy nothing while this address answers with anything but 200", "https://…"),
    "least_copy_share": ("Share of the time in which the copy goes on although catch-up is behind", "0 to 1"),
    "critical_load": ("End, resumable, when one of these is above its limit twice in a row", "Threads_running=500,…"),
}
"""What holds a copy back, by the name of its option: its label, with the unit, and what it looks like."""
_EFFORT = {"copy_parallelism": "Copying tasks at a time", "chunk_millis": "Time a chunk may take, milliseconds"}
_LABELS = _EFFORT | {name: label for name, (label, _) in _LIMITS.items()}


def buttons(
    seen: Snapshot, about: About, effort: Effort | None = None, limits: Mapping[str, object] = MappingProxyType({})
) -> list[Button]:
    """Those that make sense now. `effort`: where it is known, it can be changed. limits: what holds it back now."""
    # Tables that have moved can be reversed or completed; of a table that was altered only the clean-up is left.
    if seen.phase in OVER or (about.is_cut and about.moved is None):
        return []
    # This process starts no workers, so one that has failed can be cancelled here and nothing else (`acts._live`).
    found = [] if seen.phase is Phase.FAILED else _of_living(seen, about, effort, limits)
    # Asked for and silent: whoever was asked is gone, and a second press carries it out in the request itself.
    if not about.is_cut and (not seen.is_cancel_requested or seen.is_silent):
        found.append(_CANCEL)
    if about.moved is not None:
        found = [_OF_MOVE.get(button, button) for button in found]
    if about.reverts:
        found = [_OF_WAY_BACK.get(button, button) for button in found]
    if about.kind == FEEDS:
        # Once a cancel was asked for: without Kafka nobody can say whether the last transaction was committed.
        found = [_OF_FEED.get(button, button) for button in found] + [_FORCE] * seen.is_cancel_requested
    act = words.expected_act(seen, about)
    return [replace(button.about(about.title(seen)), is_expected=button.act == act) for button in found]


def of_kept(about: About, seen: Snapshot, kept: Kept) -> list[Button]:
    """Behind the end, of what was put aside."""
    table = about.title(seen)
    if kept.is_open:
        back = (replace(_REVERT, act="revert"), replace(_END_WINDOW, act="end-window"))
        return [button.about(table) for button in back]
    size = f", {numbers.size(kept.nbytes)}" if kept.nbytes is not None else ""
    what = "the originals on the source" if about.moved else f"the {'new table' if about.reverts else 'original'}"
    will = _CLEAN_UP.will.replace("{kept}", kept.table)
    return [replace(_CLEAN_UP, question=f"Drop {what}{size}?", will=will).about(table)]


def of_left_out(about: About, seen: Snapshot, found: LeftOut) -> list[Button]:
    """Behind the end, of rows that gave way to others under a new unique key."""
    question = f"Drop {found.rows:,} row{'' if found.rows == 1 else 's'} left out, {numbers.size(found.nbytes)}?"
    will = _DROP_LEFT_OUT.will.replace("{kept}", found.table)
    return [replace(_DROP_LEFT_OUT, question=question, will=will).about(about.title(seen))]


def of_queue(table: str, place: int, count: int) -> list[Button]:
    """Of what waits at this place, from 1, among so many."""
    # Of the second one First would be what Earlier is.
    found = [_FIRST] * (place > 2) + [_EARLIER] * (place > 1) + [_LATER] * (place < count)
    return [*found, _REMOVE.about(table)]


def _of_living(seen: Snapshot, about: About, effort: Effort | None, limits: Mapping[str, object]) -> list[Button]:
    found = [_RESUME if seen.is_paused else _PAUSE]
    if effort and seen.phase in _HELD_BACK:
        found.append(replace(_TUNE, fields=(*_fields(effort), *_limits(limits))))
    if about.is_cut:
        return [*found, *_of_switched(about)]
    if words.is_leaving_tables(seen):
        return [*found, _RELEASE_WITHOUT]
    return [*found, *([_RELEASE] if about.is_held else [])]


def _of_switched(about: About) -> list[Button]:
    """What has been asked for once need not be asked again; where an end was asked for, nothing else comes."""
    asked = about.moved.asked if about.moved else None
    return [] if asked else [_REVERSE, _COMPLETE]


def _limits(limits: Mapping[str, object]) -> tuple[Field, ...]:
    """0 of a share or a ratio is none."""
    return tuple(
        Field(name=name, label=label, value=_plain(limits.get(name)), shape=shape)
        for name, (label, shape) in _LIMITS.items()
    )


def _plain(value: object) -> str:
    return "" if value in (None, 0) else f"{value:g}" if isinstance(value, float) else str(value)


def labelled(message: str) -> str:
    """A refusal of what Tune asks for that begins with a field's name or option, by the label that stands there."""
    named, _, words = message.partition(": ")
    label = _LABELS.get(named.removeprefix("--").replace("-", "_"))
    return f"{label}: {words}" if label else message


def _fields(effort: Effort) -> tuple[Field, ...]:
    """Chunks of a fixed size have no time to set."""
    tasks = Field(
        name="copy_parallelism",
        label=_EFFORT["copy_parallelism"],
        value=effort.limits.copy_parallelism,
        least=1,
        most=MOST_PARALLELISM,
    )
    millis = Field(
        name="chunk_millis",
        label=_EFFORT["chunk_millis"],
        value=effort.limits.chunk_millis,
        least=LEAST_CHUNK_MILLIS,
        most=MOST_CHUNK_MILLIS,
    )
    # What cannot be changed is not offered: `effort.tune` refuses it.
    return (tasks,) if effort.limits.chunk_rows else (tasks, millis)

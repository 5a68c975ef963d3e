"""The world of the rows model: one server with a table, its log, our sidecar and our processes, as one value.

What must stay true: everything that a process keeps in memory and everything that the server keeps is in `State`, and
nothing else is, so that two equal states have the same futures; a rule is only ever read, so that one taken out changes
just what it stands for.

A row is a small number: 0 none, 1 and 2 its value (under a unique key: the unique column's), 3 NULL. Keys, chunks and
XA branches are numbered, and sets of them are bit masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

NONE, NULL = 0, 3
KEY_NAMES = "ABC"
Rows = tuple[int, ...]
Changes = tuple[tuple[int, int], ...]
"""(key, value) in order; value 0 is a delete, or the old side of a key change where the next one is its new side."""
Entry = tuple[Any, ...]

# -- the ledger -------------------------------------------------------------------------------------------------------
UNOPENED, OPEN, LANDED, MATCHED = range(4)

# -- a copy task ------------------------------------------------------------------------------------------------------
CLAIMING, CLEARING, READY, OPENING, OPENED, SETTLING, READ, CHECKED, WRITING, LANDING, LATE, GONE = range(12)
HOLDS_LOCKS = (WRITING, LANDING)

# -- an XA branch -----------------------------------------------------------------------------------------------------
UNUSED, PREPARED, COMMITTING, OVER = range(4)

# -- preparation ------------------------------------------------------------------------------------------------------
NOT_BEGUN, POSITION_READ, MARKER_SENT, MARKER_RETURNED, BRANCHES_ENDED, PREPARATION_DONE = range(6)

KEPT = 1 << 7
"""In a tombstone's mask: it was found in its table by a catch-up that has just started."""


class Task(NamedTuple):
    """One attempt at a split. locks: keys of the shadow that it has locked. limit: rows that its SELECT may return."""

    split: int
    attempt: int
    token: int
    phase: int = READY
    chunk: int = -1
    rows: Rows = ()
    inserted: int = 0
    locks: int = 0
    waits: int = 0
    limit: int = 0
    has_swallowed: bool = False


class Stale(NamedTuple):
    """A catch-up that was taken over with a batch in its hands. is_past_fence: it had looked at the lease already."""

    changes: Changes
    is_past_fence: bool


class State(NamedTuple):
    """source: the table with all that is in the log; seen: what a SELECT finds. hidden: committed in the log, not yet
    visible. log: from the checkpoint on, of which `applied` entries have been. tombs: for each key the chunks for whose
    sake it is kept. dirty: for each key 0 clean, 1 dirty, 2 being copied again, 3 dirty once more. again: the dirty
    chunks that are being copied again, -1 while nothing is."""

    source: Rows
    seen: Rows
    shadow: Rows
    writes: int
    log: tuple[Entry, ...] = ()
    hidden: tuple[Entry, ...] = ()
    applied: int = 0
    todo: Changes = ()
    opened: int = 0
    tombs: Rows = ()
    held: int = 0
    held_saved: int = 0
    is_strict: bool = False
    is_fresh: bool = True
    run: int = 0
    crashes: int = 0
    stale: Stale | None = None
    late: int = 0
    ranges: Rows = ()
    chunks: tuple[tuple[int, int], ...] = ()
    attempts: Rows = ()
    tasks: tuple[Task, ...] = ()
    lease: int = 1
    branches: tuple[tuple[int, Changes], ...] = ()
    stage: int = PREPARATION_DONE
    waits: int = 0
    held_at_marker: int = -1
    dirty: Rows = ()
    dirty_chunks: int = 0
    again: int = -1
    rounds: int = 0
    has_passed_gate: bool = False
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. splits: the chunks of each; ranges: the keys of each chunk.

    attempts: claims of each split. batch: groups with rows that one batch may hold. workers: a batch is written key by
    key. unique: "same" (the source has the shadow's unique key), "added" (the ALTER brings it) or "".
    """

    starts: tuple[Rows, ...] = ((1, 0),)
    writes: int = 3
    splits: tuple[tuple[int, ...], ...] = ((0,),)
    ranges: Rows = (0b11,)
    attempts: int = 2
    batch: int = 2
    crashes: int = 0
    has_stale: bool = False
    workers: bool = False
    unique: str = ""
    key_changes: bool = True
    branches: int = 0
    branches_before: int = 0
    is_mariadb: bool = False
    prepares: bool = False
    repairs: bool = False
    begins_again: bool = False
    rounds: int = 0

    @property
    def keys(self) -> range:
        return range(len(self.starts[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rules: Any
    bounds: Bounds


def without(rules: Any, *names: str) -> Any:
    """The rules with some taken out."""
    known = {f.name for f in fields(rules)}
    assert known.issuperset(names), names
    return type(rules)(**{name: False for name in names})


def bits(mask: int) -> list[int]:
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


def mask_of(numbers: Iterable[int]) -> int:
    return sum({1 << n for n in numbers})


def put(rows: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*rows[:place], value, *rows[place + 1 :])


def with_task(s: State, number: int, **changed: Any) -> State:
    return s._replace(tasks=put(s.tasks, number, s.tasks[number]._replace(**changed)))


def changed(rows: Rows, changes: Changes) -> Rows:
    """The source's own rows after a transaction of its."""
    found = list(rows)
    for key, value in changes:
        found[key] = value
    return tuple(found)


def keys_of(changes: Changes) -> int:
    return mask_of(key for key, _ in changes)


def row_locks(s: State) -> int:
    """Keys of the shadow that landing tasks have locked."""
    locks = 0
    for task in s.tasks:
        locks |= task.locks
    return locks


def present(rows: Rows) -> int:
    return mask_of(key for key, value in enumerate(rows) if value)


def range_of(s: State, chunk: int) -> int:
    return s.ranges[chunk]


def all_matched(s: State) -> bool:
    return s.stage == PREPARATION_DONE and all(state == MATCHED for state, _ in s.chunks)


# -- words ------------------------------------------------------------------------------------------------------------


def said_row(key: int, value: int) -> str:
    return f"{KEY_NAMES[key]}={'NULL' if value == NULL else value}"


def said_rows(rows: Rows) -> str:
    found = [said_row(key, value) for key, value in enumerate(rows) if value]
    return ", ".join(found) or "nothing"


def said_keys(mask: int) -> str:
    return "{" + ",".join(KEY_NAMES[k] for k in bits(mask)) + "}"


def said_changes(changes: Changes) -> str:
    return ", ".join(said_row(k, v) if v else f"DELETE {KEY_NAMES[k]}" for k, v in changes)


def said_entry(entry: Entry) -> str:
    kind = entry[0]
    if kind == "write":
        return said_changes(entry[1])
    if kind in ("prepare", "commit", "rollback"):
        return f"XA {kind.upper()} x{entry[1]}"
    return {
        "open": "chunk {0} opened",
        "claim": "chunk {0} claimed",
        "land": "chunk {0} landed",
        "mark": "a marker",
        "start": "the start marker",
    }[kind].format(*entry[1:])

"""Names of the tables, triggers and locks that we make, built and parsed here alone.

What must stay true: the shadow's and the retired table's names sort *after* the table's own as UTF-8 bytes, because
RENAME takes its metadata locks in name order and has to wait on the table itself from its first moment
(docs/cut-over.md). A name is at most 64 characters.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
from collections.abc import Iterator

from vreplication.errors import Refused

MAX_NAME = 64
_NUMBER = re.compile(r"[0-9]+")
_PARTS = tuple(re.compile(rf"(.+)\.{part}") for part in (r"[0-9]+", r"s[0-9]+", r"s[0-9]+\.[0-9]+"))
_WORKFLOW = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")
# Tried in turn where a long name is cut: the first that sorts after what it replaces is taken.
_HIGH = ("~", "\uff5e")


def sign(connection_id: int) -> str:
    """The lock that a connection of ours holds as long as it lasts: what else has its number has no such lock."""
    return f"vreplication.connection.{connection_id}"


def shadow_table(table: str) -> str:
    """Name of the altered copy on the same server."""
    return _after(table, "__vr_new")


def retired_table(table: str, workflow: str) -> str:
    """Name of the pushed-aside original; also the sentry's. One a workflow, so that a second run finds it free."""
    return _after(table, f"__vr_old_{_digest(workflow)[:6]}")


def full_copy(table: str, workflow: str) -> str:
    """Name of the copy that has every row, where the new table has not (apply/lowest.py)."""
    return _after(table, f"__vr_all_{_digest(workflow)[:6]}")


def side_table(table: str, workflow: str) -> str:
    """Name of the table of the rows that the new one has not."""
    return _after(table, f"__vr_dup_{_digest(workflow)[:6]}")


def stand_in(table: str, workflow: str) -> str:
    """Name of the table that rows are copied to first (schema/stand_in.py)."""
    return _after(table, f"__vr_tmp_{_digest(workflow)[:6]}")


def stood_in(table: str, workflow: str) -> str:
    """The stand-in's name while it hands its rows over: nobody writes to a table of this name."""
    return _after(table, f"__vr_out_{_digest(workflow)[:6]}")


def is_stood_in(table: str) -> bool:
    """True for a name that `stood_in` gives, in any case."""
    return re.search(r"__vr_out_[0-9a-f]{6}$", table.lower()) is not None


def is_handed_over(old: str, new: str) -> bool:
    """True for the two names that `stand_in` and `stood_in` give for one table and workflow, in any case."""
    found = re.search(r"__vr_tmp_([0-9a-f]{6})$", old.lower())
    return found is not None and new.lower().endswith(f"__vr_out_{found[1]}")


def touched_table(workflow: str) -> str:
    return f"touched_{_digest(workflow)}"


def note_trigger(workflow: str, event: str) -> str:
    """Name of a trigger on a full copy. ASCII."""
    return f"vr_note_{_digest(workflow)}_{event.lower()}"


def tombstone_table(workflow: str) -> str:
    return f"tombstone_{_digest(workflow)}"


def suspect_table(workflow: str) -> str:
    return f"suspect_{_digest(workflow)}"


def dirty_table(workflow: str) -> str:
    return f"dirty_{_digest(workflow)}"


def since_table(workflow: str) -> str:
    return f"since_{_digest(workflow)}"


def stage_table(workflow: str) -> str:
    return f"stage_{_digest(workflow)}"


def is_shadow(table: str) -> bool:
    """True for a name that `shadow_table` gives, in any case."""
    return table.lower().endswith("__vr_new")


def is_copy(table: str) -> bool:
    """True for a name of `shadow_table` or the stand-in's: of no use to anybody without its workflow."""
    return re.search(r"__vr_(new|(tmp|out)_[0-9a-f]{6})$", table) is not None


def is_ours(table: str) -> bool:
    """True for a name that `shadow_table`, `retired_table`, `full_copy`, `side_table` or the stand-in's gives."""
    return re.search(r"__vr_(new|(old|all|dup|tmp|out)_[0-9a-f]{6})$", table) is not None


DENIED_EVENTS = ("INSERT", "UPDATE", "DELETE")


def deny_trigger(workflow: str, table: str, event: str) -> str:
    """Name of the trigger that denies one of DENIED_EVENTS on a table while a workflow switches it. ASCII."""
    return f"vr_deny_{_digest(workflow)}_{_digest(table)}_{event.lower()}"


def is_deny_trigger(trigger: str) -> bool:
    """True for a name that `deny_trigger` gives, of any workflow and table."""
    return re.fullmatch(r"vr_deny_[0-9a-f]{16}_[0-9a-f]{16}_(insert|update|delete)", trigger) is not None


_CARRIED = re.compile(r"__vr\d*$")


def carried_triggers(trigger: str) -> Iterator[str]:
    """Names for a trigger's copy on the new table, to be tried in turn: the old table keeps the trigger's own.

    x, x__vr, x__vr2, …, without end, but for the name that it has: a second change, or a revert, gives `x` back where
    that is free, and what an old table had that is gone is taken again.
    """
    stem = _CARRIED.sub("", trigger) or trigger
    suffixes = itertools.chain(("", "__vr"), (f"__vr{n}" for n in itertools.count(2)))
    return (name for name in (_short(stem, suffix) for suffix in suffixes) if name.lower() != trigger.lower())


def _short(stem: str, suffix: str) -> str:
    """Of at most 64 characters."""
    if len(stem) + len(suffix) <= MAX_NAME:
        return stem + suffix
    middle = f"_{_digest(stem)[:6]}"
    return stem[: MAX_NAME - len(middle) - len(suffix)] + middle + suffix


_MOVED_KEY = "__vr"


def moved_key(key: str) -> str:
    """A foreign key's name from the cut-over until its own is free. Raises Refused where it is too long."""
    if len(key) + len(_MOVED_KEY) > MAX_NAME:
        raise Refused(
            f"Foreign key {key} gets {_MOVED_KEY} behind its name within the cut-over, and is too long for that.",
            cure="Give it a shorter name (drop it and add it again).",
        )
    return key + _MOVED_KEY


def is_moved_key(key: str) -> bool:
    """True for a name that `moved_key` gives."""
    return key.endswith(_MOVED_KEY)


def given_key(key: str) -> str:
    """The name of a foreign key without what `moved_key` adds."""
    return key.removesuffix(_MOVED_KEY)


def new_workflow(table: str) -> str:
    """A fresh workflow id that says which table it is about."""
    # With a dash and eight digits at most 39 characters: `.revert` behind it (`way_back`) is an id, too, which has 48.
    stem = re.sub(r"[^A-Za-z0-9_]", "_", table)[:30].strip("_") or "table"
    return f"{stem}-{secrets.token_hex(4)}"


def check_workflow(workflow: str) -> str:
    """Return the id, or raise Refused when it could not be an id."""
    if not _WORKFLOW.fullmatch(workflow):
        raise Refused(
            f"Workflow id {workflow!r} is not valid.",
            cure="Use 1-48 letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    return workflow


def way_back(workflow: str) -> str:
    """Id of the workflow that can revert this one. Raises Refused where that is too long."""
    return check_workflow(f"{workflow}.revert")


def whose_way_back(workflow: str) -> str:
    """The workflow that this one can revert, by its id; '' where it is no way back."""
    return workflow.removesuffix(".revert") if workflow.endswith(".revert") else ""


def split_stream(stream: str) -> tuple[str, int]:
    """The workflow and the number of a stream of tables that move: the first is called as the workflow."""
    workflow, dot, number = stream.rpartition(".s")
    return (workflow, int(number)) if workflow and dot and _NUMBER.fullmatch(number) else (stream, 1)


def wholes(part: str) -> list[str]:
    """Ids of moves that would keep state of a table, a stream, or a stream's table under this id."""
    return [found[1] for shape in _PARTS if (found := shape.fullmatch(part))]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _after(table: str, suffix: str) -> str:
    """`table` + suffix, cut to 64 characters so that it still sorts after `table` by bytes."""
    if len(table) + len(suffix) <= MAX_NAME:
        return table + suffix
    middle = _digest(table)[:6] + suffix
    # One character less, for the high one by which the name sorts behind a table whose end was cut off.
    stem = table[: MAX_NAME - len(middle) - 1]
    for high in _HIGH:
        name = stem + high + middle
        if name.encode() > table.encode():
            return name
    raise Refused(f"No name of at most {MAX_NAME} characters sorts after {table!r}.", cure="Shorten the table's name.")

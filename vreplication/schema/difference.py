"""A table's definition before and after an ALTER, and what differs, line by line.

What must stay true: `after` is what SHOW CREATE TABLE will say of the table when it has switched, whether it is read
off a trial or off a shadow table; what moves by itself (the counter), and what an empty copy lacks (foreign keys), is
in neither.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby

from vreplication.mysql.quoting import ident
from vreplication.schema.model import Table
from vreplication.schema.shadow import checks_of, comparable, new_names

SAME, GONE, NEW, GAP = " ", "-", "+", "…"
_FOREIGN = re.compile(r"  CONSTRAINT `(?:[^`]|``)*` FOREIGN KEY ")
_CHECK = re.compile(r"  CONSTRAINT `(?:[^`]|``)*` CHECK ")
_CONTEXT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """mark: SAME, GONE, NEW; or GAP, and `text` says how many lines that stay are left out here."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """after: None where it can only be known when the new table is there. has_foreign: keys that neither shows."""

    before: str
    after: str | None
    has_foreign: bool = False

    @property
    def lines(self) -> tuple[Line, ...]:
        """Of the whole definition."""
        return tuple(_lines(self.before.splitlines(), (self.after or self.before).splitlines()))

    @property
    def changes(self) -> tuple[Line, ...]:
        """What differs, with a few lines around it; nothing where nothing does."""
        lines = self.lines
        return tuple(_without_gaps(lines)) if any(line.mark != SAME for line in lines) else ()

    def text(self) -> str:
        """Plain text, as diff writes it."""
        return "\n".join(f"{line.mark} {line.text}" for line in self.changes)


def definitions_of(source: Table, target: Table | None, *, is_trial: bool = False) -> Definitions:
    """target: the altered copy, of whatever name. is_trial: made by LIKE alone, which numbers MySQL's CHECKs anew."""
    after = None if target is None else target.create_sql
    if after is not None and target is not None and is_trial:
        after = _numbered(source, target.name, after)
    return Definitions(
        before=_bare(source.create_sql, source.name, source.name),
        after=None if after is None or target is None else _bare(after, target.name, source.name),
        has_foreign=any(map(_FOREIGN.match, source.create_sql.splitlines())),
    )


def _bare(create_sql: str, table: str, called: str) -> str:
    """The statement as that of the table `called`. A CHECK that MySQL named after the table is named after this one."""
    body = comparable(create_sql, table).replace("CONSTRAINT `_chk_", f"CONSTRAINT {ident(called)[:-1]}_chk_")
    lines = [line for line in body.splitlines() if not _FOREIGN.match(line)]
    return "\n".join([f"CREATE TABLE {ident(called)} (", *_commas(lines)])


def _commas(lines: Sequence[str]) -> list[str]:
    """As they have to stand when some are taken out."""
    end = next((n for n, line in enumerate(lines) if line.startswith(")")), len(lines))
    inside = [line.removesuffix(",") for line in lines[:end]]
    return [*(f"{line}," for line in inside[:-1]), *inside[-1:], *lines[end:]]


def _numbered(source: Table, trial: str, create_sql: str) -> str:
    """MySQL's CHECKs with the numbers that they will have on the shadow table, which has the source's."""
    kept = [int(name.rpartition("_")[2]) for name in new_names(source, trial).values()]
    own = re.compile(rf"CONSTRAINT `{re.escape(trial.replace('`', '``'))}_chk_(\d+)` ", re.I)
    found = sorted({int(number) for number in own.findall(create_sql)})
    if not checks_of(source.create_sql) or not found or set(found) <= set(kept):
        return create_sql
    free = count(max(kept) + 1)
    # LIKE gives the first numbers to those that the source has, in their order; higher ones are new by the ALTER.
    numbers = {n: kept[n - 1] if n <= len(kept) else next(free) for n in found}
    called = ident(trial)[:-1]
    return _in_order(own.sub(lambda match: f"CONSTRAINT {called}_chk_{numbers[int(match[1])]}` ", create_sql))


def _in_order(create_sql: str) -> str:
    """CHECKs stand in the order of their names."""
    lines = create_sql.splitlines()
    at = [n for n, line in enumerate(lines) if _CHECK.match(line)]
    for n, line in zip(at, sorted(lines[n] for n in at), strict=True):
        lines[n] = line
    return "\n".join(lines)


def _lines(before: Sequence[str], after: Sequence[str]) -> list[Line]:
    """Commas at the end tell nothing."""
    bare = [[line.removesuffix(",") for line in lines] for lines in (before, after)]
    # autojunk would leave out what stands in more than one line of a hundred, once there are 200 lines.
    matcher = difflib.SequenceMatcher(None, bare[0], bare[1], autojunk=False)
    found: list[Line] = []
    for word, a, b, c, d in matcher.get_opcodes():
        if word == "equal":
            found += [Line(mark=SAME, text=text) for text in after[c:d]]
        else:
            found += [Line(mark=GONE, text=text) for text in before[a:b]]
            found += [Line(mark=NEW, text=text) for text in after[c:d]]
    return found


def _without_gaps(lines: Sequence[Line]) -> list[Line]:
    """Lines that stay, further than a few from any that differs, become one that says how many they are."""
    changed = [n for n, line in enumerate(lines) if line.mark != SAME]
    near = {n for at in changed for n in range(at - _CONTEXT, at + _CONTEXT + 1)}
    found: list[Line] = []
    for is_near, group in groupby(enumerate(lines), key=lambda numbered: numbered[0] in near):
        part = [line for _, line in group]
        found += part if is_near or len(part) == 1 else [Line(mark=GAP, text=f"{len(part)} lines stay as they are")]
    return found

"""What the clauses behind ALTER TABLE say about columns: which are renamed, dropped, added.

What must stay true: a column is followed from source to target only by what the text says, never by a guess; text
that is not ALTER clauses alone, or that would move or lose rows on its own, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from vreplication.errors import Refused
from vreplication.mysql.quoting import ident
from vreplication.mysql.text import Token, Unreadable, has_opened_comment, tokens

_KEY_WORDS = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "CHECK", "VECTOR")
_AS_PLAIN = "Run it as a plain ALTER TABLE: it works on partitions or files, not on the table's definition."
# Run on the shadow, which has no rows yet, none of these would do what was asked for, and all would count as done.
_MAINTENANCE = {
    "EXCHANGE": "PARTITION",
    "TRUNCATE": "PARTITION",
    "DISCARD": "",
    "IMPORT": "",
    "REBUILD": "PARTITION",
    "OPTIMIZE": "PARTITION",
    "ANALYZE": "PARTITION",
    "REPAIR": "PARTITION",
    "CHECK": "PARTITION",
    "SECONDARY_LOAD": "",
    "SECONDARY_UNLOAD": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintName:
    """Where the text names a CHECK constraint (or what may be one)."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class _Found:
    renames: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    maybe_added: list[str] = field(default_factory=list)
    constraints: list[ConstraintName] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClauses:
    """The ALTER's text and what it does to columns, names as written."""

    text: str
    renames: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    maybe_added: tuple[str, ...] = ()
    """ADD COLUMN IF NOT EXISTS: new only where the source does not have it."""
    constraints: tuple[ConstraintName, ...] = ()
    """CHECK constraints that the text drops, alters or adds by name, in the order of the text."""

    def sources(self, names: tuple[str, ...]) -> dict[str, str]:
        """Lower-case target name → name of the source column that fills it, for each column that lives on."""
        renamed = {old.lower(): new for old, new in self.renames}
        gone = {name.lower() for name in self.dropped}
        # `RENAME COLUMN a TO b, ADD COLUMN a …`: the new a is empty; b alone follows the old one. No column that lives
        # on has the name of one that is added: where both are written (IF NOT EXISTS), the server adds none.
        return {renamed.get(n.lower(), n).lower(): n for n in names if n.lower() not in gone}

    def with_constraints(self, names: dict[str, str]) -> str:
        """The text with its CHECK constraints called as `names` (lower case → new) says."""
        text = self.text
        # From the end, so that the places before are still where they were found.
        for place in reversed(self.constraints):
            if new := names.get(place.name.lower()):
                text = text[: place.start] + ident(new) + text[place.end :]
        return text


def parse_alter(text: str) -> AlterClauses:
    """Read what follows `ALTER TABLE t`. Raises Refused."""
    text = text.strip().rstrip(";").rstrip()
    clauses = _split(_tokens(text))
    found = _Found()
    for clause in clauses:
        _read(clause, found)
    return AlterClauses(
        text=text,
        renames=tuple(found.renames),
        dropped=tuple(found.dropped),
        added=tuple(found.added),
        maybe_added=tuple(found.maybe_added),
        constraints=tuple(found.constraints),
    )


def dropped_constraints(text: str) -> list[str]:
    """Names behind DROP FOREIGN KEY and DROP CONSTRAINT, which may be of foreign keys."""
    found = []
    for clause in _split(_tokens(text)):
        length = 3 if _is(clause, 1, "FOREIGN") else 2
        if clause[0].is_word("DROP") and _is(clause, 1, "FOREIGN", "CONSTRAINT"):
            # With IF EXISTS the copy, which has no keys, takes it without a word, and the dropped key would be
            # carried over.
            found.append(_name(_after(clause[length:], "IF", "EXISTS")))
    return found


def _tokens(text: str) -> list[Token]:
    try:
        parts = tokens(text)
    except Unreadable as error:
        raise Refused(f"The ALTER cannot be read: {error}.", cure="Check its quotes and comments.") from None
    if not parts:
        raise Refused("The ALTER is empty.", cure="Give the clauses that would follow ALTER TABLE t.")
    # What stands in it one server runs and another passes over, by its version: what it does to columns cannot be told
    # here.
    if has_opened_comment(text):
        raise Refused("The ALTER holds a /*! … */ comment.", cure="Write what is in it as plain text.")
    if any(t.is_punct(";") for t in parts):
        raise Refused("The ALTER is more than one statement.", cure="Give the clauses of one ALTER TABLE.")
    # ALTER alone begins a clause as well: ALTER COLUMN, ALTER CHECK.
    if parts[0].is_word("ALTER") and len(parts) > 1 and parts[1].is_word("TABLE", "ONLINE", "IGNORE"):
        raise Refused("The ALTER begins with ALTER TABLE.", cure="Give only what follows the table's name.")
    return parts


def _split(parts: list[Token]) -> list[list[Token]]:
    """Cut at the commas outside parentheses."""
    clauses: list[list[Token]] = [[]]
    depth = 0
    for token in parts:
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0 and token.is_punct(","):
            clauses.append([])
        else:
            clauses[-1].append(token)
    return [clause for clause in clauses if clause]


def _read(clause: list[Token], found: _Found) -> None:
    _refuse_maintenance(clause)
    first, rest = clause[0], clause[1:]
    if first.is_word("ADD"):
        _read_add(rest, found)
    elif first.is_word("DROP"):
        _read_drop(rest, found)
    elif first.is_word("CHANGE"):
        _read_change(_after(_after(rest, "COLUMN"), "IF", "EXISTS"), found)
    elif first.is_word("MODIFY"):
        _refuse_references(rest)
    elif first.is_word("RENAME"):
        _read_rename(rest, found)
    elif first.is_word("ALTER"):
        _read_constraint(rest, found)
    elif first.is_word("ORDER"):
        raise Refused(
            "The ALTER holds ORDER BY.", cure="Leave it out: InnoDB keeps rows in the order of the primary key."
        )


def _refuse_maintenance(clause: list[Token]) -> None:
    for first, second in _MAINTENANCE.items():
        if clause[0].is_word(first) and (not second or _is(clause, 1, second)):
            raise Refused(f"{_words(clause)} cannot be done online.", cure=_AS_PLAIN)
    if clause[0].is_word("CONVERT") and _is(clause, 1, "PARTITION", "TABLE"):
        raise Refused(f"{_words(clause)} cannot be done online.", cure=_AS_PLAIN)
    if clause[0].is_word("DROP") and _is(clause, 1, "PARTITION"):
        # On the shadow, which is empty then, it would delete nothing, and the copy would bring the rows.
        raise Refused("DROP PARTITION deletes rows and cannot be done online.", cure=_AS_PLAIN)
    if clause[0].is_word("ADD", "DROP") and _is(clause, 1, "SYSTEM", "PERIOD"):
        raise Refused(
            f"{_words(clause)} cannot be done online.",
            cure="Versioned rows cannot be copied with their history; run it as a plain ALTER TABLE.",
        )


def _words(clause: list[Token]) -> str:
    return " ".join(t.text.upper() for t in clause[:2])


def _is(clause: list[Token], at: int, *words: str) -> bool:
    return len(clause) > at and clause[at].is_word(*words)


def _after(clause: list[Token], *words: str) -> list[Token]:
    """Without these optional words at its front. A name that is one of them is followed by a definition."""
    count = len(words)
    if len(clause) > count and all(t.is_word(w) for t, w in zip(clause, words, strict=False)):
        return clause[count:]
    return clause


def _name(clause: list[Token]) -> str:
    if not clause or not clause[0].is_name:
        raise Refused("The ALTER cannot be read: a column's name is missing.", cure="Check its syntax.")
    return clause[0].value


def _read_add(rest: list[Token], found: _Found) -> None:
    if _is(rest, 0, *_KEY_WORDS, "FOREIGN", "PARTITION"):
        _refuse_foreign(rest)
        _read_added_check(rest, found)
        return
    rest = _after(rest, "COLUMN")
    # Behind a column as well: MariaDB since 10.5 and MySQL since 9.0 make a foreign key of that, older MySQL passed
    # over it.
    _refuse_references(rest)
    if_missing = _is(rest, 0, "IF") and _is(rest, 1, "NOT") and _is(rest, 2, "EXISTS")
    rest = rest[3:] if if_missing else rest
    names = _listed(rest) if rest and rest[0].is_punct("(") else [_name(rest)]
    (found.maybe_added if if_missing else found.added).extend(names)


def _listed(rest: list[Token]) -> list[str]:
    """Columns of `ADD (a INT, b INT)`; keys may stand among them. What is behind it (PARTITION BY …) names none."""
    parts = _split(rest[1 : _closing(rest)])
    return [_name(part) for part in parts if not _is(part, 0, *_KEY_WORDS, "FOREIGN")]


def _closing(rest: list[Token]) -> int:
    """The place of the parenthesis that closes the first one; the end, where none does and the server refuses it."""
    depths = accumulate(token.is_punct("(") - token.is_punct(")") for token in rest)
    return next((at for at, depth in enumerate(depths) if depth == 0), len(rest))


def _refuse_foreign(rest: list[Token]) -> None:
    if any(t.is_word("FOREIGN") for t in rest[:3]):
        _refuse_references([*rest])


def _refuse_references(rest: list[Token]) -> None:
    if any(t.is_word("REFERENCES") for t in rest):
        raise Refused(
            "The ALTER adds a foreign key.",
            cure="Foreign keys cannot be moved to the new table; add it by a plain ALTER TABLE afterwards.",
        )


def _read_drop(rest: list[Token], found: _Found) -> None:
    if _is(rest, 0, "CHECK", "CONSTRAINT") and len(rest) > 1:
        _read_constraint(rest, found)
    elif not (_is(rest, 0, "PRIMARY", "INDEX", "KEY", "FOREIGN") and len(rest) > 1):
        found.dropped.append(_name(_after(_after(rest, "COLUMN"), "IF", "EXISTS")))


def _read_added_check(rest: list[Token], found: _Found) -> None:
    """`ADD CONSTRAINT name CHECK …`: it may be one that the same text drops."""
    if _is(rest, 0, "CONSTRAINT") and _is(rest, 2, "CHECK"):
        _read_constraint(rest, found)


def _read_constraint(rest: list[Token], found: _Found) -> None:
    """`{DROP | ALTER | ADD} {CHECK | CONSTRAINT} name`."""
    if _is(rest, 0, "CHECK", "CONSTRAINT"):
        named = _after(rest[1:], "IF", "EXISTS")
        if named and named[0].is_name:
            token = named[0]
            found.constraints.append(ConstraintName(name=token.value, start=token.start, end=token.end))


def _read_change(rest: list[Token], found: _Found) -> None:
    _refuse_references(rest)
    old, new = _name(rest), _name(rest[1:])
    if old.lower() != new.lower():
        found.renames.append((old, new))


def _read_rename(rest: list[Token], found: _Found) -> None:
    if _is(rest, 0, "INDEX", "KEY") and len(rest) > 1:
        return
    if not (_is(rest, 0, "COLUMN") and any(t.is_word("TO") for t in rest[2:])):
        raise Refused(
            "The ALTER renames the table itself.", cure="Rename it by RENAME TABLE before or after the workflow."
        )
    rest = _after(rest[1:], "IF", "EXISTS")
    found.renames.append((_name(rest), _name(rest[2:])))

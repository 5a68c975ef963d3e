"""Whether what --tables, --exclude and --columns name is there: with a slip of the pen a feed would send what somebody
believes to be left out.

What must stay true: each table is judged by the first pattern of --columns that matches it, as the feed does; a column
that none of a pattern's tables has refuses, and so does a pattern that can never count; tables may come later, so a
pattern that matches none of today's warns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vreplication.feed.catalog import Filter
from vreplication.feed.topics import followed
from vreplication.mysql.session import Session
from vreplication.planning.facts import Check, ok, refuse, warn

NAME = "patterns"
_SHOWN = 5
Named = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A source. tables: all of it but the system's; followed: of them those of the feed, with their columns.

    is_folded: the server keeps names of tables in lower case.
    """

    filter: Filter
    tables: frozenset[Named]
    followed: Mapping[Named, Sequence[str]] = field(default_factory=dict)
    is_folded: bool = False


def check(sources: Sequence[Any]) -> Check:
    """Of all sources together: what one of them has is there."""
    return judged(sources[0].spec, [_here(facts) for facts in sources])


def judged(spec: Any, here: Sequence[Here]) -> Check:
    """spec: its patterns of tables, as they were asked for."""
    for found in (*_never(here), *_lacking(here)):
        return found
    if missed := list(_missed(spec, here)):
        more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
        return warn(
            NAME,
            f"No table is there that matches {', '.join(missed[:_SHOWN])}{more}.",
            "Write them as the tables are called, unless such tables are to come.",
        )
    return ok(NAME, "Each pattern matches a table, and each column is there.")


def _here(facts: Any) -> Here:
    session: Session = facts.session
    columns = _columns(session, facts.tables) if facts.filter.columns else {}
    return Here(
        filter=facts.filter,
        tables=frozenset(followed(session, Filter())),
        followed={table: columns.get(table, []) for table in facts.tables},
        is_folded=(facts.server.setting("lower_case_table_names") or "0") != "0",
    )


def _columns(session: Session, tables: Iterable[Named]) -> dict[Named, list[str]]:
    schemas = sorted({schema for schema, _ in tables})
    if not schemas:
        return {}
    found: dict[Named, list[str]] = {}
    rows = session.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS"
        f" WHERE TABLE_SCHEMA IN ({','.join(['%s'] * len(schemas))})",
        tuple(schemas),
    )
    for schema, table, column in rows:
        found.setdefault((str(schema), str(table)), []).append(str(column))
    return found


# What can never count.


def _never(sources: Sequence[Here]) -> Iterator[Check]:
    for here in sources:
        for pattern in _of_tables(here.filter):
            if _is_case_alone(pattern, here, alone=len(sources) == 1):
                yield refuse(
                    NAME,
                    f"Pattern {pattern} can match no table: the server keeps their names in lower case.",
                    f"Write it as the server does, {pattern.lower()}, also where it comes from the source's URL.",
                )
    for number, pattern in enumerate(pattern for pattern, _ in sources[0].filter.columns):
        if (earlier := _earlier(number, pattern, sources)) is not None:
            yield refuse(
                NAME,
                f"--columns {pattern} never counts: {earlier} stands before it, and matches its tables first.",
                f"Name the columns of a table once, {pattern} before {earlier}.",
            )


def _of_tables(filter: Filter) -> Iterator[str]:
    yield from (*filter.tables, *filter.exclude, *(pattern for pattern, _ in filter.columns))


def _is_case_alone(pattern: str, here: Here, *, alone: bool) -> bool:
    """With other letters it would match, or might one day."""
    lower = pattern.lower()
    if not here.is_folded or lower == pattern or _matches(pattern, here):
        return False
    return alone or _matches(lower, here)


def _earlier(number: int, pattern: str, sources: Sequence[Here]) -> str | None:
    """The pattern that is before it wherever it matches; None: it counts, or matches nothing."""
    chosen = [
        here.filter.chosen(".".join(table)) for here in sources for table in here.followed if _fits(pattern, table)
    ]
    before = next((at for at in chosen if at is not None and at < number), None)
    if before is None or number in chosen:
        return None
    return sources[0].filter.columns[before][0]


# Columns.


def _lacking(sources: Sequence[Here]) -> Iterator[Check]:
    for number, (pattern, wanted) in enumerate(sources[0].filter.columns):
        tables, there = _chosen(number, sources)
        known = {column.lower() for column in there}
        who = f"{min(tables)} has no" if len(tables) == 1 else "none of its tables has a"
        for name in wanted if tables else ():
            # As the servers tell columns apart.
            if name.lower() not in known:
                yield refuse(NAME, f"--columns {pattern}: {who} column {name}.", _cure(name, there))


def _chosen(number: int, sources: Sequence[Here]) -> tuple[set[str], set[str]]:
    """Tables that this pattern decides about, and all of their columns."""
    tables, columns = set[str](), set[str]()
    for here in sources:
        for table, there in here.followed.items():
            if here.filter.chosen(".".join(table)) == number:
                tables.add(".".join(table))
                columns.update(there)
    return tables, columns


def _cure(name: str, there: Iterable[str]) -> str:
    near = _near(name, there)
    return f"Write {near}, if that is meant." if near else "Leave it out, or write it as the table has it."


# Patterns without a table.


def _missed(spec: Any, sources: Sequence[Here]) -> Iterator[str]:
    """In words, with the table that is near."""
    for option, patterns in (("--tables", spec.tables), ("--exclude", spec.exclude)):
        for pattern in patterns:
            if not any(_matches(pattern, here) for here in sources):
                yield _said(option, pattern, {table for here in sources for table in here.tables})
    for pattern, _ in sources[0].filter.columns:
        if not any(_fits(pattern, table) for here in sources for table in here.followed):
            yield _said("--columns", pattern, {table for here in sources for table in here.followed})


def _said(option: str, pattern: str, tables: Iterable[Named]) -> str:
    near = _near(pattern, (".".join(table) for table in tables))
    return f"{option} {pattern}{f' (near it is {near})' if near else ''}"


def _matches(pattern: str, here: Here) -> bool:
    wanted = Filter(tables=(pattern,))
    return any(wanted.has(*table) for table in here.tables)


def _fits(pattern: str, table: Named) -> bool:
    return Filter(columns=((pattern, ()),)).chosen(".".join(table)) is not None


def _near(name: str, there: Iterable[str]) -> str | None:
    """What is written almost so."""
    names = {each.lower(): each for each in there}
    found = difflib.get_close_matches(name.lower(), names, 1)
    return names[found[0]] if found else None

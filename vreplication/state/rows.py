"""Rows of the sidecar's tables by their columns: find, add, put, change, remove.

What must stay true: a statement's text follows from the table and the names of the columns, never from their values, so
that it is built once in a process; to build it anew costs more than to send it, and some are sent many times a second.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Executable, bindparam, delete, insert, select, update
from sqlalchemy.dialects.mysql import insert as upsert
from sqlalchemy.sql.expression import TableClause

from vreplication.mysql.session import Session
from vreplication.state.sidecar import NOW, compiled

Names = tuple[tuple[str, bool], ...]
"""Columns, and whether each is set to the server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A statement with the names of its parameters in their order; some are constants of the statement."""

    sql: str
    order: tuple[str, ...]
    constants: Mapping[str, Any]

    def args(self, where: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        given = {_where(name): value for name, value in where.items()}
        given |= {_value(name): value for name, value in (values or {}).items()}
        return tuple(given[name] if name in given else self.constants[name] for name in self.order)


def find(session: Session, of: TableClause, **where: Any) -> dict[str, Any] | None:
    """The row by column name, or the first of several; None when there is none."""
    text = _find(of, tuple(where))
    found = session.named_rows(text.sql, text.args(where))
    return found[0] if found else None


def add(session: Session, of: TableClause, **values: Any) -> None:
    """A new row. Raises mysql.session.SqlError (1062) when there is one of its key."""
    text = _add(of, _names(values))
    session.execute(text.sql, text.args({}, values))


def put(session: Session, of: TableClause, key: Mapping[str, Any], **values: Any) -> None:
    """A new row of `key` and `values`; where there is one of its key, `values` take the place of what it has."""
    text = _put(of, _names(key), _names(values))
    session.execute(text.sql, text.args(key, values))


def change(session: Session, of: TableClause, where: Mapping[str, Any], **values: Any) -> int:
    """Returns how many rows were changed."""
    text = _change(of, tuple(where), _names(values))
    return session.execute(text.sql, text.args(where, values))


def remove(session: Session, of: TableClause, **where: Any) -> int:
    """Returns how many rows were removed."""
    text = _remove(of, tuple(where))
    return session.execute(text.sql, text.args(where))


@functools.cache
def _find(of: TableClause, where: tuple[str, ...]) -> _Text:
    return _text(select(of).where(*_equal(of, where)))


@functools.cache
def _add(of: TableClause, values: Names) -> _Text:
    return _text(insert(of).values(_set(values)))


@functools.cache
def _put(of: TableClause, key: Names, values: Names) -> _Text:
    row = {name: NOW if is_now else bindparam(_where(name)) for name, is_now in key} | _set(values)
    return _text(upsert(of).values(row).on_duplicate_key_update(_set(values)))


@functools.cache
def _change(of: TableClause, where: tuple[str, ...], values: Names) -> _Text:
    return _text(update(of).where(*_equal(of, where)).values(_set(values)))


@functools.cache
def _remove(of: TableClause, where: tuple[str, ...]) -> _Text:
    return _text(delete(of).where(*_equal(of, where)))


def _text(statement: Executable) -> _Text:
    found = compiled(statement)
    return _Text(sql=str(found), order=tuple(found.positiontup or ()), constants=dict(found.params))


def _names(values: Mapping[str, Any]) -> Names:
    # By identity: between SQLAlchemy's expressions == only makes another expression.
    return tuple((name, value is NOW) for name, value in values.items())


def _set(values: Names) -> dict[str, Any]:
    return {name: NOW if is_now else bindparam(_value(name)) for name, is_now in values}


def _equal(of: TableClause, where: tuple[str, ...]) -> list[Any]:
    # Parameters have names of their own here, for a column may be asked for and set in one statement (moves.decide).
    return [of.c[name] == bindparam(_where(name)) for name in where]


def _where(name: str) -> str:
    return f"where_{name}"


def _value(name: str) -> str:
    return f"value_{name}"

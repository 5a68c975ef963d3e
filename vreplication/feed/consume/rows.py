"""Rows of a feed as statements on the target.

A batch of rows of a table with a key is what it leaves behind: of each key the last change, all deletions before all
writes (the reasons are those of apply/batch.py). A table without one gets each change in turn, and a row that is to go
must be there.

What must stay true: a row that comes again leaves the same behind; every value is a literal in plain ASCII, whatever
the message holds; a value that the target would store otherwise ends the consumer, and so does a column that it lacks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from vreplication.errors import Refused, Terminal
from vreplication.feed.consume import computed, fitting, kept
from vreplication.feed.consume.asking import Asking, same_key
from vreplication.feed.consume.waiting import Waiting
from vreplication.feed.formats.open import Cell, Change, read_row
from vreplication.mysql import values
from vreplication.mysql.quoting import binary, ident, idents, qualified, text
from vreplication.mysql.session import DUPLICATE, LockWait, Session, SqlError, is_passing
from vreplication.schema.introspect import introspect
from vreplication.schema.losses import loss
from vreplication.schema.model import Column, Table

# What matches goes into SQL as it is, a number without quotes: so nothing else may, whatever the message holds.
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?")
_PLAIN = re.compile(r"[0-9A-Za-z:. -]*")
_KEYS = 500
"""So many keys are deleted by one statement."""
_FLOAT = struct.Struct("<f")
Literal = Callable[[Any], str]
Key = tuple[str, ...]
Image = dict[str, Cell]
_LARGE = 3e38


def _number(value: Any) -> str:
    if not _NUMBER.fullmatch(shown := str(value)):
        raise Terminal(f"A row of the feed has {shown[:40]!r} for a number.")
    return shown


def _plain(value: Any) -> str:
    if not _PLAIN.fullmatch(value):
        raise Terminal(f"A row of the feed has {value[:40]!r} for a time or a number.")
    return f"'{value}'"


def _approximate(value: float) -> str:
    """With an exponent: without one the server would read a DECIMAL."""
    shown = repr(float(value))
    return shown if "e" in shown else f"{shown}e0"


def _float(value: float) -> str:
    # The shortest text of the largest FLOAT is a little more than that, and a strict session refuses it.
    return _approximate(value if abs(value) < _LARGE else _FLOAT.unpack(_FLOAT.pack(value))[0])


_LITERALS: dict[str, Literal] = {
    **dict.fromkeys(("Tiny", "Short", "Medium", "Long", "LongLong", "Year", "Bit", "Decimal"), _number),
    **{"Float": _float, "Double": _approximate},
    **dict.fromkeys(("Date", "Time", "DateTime", "Timestamp", "UUID", "INET4", "INET6"), _plain),
    **dict.fromkeys(("String", "Text", "Enum", "Set", "JSON"), text),
    **dict.fromkeys(("Binary", "Blob", "Vector", "Geometry"), binary),
}


def _literal(cell: Cell) -> str:
    if cell.value is None:
        return "NULL"
    try:
        return _LITERALS[cell.type](cell.value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Terminal(f"A row of the feed has a {cell.type} that cannot be read.") from None


def _exact(cell: Cell) -> str:
    """As `_literal`, to be compared with: a server makes a DOUBLE of a FLOAT then, with all that is behind its text."""
    if cell.type != "Float" or cell.value is None:
        return _literal(cell)
    return _approximate(_FLOAT.unpack(_FLOAT.pack(cell.value))[0])


def _same(column: Column, cell: Cell) -> str:
    """SQL that is true for exactly this value, whatever the column's collation calls the same."""
    name = ident(column.name)
    if cell.value is None:
        return f"{name} IS NULL"
    if cell.type == "Float":
        return f"{name}={_exact(cell)}"
    # MySQL takes bare text for a JSON string there, which no object or array is equal to.
    if cell.type == "JSON" and column.data_type == "json":
        return f"{name}=CAST({text(cell.value)} AS JSON)"
    if cell.type in ("String", "Text", "JSON", "Enum", "Set"):
        bare = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
        return f"{bare}={binary(cell.value.encode())}"
    if cell.type in ("Geometry", "Vector"):
        return f"CAST({name} AS BINARY)={_literal(cell)}"
    return f"{name}={_literal(cell)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How rows of one shape are written. names: of the columns that take a value; key: by which rows are told apart.

    is_replaced: the target has that key, too, so that REPLACE takes the old row out. floats: of the key, FLOATs there.
    fractions: as of fitting.py; computed: as of computed.py; kept: as of kept.py.
    """

    table: Table
    names: tuple[str, ...]
    key: tuple[str, ...]
    is_replaced: bool
    floats: frozenset[str]
    fractions: tuple[tuple[str, int], ...]
    computed: tuple[str, ...]
    kept: tuple[Column, ...]

    @property
    def target(self) -> str:
        return qualified(self.table.schema, self.table.name)

    def values(self, image: Image) -> str:
        """Raises Terminal."""
        found = [_literal(image[name]) for name in self.names]
        if self.fractions:
            fitting.check_fractions(self.table, image, self.fractions)
        if "NULL" in found:
            fitting.check_nulls(self.table, image, self.names)
        return ",".join(found)

    def key_of(self, image: Image) -> Key:
        if self.floats:
            return tuple([(_exact if name in self.floats else _literal)(image[name]) for name in self.key])
        return tuple([_literal(image[name]) for name in self.key])

    def only(self, key: Key, image: Image) -> str:
        """SQL that is true of this row, if the target has computed what the source has."""
        found = [f"{ident(name)}={value}" for name, value in zip(self.key, key, strict=True)]
        found += [_same(self.table.column(name), image[name]) for name in self.computed]
        return f"({' AND '.join(found)})"


class Target:
    """Tables as they are until `forget`. asking: for rows of which only the key came; check: raises what ends it."""

    def __init__(
        self, session: Session, asking: Asking | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        self._session, self._check = session, check
        self._asking = asking or Asking()
        self._tables: dict[tuple[str, str], Table] = {}
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._spellings: dict[tuple[str, str], tuple[str, str]] = {}

    def forget(self) -> None:
        """A DDL has been run."""
        self._tables.clear()
        self._plans.clear()
        self._spellings.clear()

    def write(self, rows: Iterable[Waiting]) -> None:
        """In a transaction. Raises LockWait, Terminal."""
        batches: dict[int, _Batch] = {}
        for row in rows:
            self._check()
            found = read_row(row.key, row.value)
            change = found if found.only is None else self._whole(found)
            if change is None:
                continue
            plan = self._plan(change)
            # By the table, whose rows stay in their order; between tables none counts, for no foreign key is checked.
            batch = batches.get(id(plan.table))
            if batch is not None and batch.plan is not plan:
                # Rows of another shape come behind these.
                self._run(batches.pop(id(plan.table)))
                batch = None
            if batch is None:
                batch = batches[id(plan.table)] = _batch(plan)
            batch.add(change)
            batch.is_ahead |= found.only is not None
        for batch in batches.values():
            self._run(batch)

    def _whole(self, change: Change) -> Change | None:
        image = change.after or {}
        return self._asking.whole(change, same_key([(name, _exact(cell)) for name, cell in image.items()]))

    def _run(self, batch: _Batch) -> None:
        table = batch.plan.table
        try:
            batch.run(self._session, self._check)
        except SqlError as error:
            if error.code == DUPLICATE and batch.plan.key:
                # REPLACE meets a row that another connection is writing at this moment; apply/writer.py has the reason.
                raise LockWait(error.message) from None
            if is_passing(error):
                raise
            # Lost connections and lock waits are no SqlError: what is left fails again however often it is tried.
            raise Terminal(f"Rows of {table.schema}.{table.name} cannot be written: {error.message}.") from None

    def _plan(self, change: Change) -> _Plan:
        image = change.before if change.after is None else change.after
        if image is None:
            raise Terminal(f"A row of {change.schema}.{change.table} in the feed has no values.")
        # Of a large row that goes the key may be all that was sent; nothing of it is written.
        is_key = change.after is None and all(cell.is_unique for cell in image.values())
        key = change.schema, change.table, is_key, *((name, cell.is_unique) for name, cell in image.items())
        if (found := self._plans.get(key)) is None:
            found = self._plans[key] = self._made(change, image, is_key=is_key)
        return found

    def _made(self, change: Change, image: Image, *, is_key: bool) -> _Plan:
        table = self._table(change.schema, change.table)
        for name in image:
            if not table.has_column(name):
                raise Terminal(
                    f"The target's table {table.schema}.{table.name} has no column {name}, which the feed has.",
                    cure="Add it there, or leave it out of the feed.",
                )
        fitting.check(table, image)
        key = tuple(name for name, cell in image.items() if cell.is_unique)
        return _Plan(
            table=table,
            # A server takes no value for a generated column; whether its own is the source's computed.py looks.
            names=tuple(name for name in image if not table.column(name).generated),
            key=key,
            is_replaced=_has_key(table, key),
            floats=frozenset(name for name in key if table.column(name).data_type == "float"),
            fractions=fitting.fractions(table, image),
            # Without a key nothing is replaced: who is in the way of a row ends the consumer.
            computed=computed.compared(table, image) if key and not is_key else (),
            kept=kept.columns(table, image.keys()) if key and not is_key else (),
        )

    def _table(self, schema: str, name: str) -> Table:
        found = self._tables.get((schema, name))
        if found is None:
            self._check_spelling(schema, name)
            try:
                found = introspect(self._session, schema, name)
            except Refused:
                raise Terminal(
                    f"The target has no table {schema}.{name}, of which the feed has a row.",
                    cure="Create it there as the source has it, or leave it out of the feed.",
                ) from None
            self._tables[schema, name] = found
        return found

    def _check_spelling(self, schema: str, name: str) -> None:
        """Two tables that differ in case alone are one where the server keeps names in lower case. Raises Terminal."""
        known = self._spellings.setdefault((schema.lower(), name.lower()), (schema, name))
        if known != (schema, name) and int(self._session.value("SELECT @@lower_case_table_names")):
            raise Terminal(
                f"The feed has rows of {'.'.join(known)} and of {schema}.{name}, which are one table on the target.",
                cure="Leave one out of the feed, or use a target with lower_case_table_names=0.",
            )


def _has_key(table: Table, key: tuple[str, ...]) -> bool:
    wanted = {name.lower() for name in key}
    whole = [each for each in table.keys if each.is_unique and not any(p.prefix or p.expression for p in each.parts)]
    return any({name.lower() for name in each.columns} == wanted for each in whole)


# What is done with the rows of one shape.


class _Batch:
    """Rows of a table with a key. None: it goes. is_ahead: some were asked, and are what they become later."""

    def __init__(self, plan: _Plan) -> None:
        self.plan = plan
        self.is_ahead = False
        self._last: dict[Key, str | None] = {}
        self._only: dict[Key, str] = {}
        self._origins = kept.Origins()

    def add(self, change: Change) -> None:
        before = None if change.before is None else self.plan.key_of(change.before)
        after = None if change.after is None else self.plan.key_of(change.after)
        if self.plan.kept:
            self._origins.note(before, after)
        if before is not None and before != after:
            self._last[before] = None
        if after is not None and change.after is not None:
            self._last[after] = self.plan.values(change.after)
            if self.plan.computed:
                self._only[after] = self.plan.only(after, change.after)

    def run(self, session: Session, check: Callable[[], None]) -> None:
        check()
        there = {key: row for key, row in self._last.items() if row is not None}
        more = self._kept(session, there)
        # Where the target lacks the feed's key REPLACE takes nothing out, and the row would be there twice.
        gone = [key for key, row in self._last.items() if row is None or not self.plan.is_replaced]
        for part in values.statements([_equal(self.plan.key, key) for key in gone], max_rows=_KEYS):
            session.execute_raw(f"DELETE FROM {self.plan.target} WHERE {_any(self.plan.key, part)}")
        for rows in self._written_together(there):
            self._replace(session, rows, more)
            only = [self._only[key] for key in rows if key in self._only]
            computed.check(session, self.plan.table, self.plan.computed, only)

    def _kept(self, session: Session, there: dict[Key, str]) -> dict[Key, str]:
        """Of rows that are there what the target alone has."""
        plan = self.plan
        places = {key: self._origins.of(key) for key in there} if plan.kept else {}
        return kept.read(session, plan.table, plan.kept, plan.key, places)

    def _replace(self, session: Session, rows: dict[Key, str], more: dict[Key, str]) -> None:
        if new := [row for key, row in rows.items() if key not in more]:
            _write(session, self.plan, new, "REPLACE")
        if known := [f"{row},{more[key]}" for key, row in rows.items() if key in more]:
            names = (*self.plan.names, *(column.name for column in self.plan.kept))
            _write(session, self.plan, known, "REPLACE", names)

    def _written_together(self, there: dict[Key, str]) -> list[dict[Key, str]]:
        """One by one where a row may take out another that gives a unique value up later: it comes again by then."""
        if self.is_ahead and self.plan.computed:
            return [{key: row} for key, row in there.items()]
        return [there]


class _KeylessBatch(_Batch):
    """Rows of a table without a key, in turn. A row goes by all of its values."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__(plan)
        self._steps: list[tuple[bool, str]] = []

    def add(self, change: Change) -> None:
        if change.before is not None:
            column = self.plan.table.column
            same = " AND ".join(_same(column(name), cell) for name, cell in change.before.items())
            self._steps.append((False, same))
        if change.after is not None:
            self._steps.append((True, self.plan.values(change.after)))

    def run(self, session: Session, check: Callable[[], None]) -> None:
        for is_write, steps in groupby(self._steps, key=lambda step: step[0]):
            if is_write:
                _write(session, self.plan, [row for _, row in steps], "INSERT")
            else:
                self._delete(session, [same for _, same in steps], check)

    def _delete(self, session: Session, all_same: list[str], check: Callable[[], None]) -> None:
        table = self.plan.table
        for same in all_same:
            # Each of them may read the whole table.
            check()
            # Of several rows that are the same one goes, as on the source.
            if session.execute_raw(f"DELETE FROM {self.plan.target} WHERE {same} LIMIT 1") != 1:
                raise Terminal(
                    f"A row of {table.schema}.{table.name}, which has no key, is not there to be deleted.",
                    cure="The target's table is not the source's any more: copy it again.",
                )


def _batch(plan: _Plan) -> _Batch:
    return _Batch(plan) if plan.key else _KeylessBatch(plan)


def _equal(names: tuple[str, ...], key: Key) -> str:
    if len(names) == 1:
        return key[0]
    return "(" + " AND ".join(f"{ident(name)}={value}" for name, value in zip(names, key, strict=True)) + ")"


def _any(names: tuple[str, ...], parts: list[str]) -> str:
    """Spelled out as OR of ANDs: both optimizers look each up, which they do not for row constructors."""
    return f"{ident(names[0])} IN ({','.join(parts)})" if len(names) == 1 else " OR ".join(parts)


def _write(session: Session, plan: _Plan, rows: list[str], verb: str, names: tuple[str, ...] = ()) -> None:
    def look(_: int) -> None:
        if session.warning_count:
            _refuse_losses(session, plan.table)

    head = f"{verb} INTO {plan.target} ({idents(names or plan.names)})"
    values.write(session, head, (f"({row})" for row in rows), packet=values.packet_of(session), after=look)


def _refuse_losses(session: Session, table: Table) -> None:
    for warning in session.warnings():
        if lost := loss(table, warning):
            raise Terminal(f"A row of {table.schema}.{table.name} would lose something on the target: {lost}.")

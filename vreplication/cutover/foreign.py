"""Foreign keys that go over to the new table: moved while no row of the tables can change, before RENAME.

RENAME takes the references along: children that refer to the new table before it refer to the table in use behind it.
The new table gets the old one's own keys likewise. A schema has each name once, so a key has another one meanwhile.

`KeyMove` is MariaDB's; MySQL's is in cutover/alone.py. What comes later is the same for both.

What must stay true:
- Before the first of them is moved catch-up has lost its lease, durably: it writes nothing to a table that has keys,
  and does not begin on one (engine/job.py).
- Until RENAME is done children are put back by whoever finds that it is not; only then catch-up goes on.
- What refers to what is looked up, by the tables, never remembered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from vreplication.cutover.identity import table_identity
from vreplication.cutover.waiter import Waiter
from vreplication.errors import Terminal, VReplicationError
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import ConnectionLost, LockWait, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.planning.foreign import Family, family, referring
from vreplication.schema.foreign import ForeignKey, Named, alters, keys_of, orphans
from vreplication.schema.introspect import exists
from vreplication.state import lease
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow

WAIT_SECONDS = 1
"""How long one ALTER waits for its table, with those who want it queued behind: then it is tried again."""
_ANSWER_SECONDS = 5


def is_asked(row: WorkflowRow) -> bool:
    return row.spec.get("foreign_keys") == "rebuild"


def table(row: WorkflowRow) -> Named:
    return row.source_schema, row.source_table


def shadow(row: WorkflowRow) -> Named:
    return row.source_schema, row.shadow_table


def retired(row: WorkflowRow) -> Named:
    return row.source_schema, row.retired_table


def has_keys(session: Session, row: WorkflowRow) -> bool:
    """Asked for, and there are some."""
    return is_asked(row) and family(session, table(row), is_mariadb=is_mariadb(session)).has_keys


class KeyMove:
    """Of one attempt. maker: a session that alters tables; guards: each holds off writers of one of the relatives."""

    def __init__(
        self, row: WorkflowRow, found: Family, maker: Session, guards: Sequence[Session], patience_seconds: int
    ) -> None:
        """patience_seconds: how long a guard waits for its lock."""
        self.row = row
        self.family = found
        self.maker = maker
        self._guards = guards
        self._patience = patience_seconds
        self._guarding: list[Waiter] = []
        self._fenced: Lease | None = None
        self._holder: Session | None = None
        """Who holds the children's locks while they refer to the new table and RENAME is not done."""
        # Without checks ADD FOREIGN KEY reads no row, and ALGORITHM=INSTANT takes it: 8 ms for 512,000 rows, while
        # writers wait.
        maker.execute_raw(f"SET SESSION foreign_key_checks=0, lock_wait_timeout={WAIT_SECONDS}")

    def lock_sql(self) -> str:
        """What the locker takes; parents are taken along for writing."""
        tables = (table(self.row), retired(self.row), *self.family.children)
        return f"LOCK TABLES {', '.join(f'{qualified(*each)} WRITE' for each in tables)}"

    def guard(self, observer: Session) -> None:
        """The locker lets the relatives go before RENAME is done, and before the old table has lost its keys.

        Who waits for this lock goes before all who want to write there; and it takes no other table along.
        """
        for session, relative in zip(self._guards, self.family.relatives, strict=True):
            session.execute_raw(f"SET SESSION lock_wait_timeout={self._patience}")
            self._guarding.append(Waiter(session, f"FLUSH TABLES {qualified(*relative)} WITH READ LOCK"))
        self.check_guarded(observer)

    def check_guarded(self, observer: Session) -> None:
        """Raises Transient when one of them does not wait, or not any more."""
        for waiter in self._guarding:
            waiter.wait_until_pending(observer)

    def free(self, spare: Session) -> None:
        guarding, self._guarding = self._guarding, []
        for waiter in guarding:
            waiter.end(spare)

    def fence_catch_up(self, session: Session) -> None:
        """Under the table's lock, when catch-up holds."""
        # A copy that lags and has the keys makes the application's own deletes fail: 1451 for the copy's row
        # (measured).
        token = lease.depose(session, self.row.id, lease.REPLICATE)
        self._fenced = Lease(workflow=self.row.id, role=lease.REPLICATE, token=token)
        reach("cutover.catch_up_fenced")

    def check_fenced(self, observer: Session) -> None:
        assert self._fenced is not None
        lease.fence_deposed(observer, self._fenced)

    def check_same(self, observer: Session) -> None:
        """Raises LockWait when a key has come or gone since the tables to be locked were looked up."""
        # Under the lock: a key that came since is not among the tables that are locked, and RENAME would leave it with
        # the old one.
        if family(observer, table(self.row), is_mariadb=True) != self.family:
            raise LockWait("Foreign keys from or to the table have changed a moment ago.")

    def give(self) -> None:
        """The new table gets the keys of the old one. Nobody writes to it."""
        if self.family.own:
            self._run(self.maker, alters(self.maker, shadow(self.row)).added(self.family.own))
            reach("cutover.key_given")

    def move(self, holder: Session) -> None:
        """The children refer to the new table. holder: of their locks, and of the old table's."""
        # By the session that holds the children's locks; any other one would wait for them.
        holder.execute_raw("SET SESSION foreign_key_checks=0")
        self._holder = holder
        for child in self.family.children:
            self._point(holder, child, shadow(self.row))
            reach("cutover.key_moved")

    def _point(self, session: Session, child: Named, to: Named) -> None:
        keys = [key for key in self.family.theirs if key.child == child]
        self._run(session, alters(session, child).moved(keys, to))

    def _run(self, session: Session, sql: str) -> None:
        try:
            session.execute_raw(sql)
        except SqlError as error:
            raise Terminal(f"The foreign keys of {self.row.source_table} cannot be carried over: {error}") from None

    def let_go(self) -> None:
        """RENAME is next, or done: from here on who finds that it has not been puts the keys back."""
        self._holder = None

    def put_back(self) -> None:
        """Of an attempt that ends here: before the children's locks go, if their session still can."""
        holder, self._holder = self._holder, None
        if holder is not None:
            with contextlib.suppress(VReplicationError):
                _point_back(holder, self.row, self.family.children)

    def drop_old(self, observer: Session, spare: Session) -> None:
        """Of the old table, which is out of use: while it has keys, rows of its parents cannot be deleted.

        The guards go while it waits: newer servers (11.8) take the parents' locks for it, which it gets before writers.
        """
        keys = keys_of(self.maker, retired(self.row))
        dropping = Waiter(self.maker, alters(self.maker, retired(self.row)).dropped(keys)) if keys else None
        try:
            if dropping:
                dropping.wait_until_pending(observer)
        finally:
            self.free(spare)
            if dropping:
                dropping.finish(spare, WAIT_SECONDS + _ANSWER_SECONDS)


def _point_back(session: Session, row: WorkflowRow, children: Sequence[Named]) -> None:
    """Keys that an attempt has moved refer to the old table again; where that has its own still, others go."""
    for child in children:
        keys = keys_of(session, child)
        names = {key.name for key in keys}
        found = [key for key in keys if key.parent == shadow(row) and key.is_moved]
        if doubled := [key for key in found if key.other_name in names]:
            session.execute_raw(alters(session, child).dropped(doubled))
        if moved := [key for key in found if key.other_name not in names]:
            session.execute_raw(alters(session, child).moved(moved, table(row)))


def drop_all(session: Session, of: Named) -> None:
    if keys := keys_of(session, of):
        session.execute_raw(alters(session, of).dropped(keys))


# -- by whoever comes later -------------------------------------------------------------------------------------------

Waiting = Callable[[str], None]
"""Told why something could not be done yet; it waits, and raises when it is not to be tried again."""


def undo(url: SourceUrl, row: WorkflowRow, our_lease: Lease, wait: Waiting) -> None:
    """Put the keys back, of an attempt that did not switch, whose connections are gone.

    Raises Superseded when the table is another driver's by now.
    """
    while is_asked(row):
        try:
            with connect(url) as session, connect(url) as other, other.transaction():
                # Its row stays locked in another session, for an ALTER commits: nobody takes over until the keys are
                # back.
                lease.fence(other, our_lease)
                undo_now(session, row)
            return
        except LockWait as error:
            wait(f"foreign keys are not put back yet: {error.message}")


def undo_now(session: Session, row: WorkflowRow) -> None:
    """Once. Raises LockWait when somebody uses one of the tables."""
    if not is_asked(row) or not exists(session, *shadow(row)):
        return
    with _unchecked(session):
        _put_back(session, row)


def _put_back(session: Session, row: WorkflowRow) -> None:
    children = {key.child for key in _referring(session, shadow(row))}
    put_back(session, row, sorted(children))


def put_back(session: Session, row: WorkflowRow, children: Sequence[Named]) -> None:
    """children: of the new table."""
    # First: until these refer to the table in use again, rows for its newest parents are refused (1452).
    _point_back(session, row, children)
    drop_all(session, shadow(row))


def _referring(session: Session, to: Named) -> tuple[ForeignKey, ...]:
    return referring(session, to, is_mariadb=is_mariadb(session))


@contextlib.contextmanager
def _unchecked(session: Session) -> Iterator[None]:
    """Inside the block keys are made without a look at the rows; behind it the session is as it was."""
    checks, seconds = session.rows("SELECT @@SESSION.foreign_key_checks, @@SESSION.lock_wait_timeout")[0]
    # With checks an ALTER of a key reads all rows of the child, and is refused as INSTANT or INPLACE.
    session.execute_raw(f"SET SESSION foreign_key_checks=0, lock_wait_timeout={WAIT_SECONDS}")
    try:
        yield
    finally:
        with contextlib.suppress(ConnectionLost):
            session.execute_raw(f"SET SESSION foreign_key_checks={checks}, lock_wait_timeout={seconds}")


def check_none(session: Session, row: WorkflowRow) -> None:
    """Before rows are written to the new table. Raises LockWait: its driver is about to put them back."""
    if not is_asked(row):
        return
    if keys_of(session, shadow(row)) or _referring(session, shadow(row)):
        raise LockWait(f"{row.shadow_table} has foreign keys, so nothing is written to it now.")


def finish(url: SourceUrl, row: WorkflowRow, wait: Waiting) -> None:
    """Behind the switch: the old table loses its keys, and the new one's get the names that they are to have."""
    while is_asked(row):
        try:
            with connect(url) as session:
                return _finish(session, row)
        except LockWait as error:
            wait(f"foreign keys do not have their names yet: {error.message}")


def _finish(session: Session, row: WorkflowRow) -> None:
    with _unchecked(session):
        # Before the names: a schema has each name once, and the old table's keys have them still.
        if table_identity(session, *retired(row), is_mariadb(session)) == row.source_identity:
            drop_all(session, retired(row))
        _follow(session, row)
        give_names(session, row)


def give_names(session: Session, row: WorkflowRow) -> None:
    """Keys of and to the table get their own, one table after the other."""
    found = family(session, table(row), is_mariadb=is_mariadb(session))
    keys = [key for key in (*found.own, *found.theirs) if key.is_moved]
    for child in sorted({key.child for key in keys}):
        session.execute_raw(alters(session, child).moved([key for key in keys if key.child == child]))
        reach("cutover.key_named")


def _follow(session: Session, row: WorkflowRow) -> None:
    """A key may refer to the old table: one that was made in the instant of the switch, or whose double is in use."""
    for key in _referring(session, retired(row)):
        if any(other.name == key.other_name for other in keys_of(session, key.child)):
            session.execute_raw(alters(session, key.child).dropped([key]))
        else:
            session.execute_raw(alters(session, key.child).moved([key], table(row)))


def verify(session: Session, row: WorkflowRow) -> tuple[list[ForeignKey], list[str]]:
    """The keys that were looked at, and for each with rows that have no parent one sentence."""
    found = family(session, table(row), is_mariadb=is_mariadb(session))
    keys = [*found.own, *found.theirs]
    return keys, [words for key in keys if (words := said(key, orphans(session, key)))]


def whole(keys: Sequence[ForeignKey]) -> str:
    return f"Every row has its parent: {', '.join(map(str, keys))}." if keys else "There are none any more."


def said(key: ForeignKey, values: Sequence[str]) -> str:
    if not values:
        return ""
    columns = ", ".join(key.columns)
    return (
        f"Rows of {'.'.join(key.child)} have no parent in {'.'.join(key.parent)} by foreign key {key.name}: "
        f"{columns} = {'; '.join(values)}."
    )

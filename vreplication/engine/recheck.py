"""Between the verification and the cut-over: what is written is compared again, to the last key under the lock.

What must stay true: no cut-over without a verification that still counts, and without every key that was written since
having been seen equal, the last ones under the cut-over's lock; a row that differs is copied again once, then the
workflow ends and names it, with the source as it was. All of this is of one table, whose state is at home, which may be
another server than the source's or the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vreplication.errors import BadValue, SourceChanged, Terminal, Transient
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import started_at
from vreplication.mysql.session import Session
from vreplication.mysql.values import readable, readable_key, split_literals
from vreplication.schema.introspect import read_create_sql
from vreplication.schema.model import Table, TableMapping
from vreplication.schema.shadow import definition_digest
from vreplication.settings import LONG_IDLE_SECONDS, MAX_HOT_KEYS, WORK_SECONDS
from vreplication.state import journal, lease, since, verdicts
from vreplication.state.ledger import KeyRange
from vreplication.verify.hot import compare_hot
from vreplication.verify.rounds import Examiner, markers_of
from vreplication.verify.since import SinceRounds, locked_keys

MANY_KEYS = 20_000
"""So many keys are compared while the workflow waits at the gate: a cut-over then has few to compare."""
_SHOWN = 10
_START_SECONDS = 2
"""The moment of a server's start is known in whole seconds, and read in two statements."""


class Mismatch(Terminal):
    """Rows compared under the cut-over's lock differ."""


@dataclass(slots=True, kw_only=True)
class Recheck:
    """Of one table and one driver. copy_again: copies ranges once more, cleared before.

    table: its id at home; workflow: whose journal, markers and driver these are. home: the driver's session there, as
    it is by then. is_mariadb: the source is. share: among so many tables the time under the lock is divided.
    copied: see `SinceRounds`.
    """

    route: Route
    mapping: TableMapping
    table: str
    workflow: str
    is_mariadb: bool
    home: Callable[[], Session]
    check: Callable[[], None]
    copy_again: Callable[[Sequence[KeyRange]], None]
    share: int = 1
    copied: str | None = None
    repaired: set[str] = field(default_factory=set)

    def until_small(self, *, with_sample: bool) -> None:
        """Until few enough keys are left for the lock. Raises Transient, or BadValue naming rows that stay wrong."""
        if is_waived(self.home(), self.table):
            return
        with self.route.open(read_timeout=WORK_SECONDS, idle_seconds=LONG_IDLE_SECONDS) as ends:
            examiner = Examiner(
                ends=ends,
                mapping=self.mapping,
                table=self.table,
                markers=markers_of(ends, self.workflow),
                is_mariadb=self.is_mariadb,
                check=self.check,
            )
            rounds = SinceRounds(examiner=examiner, share=self.share, copied=self.copied)
            rounds.until_small(self._repair, with_sample=with_sample)

    def _repair(self, wrong: tuple[str, ...]) -> None:
        shown = ", ".join(f"({readable_key(key)})" for key in wrong[:_SHOWN])
        words = f"{len(wrong)} rows written since the verification differ from the source; keys: {shown}"
        journal.write(self.home(), self.workflow, "mismatch", words, actor=lease.me())
        if self.repaired & set(wrong):
            raise BadValue(
                f"The copy differs from the source, also after copying again: {words}.",
                cure="The source table is untouched. Cancel this workflow; if it happens again, report it.",
            )
        self.repaired |= set(wrong)
        self.copy_again([_single(key) for key in wrong])


def _single(key: str) -> KeyRange:
    bound = tuple(split_literals(key))
    return KeyRange(lower=bound, upper=bound, has_lower=True)


def is_waived(session: Session, table: str) -> bool:
    """A person has waived the verification by name."""
    verdict = verdicts.load(session, table)
    return verdict is not None and verdict.verdict == verdicts.WAIVED


def vouches(ends: Ends, table: str) -> bool:
    """The last verification counts: it was clean, no server was lost since, and what was written since is known."""
    # A server that was started since may have come back without the end of its log.
    if not verdicts.is_of_this_run(ends.home, table):
        return False
    if is_waived(ends.home, table):
        return True
    if not is_clean(ends.home, table):
        # It may have been asked for at the gate, behind a clean one, and repairs nothing then.
        return False
    found = since.load(ends.home, table)
    return found is not None and found.vouches and not _was_started_since(ends, table)


def is_clean(session: Session, table: str) -> bool:
    verdict = verdicts.load(session, table)
    return verdict is not None and verdict.verdict == verdicts.CLEAN


def _was_started_since(ends: Ends, table: str) -> bool:
    """A server that rows are read from or written to, beside home's: it may have lost the end of its log.

    By each server's own clock: only how long ago is compared.
    """
    others = [session for session in (ends.source, ends.target) if session is not ends.home]
    age = verdicts.age_seconds(ends.home, table) if others else 0.0
    return age is None or any(was_started_within(session, age) for session in others)


def was_started_within(session: Session, seconds: float) -> bool:
    return _seconds_up(session) <= seconds + _START_SECONDS


def _seconds_up(session: Session) -> float:
    return float(session.value("SELECT UNIX_TIMESTAMP(NOW(6))")) - started_at(session)


def has_many_keys(session: Session, table: str) -> bool:
    found = since.load(session, table)
    return found is not None and found.vouches and found.keys_waiting > MANY_KEYS


def has_too_many_keys(session: Session, table: str, mapping: TableMapping, share: int) -> bool:
    """More than may be compared under the lock."""
    found = since.load(session, table)
    return found is not None and found.vouches and found.keys_waiting > locked_keys(mapping) // share


def check_definition(locked: Session, source: Table, digest: str | None, workflow: str) -> None:
    """The source is still defined as at the start. Raises SourceChanged. To be called under the lock."""
    # Also here, though DDL ends the workflow by the log: with sql_log_bin=0 it is in none.
    if definition_digest(read_create_sql(locked, source.schema, source.name), source.name) != digest:
        raise SourceChanged(
            f"The definition of {source.schema}.{source.name} was changed while workflow {workflow} was under way.",
            cure=f"Run `vreplication cancel {workflow}` and start again.",
        )


def compare_locked(
    locked: Session, ends: Ends, mapping: TableMapping, table: str, *, share: int = 1, more: Sequence[str] = ()
) -> int:
    """The last round, under the lock and after the barrier; returns the number of keys.

    locked: holds LOCK TABLES on the source, and can read nothing else; what is read of `ends` is home and the target.
    share: so many tables are compared under the lock, one after the other. more: further keys, as comma lists.
    Raises Mismatch, or Transient when this attempt has to be given up.
    """
    verdict = verdicts.load(ends.home, table)
    if verdict is not None and verdict.verdict == verdicts.WAIVED:
        return 0
    if verdict is None or verdict.verdict != verdicts.CLEAN or len(verdict.hot_keys) > MAX_HOT_KEYS:
        raise Transient("there is no clean verification")
    asked = [*(tuple(split_literals(key)) for key in more), *verdict.hot_keys]
    return _compare_keys(locked, ends, mapping, table, asked, locked_keys(mapping) // share)


def _compare_keys(
    locked: Session, ends: Ends, mapping: TableMapping, table: str, hot: Sequence[tuple[str, ...]], most: int
) -> int:
    written = since.load(ends.home, table)
    if written is None or not written.vouches:
        raise Transient("what was written since the verification is not known any more")
    keys = since.keys(ends.home, mapping, table, None, most + 1)
    if len(keys) > most:
        # The attempt ends, never the check: the rounds before the next one leave fewer keys.
        raise Transient(f"more than {most} rows were written since they were last compared")
    listed = list(dict.fromkeys([*(tuple(split_literals(key)) for key in keys), *hot]))
    if differ := compare_hot(locked, ends.target, mapping, listed):
        # The next round compares them once more, and copies them again.
        since.add(ends.home, table, [",".join(key) for key in differ], written.round)
        shown = ", ".join(f"({', '.join(map(readable, key))})" for key in differ[:_SHOWN])
        raise Mismatch(f"{len(differ)} rows differ under the lock; keys: {shown}")
    return len(listed)

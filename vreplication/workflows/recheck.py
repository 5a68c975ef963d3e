"""Between the verification and the cut-over: what is written is compared again, to the last key under the lock.

What must stay true: no cut-over without a verification that still counts, and without every key that was written since
having been seen equal, the last ones under the cut-over's lock; a row that differs is copied again once, then the
workflow ends and names it, with the source as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vreplication.errors import BadValue, SourceChanged, Terminal, Transient
from vreplication.mysql.session import Session, connect
from vreplication.mysql.values import readable, readable_key, split_literals
from vreplication.schema.introspect import read_create_sql
from vreplication.settings import LONG_IDLE_SECONDS, MAX_HOT_KEYS, WORK_SECONDS
from vreplication.state import journal, lease, since, verdicts
from vreplication.state.ledger import KeyRange
from vreplication.verify.hot import compare_hot
from vreplication.verify.rounds import Examiner
from vreplication.verify.since import SinceRounds, locked_keys
from vreplication.workflows.driver import Driver
from vreplication.workflows.job import Job, definition_digest

MANY_KEYS = 20_000
"""So many keys are compared while the workflow waits at the gate: a cut-over then has few to compare."""
_SHOWN = 10


class Mismatch(Terminal):
    """Rows compared under the cut-over's lock differ."""


@dataclass(slots=True, kw_only=True)
class Recheck:
    """Of one driver. copy_again: copies ranges once more, cleared before."""

    driver: Driver
    job: Job
    copy_again: Callable[[Sequence[KeyRange]], None]
    repaired: set[str] = field(default_factory=set)

    def until_small(self, *, with_sample: bool) -> None:
        """Until few enough keys are left for the lock. Raises Transient, or BadValue naming rows that stay wrong."""
        if is_waived(self.driver.session, self.driver.workflow):
            return
        with connect(self.driver.url, read_timeout=WORK_SECONDS, idle_seconds=LONG_IDLE_SECONDS) as session:
            examiner = Examiner(
                session=session,
                mapping=self.job.mapping,
                workflow=self.driver.workflow,
                is_mariadb=self.job.server.is_mariadb,
                check=self.driver.check,
            )
            SinceRounds(examiner=examiner).until_small(self._repair, with_sample=with_sample)

    def _repair(self, wrong: tuple[str, ...]) -> None:
        shown = ", ".join(f"({readable_key(key)})" for key in wrong[:_SHOWN])
        words = f"{len(wrong)} rows written since the verification differ from the source; keys: {shown}"
        journal.write(self.driver.session, self.driver.workflow, "mismatch", words, actor=lease.me())
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


def is_waived(session: Session, workflow: str) -> bool:
    """A person has waived the verification by name."""
    verdict = verdicts.load(session, workflow)
    return verdict is not None and verdict.verdict == verdicts.WAIVED


def vouches(session: Session, workflow: str) -> bool:
    """The last verification counts: the server has not been lost since, and what was written since is known."""
    if not verdicts.is_of_this_run(session, workflow):
        return False
    found = since.load(session, workflow)
    return is_waived(session, workflow) or (found is not None and found.vouches)


def has_many_keys(session: Session, workflow: str) -> bool:
    found = since.load(session, workflow)
    return found is not None and found.vouches and found.keys_waiting > MANY_KEYS


def compare_locked(locked: Session, other: Session, job: Job) -> int:
    """The last round, under the lock and after the barrier; returns the number of keys.

    locked: holds LOCK TABLES on the source, and can read nothing else. Raises Mismatch, SourceChanged, or Transient
    when this attempt has to be given up.
    """
    row, source = job.row, job.mapping.source
    definition = read_create_sql(locked, source.schema, source.name)
    if definition_digest(definition, source.name) != row.source_definition:
        raise SourceChanged(
            f"The definition of {source.schema}.{source.name} was changed while workflow {row.id} was under way.",
            cure=f"Run `vreplication cancel {row.id}` and start again.",
        )
    verdict = verdicts.load(other, row.id)
    if verdict is None or len(verdict.hot_keys) > MAX_HOT_KEYS:
        raise Transient("there is no clean verification")
    return 0 if verdict.verdict == verdicts.WAIVED else _compare_keys(locked, other, job, verdict.hot_keys)


def _compare_keys(locked: Session, other: Session, job: Job, hot: Sequence[tuple[str, ...]]) -> int:
    written = since.load(other, job.row.id)
    if written is None or not written.vouches:
        raise Transient("what was written since the verification is not known any more")
    most = locked_keys(job.mapping)
    keys = since.keys(other, job.mapping, job.row.id, None, most + 1)
    if len(keys) > most:
        raise Transient(f"more than {most} rows were written since they were last compared")
    listed = list(dict.fromkeys([*(tuple(split_literals(key)) for key in keys), *hot]))
    if differ := compare_hot(locked, other, job.mapping, listed):
        # The next round compares them once more, and copies them again.
        since.add(other, job.row.id, [",".join(key) for key in differ], written.round)
        shown = ", ".join(f"({', '.join(map(readable, key))})" for key in differ[:_SHOWN])
        raise Mismatch(f"{len(differ)} rows differ under the lock; keys: {shown}")
    return len(listed)

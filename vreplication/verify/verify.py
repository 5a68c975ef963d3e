"""Verification of a table under live writes: every row of the source, mapped by the ALTER, against the target.

First the whole key space is compared in spans on Spark; what differs there is examined again by key, in rounds. What
is wrong for certain is copied again and re-examined; what stays busy is left for the cut-over's lock. From its begin
catch-up collects the keys that it writes, which are compared until the cut-over (since.py). The first time it leaves
out the chunks that were compared beside the copy (beside.py): it began with them.

What must stay true: nothing is compared before every chunk is matched and a marker written after that is applied; a
verdict is "clean" only when each row has been seen equal, or is listed as hot, and every key written since it began is
known; one verification of a table runs at a time, for its suspects have one table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from vreplication import names
from vreplication.errors import Refused, SourceChanged, Transient
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.values import readable_key, split_literals
from vreplication.pausepoints import reach
from vreplication.schema import nulls
from vreplication.schema.checksum import source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.settings import LONG_IDLE_SECONDS, WORK_SECONDS, Pace
from vreplication.state import compared, ledger, since, verdicts
from vreplication.state.ledger import KeyRange
from vreplication.state.verdicts import Verdict
from vreplication.verify import disorder
from vreplication.verify.ranges import Span, extent, quiet_rows, span_rows, spans
from vreplication.verify.rounds import Examiner, markers_of
from vreplication.verify.scan import Finding, SpanScan
from vreplication.verify.since import SinceRounds
from vreplication.verify.spark_job import run_all

if TYPE_CHECKING:
    from pyspark import SparkContext

Repair = Callable[[Sequence[KeyRange]], None]

_REPAIRS = 2
_MAX_PASSES = 10
"""How often a span is read again in which too many rows differ to list them, without one that is wrong for certain."""
_MANY = 100
"""Wrong rows of one span that are copied again one by one; with more the span is copied again."""
_SHOWN = 10
_FEW_KEYS = 4
"""Where more than one row in so many was written during the copy, comparing all of them anew is less work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who wants a verification: what it is told, and what it says meanwhile.

    on_tick: is told the rows done. check: may raise to stop. pace: what the server bears at the moment. announce: is
    told the id of the connection at home that keeps other verifications out, and () at the end, so that who takes over
    can end it; announce_on_source: the same of the connection that writes markers there, where that is not home's.
    """

    on_tick: Callable[[int], None] = lambda rows: None
    check: Callable[[], None] = lambda: None
    pace: Callable[[], Pace | None] = lambda: None
    announce: Callable[[tuple[int, ...]], None] = lambda ids: None
    announce_on_source: Callable[[tuple[int, ...]], None] = lambda ids: None


def verify(
    spark: SparkContext,
    route: Route,
    mapping: TableMapping,
    caller: Caller,
    *,
    workflow: str,
    stream: str | None = None,
    is_mariadb: bool,
    repair: Repair | None,
    parallelism: int,
) -> Verdict:
    """Compare all rows and save the verdict.

    workflow: id under which home keeps the table's state; stream: that of its markers and progress, the same unless
    given. is_mariadb: the source is. repair: copies ranges again under the chunk protocol; without it what is wrong is
    only reported. Raises Refused while the copy is not complete, Transient when rows change too often to be compared.
    """
    with _alone(route, workflow, caller) as ends:
        reach("verify.began")
        # R25: of a chunk that is not matched a deleted row may be back for a moment. Touched in the window it would
        # count as busy and not as wrong, the only false negative that the model found.
        if not ledger.left(ends.home, workflow).is_nothing:
            raise Refused(
                f"Workflow {workflow} has chunks that are not copied and matched yet.", cure="Verify when it is level."
            )
        _refuse_nulls(ends, mapping, workflow)
        examiner = Examiner(
            ends=ends,
            mapping=mapping,
            table=workflow,
            markers=markers_of(ends, stream or workflow),
            is_mariadb=is_mariadb,
            check=caller.check,
        )
        job = _Verification(
            examiner=examiner,
            stream=stream or workflow,
            run_all=partial(run_all, spark, route, parallelism=parallelism, pace=caller.pace),
            repair=repair,
            on_tick=caller.on_tick,
            check=caller.check,
        )
        return job.run_and_save()


def _refuse_nulls(ends: Ends, mapping: TableMapping, workflow: str) -> None:
    """Where it may be NULL in a key: ranges leave such rows out, and the log may not have told of them yet."""
    column = nulls.find(ends.source, mapping) if mapping.may_have_null else None
    if column:
        raise SourceChanged(nulls.words(mapping, column), cure=f"Run `vreplication cancel {workflow}`. {nulls.ADVICE}")


@contextlib.contextmanager
def _alone(route: Route, workflow: str, caller: Caller) -> Iterator[Ends]:
    """Sessions that are announced, the one at home with the lock that keeps others out; it goes with the session."""
    with contextlib.ExitStack() as stack:
        ends = stack.enter_context(route.open(read_timeout=WORK_SECONDS, idle_seconds=LONG_IDLE_SECONDS))
        stack.callback(caller.announce, ())
        caller.announce((ends.home.id,))
        if ends.source is not ends.home:
            stack.callback(caller.announce_on_source, ())
            caller.announce_on_source((ends.source.id,))
        # A lock of the session, so that it goes with it: who was killed keeps nobody out.
        name = f"vreplication.{names.suspect_table(workflow)}"
        while not ends.home.value("SELECT GET_LOCK(%s, 1)", (name,)):
            caller.check()
            caller.on_tick(0)
        yield ends


@dataclass(slots=True, kw_only=True)
class _Verification:
    examiner: Examiner
    stream: str
    run_all: Callable[..., None]
    repair: Repair | None
    on_tick: Callable[[int], None]
    check: Callable[[], None]
    rows: int = 0
    began: int = 0
    """The round of collected keys that began with it."""
    hot: tuple[str, ...] = ()
    wrong: dict[str, int] = field(default_factory=dict)
    """Key or span that was wrong → number of rows."""
    ends: Ends = field(init=False)
    mapping: TableMapping = field(init=False)
    workflow: str = field(init=False)

    def __post_init__(self) -> None:
        self.ends, self.mapping, self.workflow = self.examiner.ends, self.examiner.mapping, self.examiner.table

    def run_and_save(self) -> Verdict:
        verdict = self.run()
        # Before the keys are vouched for: cut short in between, a clean verdict does not count, and all is verified
        # again.
        verdicts.save(self.ends.home, self.workflow, verdict)
        if verdict.verdict == verdicts.CLEAN:
            since.mark_verified(self.ends.home, self.workflow, self.began)
        return verdict

    def run(self) -> Verdict:
        # First of all: a key that is written while the spans are read is in this collection or a later one, so that a
        # verdict holds until the cut-over and not for the moment in which its row was read.
        self.began = SinceRounds(examiner=self.examiner).hand_over()
        todo = spans(self.ends.home, self.workflow, self.mapping, self._done_before())
        keys: list[str] = []
        for attempt in range(_REPAIRS + 1):
            keys, wide = self._pass(todo, keys)
            if not keys and not wide:
                return self._verdict(verdicts.CLEAN, 0)
            self._note(keys, wide)
            # Where the sides sort the key otherwise a wide finding is the whole table, no range of it.
            can_repair = self.repair is not None and (self.mapping.has_same_order or not wide)
            if attempt == _REPAIRS or not can_repair:
                break
            self._repair(keys, wide)
            todo = [finding.span for finding in wide]
        return self._verdict(verdicts.BAD, len(keys) + sum(f.wide for f in wide))

    def _done_before(self) -> frozenset[KeyRange]:
        """Ranges that were compared beside the copy, and what was written since is known. They count once."""
        found = since.load(self.ends.home, self.workflow)
        if found is None or found.is_void or found.is_verified:
            return frozenset()
        done = compared.ranges(self.ends.home, self.workflow, found.first_round)
        # At once: a verification that is cut short, or repeated, reads all rows.
        compared.forget(self.ends.home, self.workflow)
        if not done or since.count(self.ends.home, self.workflow) * _FEW_KEYS > sum(done.values()):
            return frozenset()
        self.began = found.first_round
        self.rows += sum(done.values())
        return frozenset(done)

    def _pass(self, todo: list[Span], keys: list[str]) -> tuple[list[str], list[Finding]]:
        """Scan, then examine: keys that are wrong for certain, and spans in which too many are."""
        bad: dict[str, None] = {}
        spoilt: list[Finding] = []
        for _ in range(_MAX_PASSES):
            found = self._scan(todo) if todo else []
            listed = [key for finding in found for key in finding.keys]
            examined = self.examiner.examine([*keys, *self.hot, *listed])
            self.hot = examined.hot
            wrong = set(examined.bad)
            # Where too many differ to be listed, a few that gave way say that the span is to be copied again.
            told = wrong | set(examined.gave_way)
            spoilt += [f for f in (_judged(f, told if f.wide else wrong, self.mapping) for f in found) if f]
            covered = {key for f in spoilt for key in f.keys}
            bad |= dict.fromkeys(key for key in examined.bad if key not in covered)
            todo = [f.span for f in found if f.wide and not told & set(f.keys)]
            if not todo:
                return list(bad), spoilt
            # They are judged by now: equal, wrong, given way, or among the hot ones, which are looked at again.
            keys = []
            # What made these spans differ, if it was only on its way, is applied before they are read again.
            self.examiner.pass_marker()
        raise Transient(
            f"In {len(todo)} ranges too many rows change too often to be compared.",
            cure="Verify again at a quieter time.",
        )

    def _scan(self, todo: list[Span]) -> list[Finding]:
        """What differs in these spans; may be nothing but rows that were written to in between."""
        if not self.mapping.has_same_order:
            found = [disorder.scan(self.mapping, self._run_spans, self._count)]
        else:
            found = []
            rows = span_rows(self.mapping)
            is_busy = rows >= quiet_rows(self.ends.home, self.stream, self.mapping)
            work = SpanScan(mapping=self.mapping, span_rows=rows, is_busy=is_busy)
            self._run_spans(work, todo, partial(self._take, found))
        self._tick()
        return [finding for finding in found if finding.keys or finding.wide]

    def _run_spans(self, work: Any, todo: Iterable[Span], on_result: Callable[[Any], list[Span]]) -> None:
        self.run_all(work, todo, on_result, check=self._tick)

    def _take(self, found: list[Finding], finding: Finding) -> list[Span]:
        self._count(finding.rows)
        found.append(finding)
        return [finding.rest] if finding.rest else []

    def _count(self, rows: int) -> None:
        self.rows += rows

    def _tick(self) -> None:
        self.check()
        self.on_tick(self.rows)

    def _note(self, keys: Iterable[str], wide: Iterable[Finding]) -> None:
        for key in keys:
            self.wrong.setdefault(key, 1)
        for finding in wide:
            self.wrong.setdefault(str(finding.span), finding.wide)

    def _repair(self, keys: list[str], wide: list[Finding]) -> None:
        assert self.repair is not None
        self.repair([*map(_single, keys), *self._extents(wide)])
        # What was copied again has landed and is matched only further on in the stream; compared before that it may
        # differ.
        self.examiner.pass_marker()

    def _extents(self, wide: list[Finding]) -> list[KeyRange]:
        """An open end is closed by the rows that are there, on either side."""
        sides = ((self.ends.source, source_side(self.mapping)), (self.ends.target, target_side(self.mapping)))
        found = [extent(session, side, f.span) for f in wide for session, side in sides]
        return [keys for keys in dict.fromkeys(found) if keys is not None]

    def _verdict(self, verdict: str, left: int) -> Verdict:
        mismatches = sum(self.wrong.values())
        return Verdict(
            verdict=verdict,
            rows_compared=self.rows,
            mismatches=mismatches,
            repaired=max(0, mismatches - left),
            hot_keys=tuple(tuple(split_literals(key)) for key in self.hot),
            details=self._details(mismatches, left),
        )

    def _details(self, mismatches: int, left: int) -> str:
        if not mismatches:
            return ""
        shown = ", ".join(f"({readable_key(key)})" for key in list(self.wrong)[:_SHOWN])
        state = f"{left} of them still do" if left else "they were copied again and are equal now"
        return f"{mismatches} rows differed, {state}; keys: {shown}"


def _judged(finding: Finding, wrong: set[str], mapping: TableMapping) -> Finding | None:
    """The finding when its span is wrong as a whole, with the number of its wrong rows."""
    mine = [key for key in finding.keys if key in wrong]
    # Too many differ to be listed: one of the sample that is wrong for certain stands for the whole span.
    if finding.wide:
        return finding if mine else None
    if len(mine) <= _MANY or not mapping.has_same_order:
        return None
    return Finding(span=finding.span, rows=finding.rows, keys=tuple(mine), wide=len(mine))


def _single(key: str) -> KeyRange:
    bound = tuple(split_literals(key))
    return KeyRange(lower=bound, upper=bound, has_lower=True)

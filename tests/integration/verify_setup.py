"""A workflow whose rows are all copied, with a stand-in for the replicating process that is as slow as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rowcopy_setup import WORKFLOW, CopyCase, make_case

from sandbox.databases import Database
from vreplication.mysql.ends import Route
from vreplication.mysql.quoting import ident, idents
from vreplication.mysql.session import Session, connect
from vreplication.mysql.values import split_literals
from vreplication.rowcopy.repair import copy_ranges
from vreplication.settings import SIDECAR
from vreplication.state import keytables, markers, since
from vreplication.state.ledger import KeyRange
from vreplication.state.verdicts import Verdict
from vreplication.verify import verify as verification


@dataclass(kw_only=True)
class VerifyCase:
    """Source `t`, its shadow, and the writes that the shadow has not got yet.

    at_marker: called when a marker has been reached and what came before it is applied, before it counts as applied:
    what is written there is on the source, but not on the shadow, when the verifier goes on.
    """

    copy: CopyCase
    at_marker: Callable[[str], None] = lambda kind: None
    pending: list[str] = field(default_factory=list)
    markers_seen: list[str] = field(default_factory=list)
    repaired: list[KeyRange] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    _is_watching: bool = False
    _turn: threading.RLock = field(default_factory=threading.RLock)

    @property
    def shadow(self) -> str:
        return ident(self.copy.shadow)

    def app(self, sql: str, *keys: str) -> None:
        """A write of the application; `keys`: the rows that the log would show."""
        with self._turn:
            self.copy.app.execute_raw(sql)
            self.pending += keys

    def break_shadow(self, sql: str) -> None:
        """Plant a fault: {u} is the shadow."""
        assert self.copy.database.admin.execute_raw(sql.format(u=self.shadow)) > 0

    def apply_pending(self, session: Session) -> None:
        """Bring the shadow level, key by key, with the rows as they are now."""
        self.written |= set(self.pending)
        for key in self.pending:
            self._apply(session, key)
            if self._is_watching:
                keytables.touch(session, WORKFLOW, [key], len(self.copy.mapping.key))
        self.pending.clear()

    def _apply(self, session: Session, key: str) -> None:
        mapping = self.copy.mapping
        values = ",".join(p.convert.format(ident(p.source.name)) for p in mapping.pairs)
        literals = split_literals(key)
        on_target = " AND ".join(f"{ident(p.target.name)}={x}" for p, x in zip(mapping.key, literals, strict=True))
        on_source = " AND ".join(f"{ident(p.source.name)}={x}" for p, x in zip(mapping.key, literals, strict=True))
        session.execute_raw(f"DELETE FROM {self.shadow} WHERE {on_target}")
        session.execute_raw(
            f"REPLACE INTO {self.shadow} ({idents(p.target.name for p in mapping.pairs)}) "
            f"SELECT {values} FROM {ident(mapping.source.name)} WHERE {on_source}"
        )

    @contextmanager
    def replicating(self) -> Iterator[None]:
        stop = threading.Event()
        failed: list[BaseException] = []
        thread = threading.Thread(target=self._replicate, args=(stop, failed), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]

    def _replicate(self, stop: threading.Event, failed: list[BaseException]) -> None:
        try:
            with connect(self.copy.database.url) as session:
                while not stop.wait(0.005):
                    for marker, kind in self._unseen(session):
                        self._reach(session, marker, kind)
        except BaseException as error:
            failed.append(error)

    def _unseen(self, session: Session) -> list[tuple[str, str]]:
        sql = (
            f"SELECT m.id, m.kind FROM {SIDECAR}.marker m LEFT JOIN {SIDECAR}.marker_applied a USING (workflow, id) "
            "WHERE a.id IS NULL ORDER BY m.created_at"
        )
        return [(str(a), str(b)) for a, b in session.rows(sql)]

    def _reach(self, session: Session, marker: str, kind: str) -> None:
        with self._turn:
            self.apply_pending(session)
            self._is_watching = kind == markers.SUSPECTS_OPEN
            self.markers_seen.append(kind)
            self.at_marker(kind)
            if kind == markers.SINCE:
                self._hand_over(session)
            markers.record_applied(session, WORKFLOW, marker, (), is_holding=False)

    def _hand_over(self, session: Session) -> None:
        """As the applier does it at this marker."""
        found = since.load(session, WORKFLOW)
        if found is None:
            since.begin(session, WORKFLOW, "")
        else:
            number = found.round
            since.save(session, WORKFLOW, self.written, "", number=number, next_number=number + 1)
        self.written.clear()

    def repair(self, ranges: Iterable[KeyRange]) -> None:
        """As the workflow does it."""
        self.repaired += ranges
        with self.copy.gate_kept_open():
            job = self.copy.job()
            copy_ranges(self.copy.route, self.copy.driver, self.copy.mapping, job, list(ranges), clear=True)
        match_all(self.copy)

    def verify(self, spark: Any = None, *, repair: bool = False, parallelism: int = 2, **caller: Any) -> Verdict:
        with self.replicating():
            return verification.verify(
                spark,
                Route.within(self.copy.database.url),
                self.copy.mapping,
                verification.Caller(**caller),
                workflow=WORKFLOW,
                is_mariadb=self.copy.database.server.is_mariadb,
                repair=self.repair if repair else None,
                parallelism=parallelism,
            )


def match_all(case: CopyCase) -> None:
    """What the applier does at each "landed"."""
    case.session.execute_raw(f"UPDATE {SIDECAR}.chunk SET state='matched', matched_at=NOW(6) WHERE state='landed'")


def ready(database: Database, create: str, *fill: str, alter: str = "ENGINE=InnoDB", wanted: int = 2) -> VerifyCase:
    """Create, fill and copy `t`."""
    case = make_case(database, create, alter, fill)
    keytables.create_all(case.session, case.mapping, WORKFLOW)
    if database.admin.value("SELECT 1 FROM t LIMIT 1"):
        case.copy_all(wanted=wanted, chunk_rows=200)
        match_all(case)
    return VerifyCase(copy=case)


def run_here(
    spark: Any,
    route: Any,
    work: Callable[[Any, Any], Any],
    spans: Iterable[Any],
    on_result: Callable[[Any], list[Any]],
    *,
    parallelism: int,
    check: Callable[[], None],
    pace: Callable[[], object] = lambda: None,
) -> None:
    """In place of `spark_job.run_all`: one span after the other, in this process."""
    waiting = list(spans)
    with route.open() as ends:
        while waiting:
            check()
            waiting += on_result(work(ends, waiting.pop(0)))

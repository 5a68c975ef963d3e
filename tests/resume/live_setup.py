"""A table under a live workload, the command that alters it, and the proof of the result.

What must stay true: the proof's truth is what the application committed, never what our tables say; every process that
was started here is ended here, by its id.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from sandbox import orders
from sandbox.databases import Database
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from tests.support import private_server, run_ddl, tailing
from tests.support.flow import Ended, wait_until
from tests.support.ledger_history import chunk_rows, landed_once
from tests.support.run_ddl import Command
from vreplication import names
from vreplication.binlog.events import Position
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import LEASE_STALE_SECONDS, SIDECAR
from vreplication.state import journal, layout, verdicts, workflows

ROWS = 3_200
WORKFLOW = "crash"
WORDS = ("online-ddl", "--table", "orders", "--alter", orders.ALTER, "--workflow", WORKFLOW, "--yes", "--json")
BULK = f"UPDATE {{table}} SET customer = customer + 1 WHERE id % 16 = 1 AND id BETWEEN 1 AND {2 * ROWS}"
"""Changes every eighth base row, which no writer touches: 400 rows, enough to be shared between two connections."""


@dataclass(slots=True, kw_only=True)
class Live:
    database: Database
    logs: Path
    pauses: Path
    workload: Workload
    begin: Position
    commands: list[Command] = field(default_factory=list)

    def start(self, *more: str, is_spark: bool = False, is_forked: bool = True) -> Command:
        """The command; the same each time."""
        words = (*WORDS, "--chunk-rows", "150", *more)
        command = run_ddl.start(self.database, self.logs, words, is_spark=is_spark, is_forked=is_forked)
        self.commands.append(command)
        return command

    def reached(self, point: str, command: Command) -> int:
        try:
            return run_ddl.wait_reached(self.pauses, point, command)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def complete(self, command: Command) -> Ended:
        """Wait for its end, which has to be a good one."""
        ended = command.finish()
        assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:], self.log())
        assert ended.last["event"] == "complete"
        return ended

    def let_write(self, writes: int) -> None:
        """Until the application has committed so many more, or the last command has ended."""
        until = self.workload.report().writes + writes
        wait_until(
            lambda: self.workload.report().writes >= until or not self.commands[-1].is_going, "the application is stuck"
        )

    def silence(self) -> None:
        """As if the last sign of life of whoever holds a lease were older than it may be."""
        with connect(self.database.url) as session:
            if not layout.exists(session):
                # The first command on a new server was cut before it made anything.
                return
            session.execute_raw(f"UPDATE {SIDECAR}.heartbeat SET at = at - INTERVAL {LEASE_STALE_SECONDS + 1:g} SECOND")

    def kill_server(self) -> None:
        self.database.close()
        private_server.kill(self.database.server)

    @property
    def log_files(self) -> list[Path]:
        """Beside them are the folders that spilled changes come and go in."""
        return list((self.logs / "vreplication").glob("*.log"))

    def times_missed(self) -> int:
        """How often one of our processes has met a server that does not answer."""
        logs = [path.read_text() for path in self.log_files]
        return sum(log.count(words) for log in logs for words in ("catch-up starts again", "the server was lost"))

    def wait_lost(self, before: int = 0) -> None:
        """Until one of our processes has met a server that does not answer; before: how often one had already."""
        last = self.commands[-1]
        wait_until(lambda: not last.is_going or self.times_missed() > before, "nobody misses the server")

    def restart_server(self) -> None:
        self.database.server.restart()

    def prove(self, *, has_log: bool = True) -> int:
        """The application goes on with the new table; then every row is what it committed, and nothing else is left.

        No chunk was copied twice, if there is the log. Returns the number of rows compared.
        """
        self.workload.wait_for(10)
        report = self.workload.stop()
        assert report.errors == ()
        if has_log:
            assert landed_once(chunk_rows(self.database, self.begin, "at_start")) > 0
        with connect(self.database.app_url) as app:
            proof = prove(app, "orders", "at_start", orders.ALTER, self.workload.expected)
            assert proof.differences == ()
            assert self.tables(app) == [names.retired_table("orders", WORKFLOW)]
        with connect(self.database.url) as session:
            assert self.leftovers(session) == []
            verdict = verdicts.load(session, WORKFLOW)
            events = [entry["event"] for entry in journal.read(session, WORKFLOW)]
        assert verdict is not None
        # What verification had to copy again was wrong before; a later verdict may have taken the place of that one.
        assert verdict.mismatches == 0, verdict
        assert "mismatch" not in events, events
        # However many drivers have been ended and taken over from.
        assert [events.count(each) for each in ("copied", "verified", "gate reached")] == [1] * 3, events
        return proof.altered.rows

    def prove_untouched(self) -> None:
        """The application goes on with the table that it had; every row is what it committed, and nothing is left."""
        self.workload.wait_for(10)
        report = self.workload.stop()
        assert report.errors == ()
        with connect(self.database.app_url) as app:
            assert prove(app, "orders", "at_start", "COMMENT=''", self.workload.expected).differences == ()
            assert self.tables(app) == []
        with connect(self.database.url) as session:
            assert self.leftovers(session) == []
            assert workflows.load(session, WORKFLOW).phase is Phase.CANCELLED

    @staticmethod
    def tables(app: Session) -> list[str]:
        """Tables of ours beside the application's."""
        return [name for (name,) in app.rows("SHOW TABLES") if names.is_ours(name)]

    @staticmethod
    def leftovers(session: Session) -> list[str]:
        """What was only for the run: key tables, chunks, markers."""
        found = [n for (n,) in session.rows(f"SHOW TABLES FROM {SIDECAR}") if n.split("_")[0] in _KEY_TABLES]
        rows = [t for t in ("chunk", "split", "marker", "gate") if session.row(f"SELECT 1 FROM {SIDECAR}.{t} LIMIT 1")]
        return found + rows

    def write_much(self) -> None:
        """One transaction of many changes, in the table and in what the proof compares it with."""
        with connect(self.database.app_url) as app:
            for table in ("orders", "at_start"):
                app.execute_raw(BULK.format(table=ident(table)))

    def prepare(self, app: Session, branch: str, first: int, last: int) -> None:
        """A prepared XA branch with every eighth base row between two ids, in the table and in its copy."""
        app.execute_raw(f"XA START '{branch}'")
        for table in ("orders", "at_start"):
            app.execute_raw(
                f"UPDATE {ident(table)} SET customer = 7 WHERE id % 16 = 1 AND id BETWEEN {first} AND {last}"
            )
        app.execute_raw(f"XA END '{branch}'")
        app.execute_raw(f"XA PREPARE '{branch}'")

    def log(self) -> str:
        """The end of every log file, for a failure's message."""
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in self.log_files)

    def end(self) -> None:
        self.workload.stop()
        for command in self.commands:
            if command.is_going:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(command.pid, signal.SIGCONT)
                run_ddl.wait_gone(command.kill())


_KEY_TABLES = ("tombstone", "dirty", "suspect", "probe")


def make_live(database: Database, logs: Path, pauses: Path) -> Live:
    """Fill the table, keep a copy, begin to write."""
    with connect(database.app_url) as app:
        orders.create(app, "orders")
        orders.fill(app, "orders", ROWS)
        keep_copy(app, "orders", "at_start")
    workload = Workload(
        database.app_url, "orders", rows=ROWS, writers=2, readers=1, seed=11, rate=15, xa=True, read_every=0.05
    )
    begin = tailing.here(database)
    return Live(database=database, logs=logs, pauses=pauses, workload=workload.start(), begin=begin)

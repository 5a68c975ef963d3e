"""kill -9 drawn from a seed: of whom, and where or when. The tests make a few, `make soak` as many as wanted.

What must stay true: what is drawn follows from the seed and the kill's number alone; the victim is really killed, or
the outcome says that it was over by then; whatever happened, the same command goes on to the end.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.flow import Ended, paused_at
from tests.support.run_ddl import Command, children, replicates, wait_gone
from vreplication.errors import VReplicationError
from vreplication.mysql.session import connect
from vreplication.state import gate, workflows
from vreplication.workflows import operate

if TYPE_CHECKING:
    from live_setup import Live

DRIVER, CATCH_UP, SERVER, WORKER = "driver", "catch-up", "server", "Spark worker"
PREPARING = ("prepare.tables_made", "prepare.done")
COPYING = ("copy.after_open", "copy.after_select", "copy.before_land", "copy.after_land", "workflow.copied")
COMPARING = ("verify.began", "verify.comparing", "workflow.verified", "workflow.gate_open")
SWITCHING = (
    "cutover.before_lock",
    "cutover.locked",
    "cutover.after_barrier",
    "cutover.rename_pending",
    "cutover.sentry_dropped",
    "cutover.after_unlock",
    "cutover.after_rename",
)
APPLYING = ("apply.before_flush", "apply.before_match", "replicate.holding")
DONE = ("workflow.switched", "workflow.cleaned", "workflow.complete")
IN_A_TASK = ("copy.after_open", "copy.after_select", "copy.before_land", "copy.after_land", "verify.comparing")
POINTS = {
    DRIVER: (*PREPARING, *COPYING, *COMPARING, *SWITCHING, *DONE),
    CATCH_UP: (*COPYING, *APPLYING, *COMPARING, *SWITCHING),
    SERVER: (*PREPARING, *COPYING, *APPLYING, *COMPARING, *SWITCHING, *DONE),
    WORKER: IN_A_TASK,
}
"""Where each may be killed: catch-up lives from the first chunk to the cut-over, workers have tasks to be in."""
EARLY_WRITES, LATE_WRITES = 250, 80
"""A random moment is so many writes of the application after the start at most, or after the release at the gate."""
PATIENCE_SECONDS = 240.0
NOBODY, TOLD = "nobody was left to kill", "had told its end when it was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """point: where; or else after so many `writes`, counted from the release if `is_late`.

    is_missed: a killed server comes back only when one of our processes has met it away.
    """

    victim: str
    point: str | None
    writes: int = 0
    is_late: bool = False
    is_missed: bool = True

    def __str__(self) -> str:
        if self.point:
            return self.point
        return f"{self.writes} writes after the {'release' if self.is_late else 'start'}"


def draw(seed: int, number: int) -> Kill:
    """In turn: one of all points (each once, before any comes again), a moment of the run, a moment of the cut-over."""
    if number % 3 == 0:
        pairs = [(victim, point) for victim, points in POINTS.items() for point in points]
        random.Random(seed).shuffle(pairs)
        victim, point = pairs[number // 3 % len(pairs)]
        return Kill(victim=victim, point=point, is_missed=number % 2 == 0)
    return draw_moment(seed, number, is_late=number % 3 == 2, has_workers=True)


def draw_moment(seed: int, number: int, *, is_late: bool, has_workers: bool = False) -> Kill:
    """A moment of the run, or of its switch; has_workers: through Spark, if one of its workers is drawn."""
    chance = random.Random(f"{seed}-{number}")
    victims = [DRIVER, CATCH_UP, SERVER, *([WORKER] if has_workers and not is_late else [])]
    writes = chance.randrange(LATE_WRITES if is_late else EARLY_WRITES)
    is_missed = chance.random() < 0.5
    return Kill(victim=chance.choice(victims), point=None, writes=writes, is_late=is_late, is_missed=is_missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """phase: where the workflow stood when the victim was killed. how: it went on, or that nobody was killed."""

    phase: str
    how: str
    rows: int


def run(live: Live, kill: Kill) -> Outcome:
    """One workflow with one kill in it, to its proven end."""
    words = ("--copy-path", "rows", "--copy-parallelism", "2") if kill.victim == WORKER else ()
    again = Again(live, words if kill.point else (*words, "--cutover", "manual"), is_spark=kill.victim == WORKER)
    command = again.start()
    phase, is_hit = _at_point(live, kill, command) if kill.point else _at_moment(live, kill, command)
    how = again.to_the_end(command, is_held=not kill.point)
    return Outcome(phase=phase, how=how if is_hit else NOBODY, rows=live.prove())


@dataclass(frozen=True, slots=True)
class Again:
    """The command, the same each time."""

    live: Live
    words: tuple[str, ...] = ()
    is_spark: bool = False

    def start(self) -> Command:
        return self.live.start(*self.words, is_spark=self.is_spark)

    def to_the_end(self, command: Command, *, is_held: bool) -> str:
        """Wait for a good end, by starting it again if need be; returns how it came."""
        codes: list[int] = []
        while True:
            if is_held:
                release(self.live, command)
            ended = command.finish(PATIENCE_SECONDS)
            if ended.code == 0:
                break
            if _has_told(ended):
                return TOLD
            codes.append(ended.code)
            # Killed, or ended by itself with the command that goes on; and never again after that.
            assert ended.code in (-signal.SIGKILL, 1), (ended.out[-3000:], ended.err[-3000:], self.live.log())
            assert len(codes) < 3, (ended, self.live.log())
            assert ended.code < 0 or ended.last["resume_command"], ended
            command = self.start()
        assert ended.last["event"] == "complete"
        return " ".join(["same command again" if codes else "same process", *(f"(exit {c})" for c in codes if c > 0)])


def _has_told(ended: Ended) -> bool:
    """Killed between its last line and its exit: the same command is refused from then on, it has ended."""
    return ended.code == -signal.SIGKILL and ended.out.endswith("\n") and ended.last["event"] == "complete"


def _at_point(live: Live, kill: Kill, command: Command) -> tuple[str, bool]:
    assert kill.point
    with paused_at(live.pauses, kill.point):
        pid = live.reached(kill.point, command)
        phase = phase_of(live)
        is_hit = strike(live, kill, command, pid)
    recover(live, kill)
    return phase, is_hit


def _at_moment(live: Live, kill: Kill, command: Command) -> tuple[str, bool]:
    if kill.is_late:
        wait_phase(live, command, "waiting")
        release(live, command)
    elif kill.victim in (CATCH_UP, WORKER):
        waited = threading.Event()
        while command.is_going and not _victims(kill.victim, command):
            waited.wait(0.05)
    live.let_write(kill.writes)
    phase = phase_of(live)
    if not command.is_going:
        return phase, False
    is_hit = strike(live, kill, command, 0)
    recover(live, kill)
    return phase, is_hit


def strike(live: Live, kill: Kill, command: Command, pid: int) -> bool:
    """SIGKILL; returns whether there was somebody. pid: who stands at the point; 0: nobody was asked to."""
    if kill.victim == DRIVER:
        left = children(command.pid)
        command.process.kill()
        wait_gone(left, PATIENCE_SECONDS)
    elif kill.victim == SERVER:
        live.kill_server()
    else:
        victims = [pid] if pid and kill.victim == WORKER else _victims(kill.victim, command)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        return bool(victims)
    return True


def _victims(victim: str, command: Command) -> list[int]:
    """Catch-up, or one of Spark's Python workers; [] while there is none."""
    if victim == CATCH_UP:
        return replicates(command.pid)
    tree = [command.pid]
    for pid in tree:
        tree += children(pid)
    return [pid for pid in tree if _is_worker(pid)][-1:]


def _is_worker(pid: int) -> bool:
    """Workers are forked by the daemon, and look like it."""
    try:
        with open(f"/proc/{pid}/cmdline") as words, open(f"/proc/{pid}/stat") as stat:
            parent = int(stat.read().rpartition(")")[2].split()[1])
            return "pyspark.daemon" in words.read() and parent != 1 and not children(pid)
    except (OSError, ValueError):
        return False


def recover(live: Live, kill: Kill) -> None:
    if kill.victim == SERVER:
        if kill.is_missed:
            live.wait_lost()
        live.restart_server()


def release(live: Live, command: Command) -> None:
    """As soon as there is a workflow to be released; it may end meanwhile, or its preparation be begun again."""
    waited = threading.Event()
    while command.is_going and not (_stands(live, "") and _is_released(live)):
        waited.wait(0.05)


def _is_released(live: Live) -> bool:
    """Is it now?"""
    try:
        with connect(live.database.url) as session:
            is_released = gate.released_by(session, "crash") is not None
        if not is_released:
            operate.release(live.database.url, "crash", "soak")
    except VReplicationError:
        # It has ended meanwhile, or the server is away.
        return False
    return True


def wait_phase(live: Live, command: Command, phase: str) -> None:
    """Until the workflow is prepared and, if a phase is given, stands there; or the command has ended."""
    waited = threading.Event()
    while command.is_going and not _stands(live, phase):
        waited.wait(0.05)


def _stands(live: Live, phase: str) -> bool:
    try:
        with connect(live.database.url) as session:
            row = workflows.find(session, "crash")
    except VReplicationError:
        return False
    return row is not None and row.rows_total is not None and (not phase or row.phase == phase)


def phase_of(live: Live) -> str:
    with connect(live.database.url) as session:
        row = workflows.find(session, "crash")
    return str(row.phase) if row else "planning"

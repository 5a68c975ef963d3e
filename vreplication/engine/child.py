"""The replicating process as seen by its parent: started, watched, started again, ended.

What must stay true: the URL with its password goes through a pipe, never through the child's arguments or environment;
the child ends when the pipe does, so it never outlives a parent that was killed. One that is loaded ahead knows nothing
and does nothing until it is told that URL.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from vreplication.clock import SYSTEM
from vreplication.errors import Ambiguous, Terminal, Transient
from vreplication.mysql.ends import Route
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.state import journal, lease, workflows

log = logging.getLogger(__name__)

_QUICK_DEATHS = 5
_QUICK_SECONDS = 10.0
_END_SECONDS = 15.0
_LOOK_SECONDS = 1.0
SEVERAL = "--several"
"""Option of the replicating process, with how many are worked on at a time: whom to follow comes by its input."""
STREAM = "--stream"
"""Option of the replicating process, with the number of a stream of tables that move: its input is a route."""
FOLLOW, LEAVE = "follow", "leave"
LOG_FORMAT = "VREPLICATION_LOG_FORMAT"
_json_to: Callable[[], int | None] | None = None
_ENDS = ("source", "target", "home")


def write_json_to(where: Callable[[], int | None] | None) -> None:
    """From now on processes write their log as JSON lines to this descriptor. None: as text, to files of theirs."""
    global _json_to
    _json_to = where


def log_path(workflow: str, what: str) -> Path:
    """Where a process of a workflow writes its log."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = Path(home) / "vreplication"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{workflow}.{what}.log"


def to_line(url: SourceUrl) -> bytes:
    """The URL as the one line that the child reads from its standard input."""
    return json.dumps(dataclasses.asdict(url)).encode() + b"\n"


def from_line(line: bytes) -> SourceUrl:
    return _url_of(json.loads(line))


def _url_of(parts: dict[str, Any]) -> SourceUrl:
    # JSON has lists alone, and a URL has to be hashable: a route puts its URLs into a set (mysql/ends.py).
    parts["tls"] = tuple(tuple(item) for item in parts["tls"])
    parts["replicas"] = tuple(map(_url_of, parts["replicas"]))
    return SourceUrl(**parts)


def route_line(route: Route) -> bytes:
    """The same for tables that move."""
    return json.dumps({name: dataclasses.asdict(getattr(route, name)) for name in _ENDS}).encode() + b"\n"


def route_from_line(line: bytes) -> Route:
    ends = json.loads(line)
    source, target, home = (_url_of(ends[name]) for name in _ENDS)
    return Route(source=source, target=target, home=home)


def told(act: str, workflow: str) -> bytes:
    """What a process that follows several workflows is told: FOLLOW or LEAVE one of them."""
    return f"{act} {workflow}\n".encode()


class CatchUp(Protocol):
    """Catch-up as the driver needs it."""

    def load(self) -> None:
        """Do what can be done before there is anything to catch up with."""

    def start(self) -> None:
        """See to it that it runs."""

    def keep_alive(self) -> None:
        """To be called again and again. Raises when it does not run and cannot be made to."""

    def end(self) -> None:
        """Let it go; what was applied is in the checkpoint."""


class StreamCatchUp(CatchUp, Protocol):
    """Of a workflow that has one stream after the other."""

    def follow(self, number: int) -> None:
        """The stream that leads to this switch, from the next start on."""


class CatchUpAway(Transient):
    """Nobody catches up, and whoever looks after it may need longer than we want to wait."""


class Elsewhere:
    """Catch-up that another process looks after; here it is only watched. patience None: it may be away for ever.

    While the server cannot be asked nobody could catch up either: that time does not count.
    """

    def __init__(self, url: SourceUrl, workflow: str, patience_seconds: float | None) -> None:
        self._url, self._workflow, self._patience = url, workflow, patience_seconds
        self._seen = self._looked = SYSTEM.monotonic()

    def load(self) -> None:
        """It is another's."""

    def start(self) -> None:
        self._seen = SYSTEM.monotonic()

    def keep_alive(self) -> None:
        now = SYSTEM.monotonic()
        if self._patience is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        # Asked anew, not `now`: the question itself may have waited for a server that was away, and that time is none
        # in which catch-up could have run.
        if self._may_run():
            self._seen = SYSTEM.monotonic()
        if now - self._seen > self._patience:
            away = f"Catch-up of workflow {self._workflow} has not run for {now - self._seen:.0f} seconds."
            raise CatchUpAway(f"{away} {self._failed_before()}".strip())

    def _may_run(self) -> bool:
        try:
            with connect(self._url) as session:
                return lease.is_alive(session, self._workflow, lease.REPLICATE)
        except (Transient, Ambiguous) as error:
            log.warning("it is not known whether catch-up runs: %s", error)
            return True

    def _failed_before(self) -> str:
        """Often why it does not run; going on with a failed workflow has taken the reason out of its row."""
        try:
            with connect(self._url) as session:
                found = journal.latest(session, self._workflow, "failed")
                begun = lease.taken_at(session, self._workflow, lease.REPLICATE)
        except (Transient, Ambiguous):
            return ""
        if found and begun and found["at"] < begun:
            # That is over: catch-up has run since.
            return ""
        return f"The workflow had failed at {found['at']:%Y-%m-%d %H:%M:%S} UTC: {found['details']}" if found else ""

    def end(self) -> None:
        """It is not ours to end; but a cancel removes its tables, so it has to see that first."""
        try:
            self._wait_for_cancel()
        except (Transient, Ambiguous) as error:
            log.info("catch-up was not waited for: %s", error)

    def _wait_for_cancel(self) -> None:
        deadline = SYSTEM.monotonic() + _END_SECONDS
        with connect(self._url) as session:
            found = workflows.find(session, self._workflow)
            while found and found.is_cancel_requested and lease.is_alive(session, self._workflow, lease.REPLICATE):
                if SYSTEM.monotonic() > deadline:
                    return
                time.sleep(0.2)


class StreamElsewhere(Elsewhere):
    """Of tables that move: another process looks after the stream up to the first switch, and after no other."""

    def follow(self, number: int) -> None:
        """The first stream is called as the workflow."""


class ReplicateProcess:
    """One replicating process at a time."""

    _options: tuple[str, ...] = ()

    def __init__(self, url: SourceUrl, workflow: str) -> None:
        self._url, self._workflow = url, workflow
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._is_told = False
        self._started: list[float] = []

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def load(self) -> None:
        """Half a second's work of loading the program, beside the planning. It waits to be told where the server is."""
        if self._process is None:
            self._process = self._loading()

    def start(self) -> None:
        is_alive = self._process is not None and self._process.poll() is None
        if is_alive and self._is_told:
            return
        self._started.append(SYSTEM.monotonic())
        if self._process is None or not is_alive:
            self._process = self._loading()
        self._is_told = True
        self._send(self._line())

    def _line(self) -> bytes:
        """What it reads first of all."""
        return to_line(self._url)

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        # ValueError: its input was closed here, when it could not be told something before.
        except (BrokenPipeError, ValueError):
            log.warning("catch-up ended while it was being told something")
            # `keep_alive` sees that, and starts it again.
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _loading(self) -> subprocess.Popen[bytes]:
        self._log = self._log or log_path(self._workflow, "replicate").open("ab")
        ours = _json_to() if _json_to else None
        return subprocess.Popen(
            [sys.executable, "-m", "vreplication", "replicate", self._workflow, *self._options],
            stdin=subprocess.PIPE,
            # Never our own: there a face may be writing JSON lines that a program reads.
            stdout=self._log,
            stderr=self._log if ours is None else ours,
            env=None if ours is None else {**os.environ, LOG_FORMAT: "json"},
            # A Ctrl-C at the terminal is for the driver, which lets catch-up come to the end of its batch.
            start_new_session=True,
        )

    def keep_alive(self) -> None:
        """Start it again when it has died. Raises Terminal when it keeps dying."""
        if self._process is None or not self._is_told or self._process.poll() is None:
            return
        log.warning("catch-up ended with exit code %s; it is started again", self._process.returncode)
        # Of a short time only: a catch-up that dies once a day, and goes on each time, does not end a workflow of
        # weeks.
        recent = [t for t in self._started if SYSTEM.monotonic() - t < _QUICK_SECONDS * _QUICK_DEATHS]
        if len(recent) >= _QUICK_DEATHS:
            raise Terminal(
                f"Catch-up ended {len(recent)} times in a short while.",
                cure=f"Its log is {log_path(self._workflow, 'replicate')}.",
            )
        self.start()

    def end(self) -> None:
        """Let it finish its batch and go; kill it when it does not."""
        if self._process is None:
            return
        # It waits for its first line, and has nothing to finish.
        if not self._is_told:
            self._process.kill()
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._close_log()

    def _close_log(self) -> None:
        if self._log:
            self._log.close()
            # Loaded ahead and not needed after all: it leaves no log.
            if not self._is_told:
                _remove_if_empty(Path(self._log.name))
            self._log = None


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


class StreamProcess(ReplicateProcess):
    """One process of a stream of tables that move; which one, can be changed while none runs."""

    def __init__(self, route: Route, workflow: str, number: int) -> None:
        super().__init__(route.home, workflow)
        self._route = route
        self.follow(number)

    def follow(self, number: int) -> None:
        """The stream that leads to this switch, from the next start on."""
        self._options = (STREAM, str(number))

    def _line(self) -> bytes:
        return route_line(self._route)


class SharedProcess(ReplicateProcess):
    """One process that catches up for several workflows, with one dump of the log. Thread-safe."""

    def __init__(self, url: SourceUrl, group: str, at_once: int) -> None:
        super().__init__(url, group)
        self._options = (SEVERAL, str(at_once))
        # Reentrant: `follow` and `keep_alive` hold it where they start the process again.
        self._lock = threading.RLock()
        self._followed: set[str] = set()

    def start(self) -> None:
        """One that begins again is told anew whom to follow."""
        with self._lock:
            before = len(self._started)
            super().start()
            if len(self._started) > before:
                for workflow in sorted(self._followed):
                    self._send(told(FOLLOW, workflow))

    def keep_alive(self) -> None:
        with self._lock:
            super().keep_alive()

    def end(self) -> None:
        with self._lock:
            super().end()

    def follow(self, workflow: str) -> None:
        with self._lock:
            self._followed.add(workflow)
            before = len(self._started)
            self.start()
            if len(self._started) == before:
                # Again to one that is followed already, too: its thread may have ended.
                self._send(told(FOLLOW, workflow))

    def leave(self, workflow: str) -> bool:
        """False for one that is not followed."""
        with self._lock:
            if workflow not in self._followed:
                return False
            # Whether it can be told or not: a process that is started again must not follow it any more.
            self._followed.remove(workflow)
            if self._process is not None and self._is_told:
                self._send(told(LEAVE, workflow))
            return True


class Shared:
    """Catch-up of one workflow in a process that has several."""

    def __init__(self, process: SharedProcess, url: SourceUrl, workflow: str) -> None:
        self._process, self._url, self._workflow = process, url, workflow

    def load(self) -> None:
        self._process.load()

    def start(self) -> None:
        self._process.follow(self._workflow)

    def keep_alive(self) -> None:
        self._process.keep_alive()

    def end(self) -> None:
        """Wait until it has let go: who ends it may remove its tables next."""
        if not self._process.leave(self._workflow):
            return
        deadline = SYSTEM.monotonic() + _END_SECONDS
        try:
            with connect(self._url) as session:
                while lease.is_alive(session, self._workflow, lease.REPLICATE) and SYSTEM.monotonic() < deadline:
                    time.sleep(0.05)
        except (Transient, Ambiguous) as error:
            log.info("catch-up was not waited for: %s", error)

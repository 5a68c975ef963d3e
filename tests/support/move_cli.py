"""Commands of tables that move as processes of their own, without a JVM, and an application that goes where the hook
says.

What must stay true: what runs is the program's own command; a command has the servers that a test gives it, in the
environment, and no others.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.databases import Database
from tests.support.flow import Ended
from tests.support.forked import fork
from tests.support.pairs import Pair
from tests.support.run_ddl import ROOT, Command
from vreplication.errors import VReplicationError
from vreplication.mysql.session import Session, connect

_NAMES = ("VREPLICATION_SOURCE", "VREPLICATION_PASSWORD", "VREPLICATION_TARGET", "VREPLICATION_TARGET_PASSWORD")
_HOOK = """#!/bin/sh
sed 's/.*"direction": "\\([a-z]*\\)".*/\\1/' > {file}.new && mv {file}.new {file}
"""


def start(logs: Path, *words: str, source: Database | None = None, target: Database | None = None) -> Command:
    """Start the program; `logs` is where it keeps its log files."""
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    for database, url, password in ((source, *_NAMES[:2]), (target, *_NAMES[2:])):
        if database is not None:
            environment |= {url: str(database.url), password: database.url.password}
    return Command(process=fork(words, environment | {"XDG_STATE_HOME": str(logs)}, ROOT))


class Commands:
    """With both servers, unless a call says otherwise."""

    def __init__(self, pair: Pair, logs: Path) -> None:
        self.pair, self._logs = pair, logs
        self.started: list[Command] = []

    def start(self, *words: str) -> Command:
        self.started.append(start(self._logs, *words, source=self.pair.source, target=self.pair.target))
        return self.started[-1]

    def call(self, *words: str) -> Ended:
        return self.start(*words).finish()

    def at_source(self, *words: str) -> Ended:
        return start(self._logs, *words, source=self.pair.source).finish()

    def at_target(self, *words: str) -> Ended:
        return start(self._logs, *words, target=self.pair.target).finish()

    def end(self) -> None:
        for command in self.started:
            if command.is_going:
                command.kill()


@contextlib.contextmanager
def commands(pair: Pair, logs: Path) -> Iterator[Commands]:
    made = Commands(pair, logs)
    try:
        yield made
    finally:
        made.end()


@dataclass(slots=True)
class Routed:
    """A writer of table `t` (id, n, v) that goes where the hook has said last, and remembers what was accepted."""

    pair: Pair
    file: Path
    accepted: int = 0
    wrote: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def is_at_target(self) -> bool:
        return self.file.exists() and self.file.read_text().strip() == "switch"

    def start(self) -> None:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self.stop.is_set():
            is_at_target = self.is_at_target
            try:
                with connect((self.pair.target if is_at_target else self.pair.source).app_url) as session:
                    while not self.stop.is_set() and is_at_target is self.is_at_target:
                        self._one(session)
            except VReplicationError as error:
                self.errors.append(str(error))
                self.stop.wait(0.01)

    def _one(self, session: Session) -> None:
        id, n = self.accepted % 97, self.accepted
        session.execute("REPLACE INTO t (id, n, v) VALUES (%s,%s,'w')", (id, n))
        self.wrote[id] = n
        self.accepted += 1
        self.stop.wait(0.002)

    def end(self) -> None:
        self.stop.set()
        if self._thread:
            self._thread.join(30)

    def check(self, session: Session) -> None:
        """The table holds what was accepted last, of each row."""
        found = {int(id): int(n) for id, n in session.rows("SELECT id, n FROM t")}
        assert {id: found.get(id) for id in self.wrote} == self.wrote


@contextlib.contextmanager
def routed(pair: Pair, folder: Path) -> Iterator[tuple[Routed, str]]:
    """The application, and the command to be named by --on-switch."""
    file, hook = folder / "direction", folder / "hook.sh"
    hook.write_text(_HOOK.format(file=file))
    hook.chmod(0o755)
    app = Routed(pair, file)
    app.start()
    try:
        yield app, str(hook)
    finally:
        app.end()

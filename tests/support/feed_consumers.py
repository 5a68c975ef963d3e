"""Consumers of a feed's topic for tests: in a thread, or as a process that may be killed.

What must stay true: whatever a test leaves running is ended here, by process id; an error of a consumer fails the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from vreplication.errors import VReplicationError
from vreplication.feed.address import Address, parse
from vreplication.feed.consume import consume, reading
from vreplication.mysql import url as urls
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import VARIABLE


@dataclass
class Consuming:
    """One in a thread. said: what it notified; more: of `consume`."""

    address: Address
    target: SourceUrl
    mode: str
    group: str = "g"
    more: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    error: BaseException | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            consume(
                self.address,
                self.target,
                self.mode,
                group=self.group,
                stop=self.stop,
                notify=self.said.append,
                **self.more,
            )
        except BaseException as error:
            self.error = error

    @property
    def is_going(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self.stop.set()
        self._thread.join(60)
        if self._thread.is_alive():
            raise TimeoutError("a consumer does not end")

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def failed(self, seconds: float = 30) -> VReplicationError:
        """It ends by itself, with this."""
        self._thread.join(seconds)
        assert isinstance(self.error, VReplicationError), (self.error, self.said)
        return self.error

    def __enter__(self) -> Consuming:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end()
        if self.error is not None and error is None:
            raise self.error


class ConsumingProcess:
    """One of its own, with a folder of pause points. idle_seconds: for so long it may keep its locks standing still."""

    def __init__(
        self,
        address: Address,
        target: SourceUrl,
        mode: str,
        pauses: Path,
        group: str = "g",
        *,
        idle_seconds: int = reading._IDLE_SECONDS,
    ) -> None:
        words = [str(address), _url(target), mode, group, str(idle_seconds)]
        environment = {**os.environ, VARIABLE: str(pauses), "PYTHONPATH": str(Path(__file__).parents[2])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.feed_consumers", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> str:
        """Returns what it said."""
        self._process.kill()
        return self._process.communicate(timeout=180)[0]

    @property
    def is_going(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> ConsumingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


def _url(target: SourceUrl) -> str:
    tls = "&".join(f"{name}={value}" for name, value in target.tls)
    return f"mysql+pymysql://{target.user}:{target.password}@{target.host}:{target.port}/{target.database}" + (
        f"?{tls}" if tls else ""
    )


def main() -> None:
    where, target, mode, group, idle_seconds = sys.argv[1:]
    reading._IDLE_SECONDS = int(idle_seconds)
    consume(
        parse(where),
        urls.parse(target),
        mode,
        group=group,
        stop=threading.Event(),
        notify=lambda said: print(said, flush=True),
    )


if __name__ == "__main__":
    main()

"""Lakes for tests: filled, read and compacted by one process that keeps its Spark, or by commands that may be killed.

What must stay true: whatever a test leaves running is ended here, by process id; what went wrong there fails here, in
the same words.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.flow import wait_until
from tests.support.private_server import missing
from vreplication import errors
from vreplication.errors import Refused, VReplicationError
from vreplication.feed.address import parse
from vreplication.pausepoints import VARIABLE
from vreplication.spark.sql import kafka_jars

_ROOT = Path(__file__).parents[2]
_QUICK_TO_START = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}


class LakeServer:
    """A process with one Spark for all that is asked of it, one after the other; another one where it has ended."""

    def __init__(self) -> None:
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.lakes"],
            env={**os.environ, **_QUICK_TO_START, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _ask(self, what: str, **words: Any) -> Any:
        if self._process.poll() is not None:
            # The test in which it ended has failed; the next one is another.
            self._process = self._started()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"what": what, **words}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                if "error" in said:
                    raise getattr(errors, said["error"], AssertionError)(said["message"])
                return said["found"]
        self._process.wait(60)
        raise AssertionError("the lake's process has ended")

    def fill(self, address: object, directory: Path, most: int = 1_000_000) -> list[dict[str, int]]:
        """Until it has caught up; what each manifest brought. most: messages of a batch. Raises what it raised."""
        found: list[dict[str, int]] = self._ask("fill", address=str(address), directory=str(directory), most=most)
        return found

    def rows(self, directory: Path, table: str, as_of: int | None = None, zone: str = "UTC") -> list[dict[str, Any]]:
        """zone: of the reader's session."""
        words = {"directory": str(directory), "table": table, "as_of": as_of}
        found: list[dict[str, Any]] = self._ask("rows", **words, zone=zone)
        return found

    def changes(self, directory: Path, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("changes", directory=str(directory), table=table, as_of=None)
        return found

    def compact(self, directory: Path, fold_before: int | None = None, keep_seconds: float = 3600.0) -> dict[str, int]:
        found: dict[str, int] = self._ask(
            "compact", directory=str(directory), fold_before=fold_before, keep_seconds=keep_seconds
        )
        return found

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()


class LakeCommand:
    """`vreplication …` with a folder of pause points. With --json, what it says is in `lines`."""

    def __init__(self, *words: str, pauses: Path | None = None, **environment: str) -> None:
        more = {VARIABLE: str(pauses)} if pauses else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vreplication", *words],
            env={**os.environ, **_QUICK_TO_START, "PYTHONUNBUFFERED": "1", **more, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.said.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    @property
    def watermark(self) -> int:
        """Of the last manifest that it told of."""
        told = [json.loads(line) for line in self.said if line.startswith('{"event": "manifest"')]
        return int(told[-1]["watermark"]) if told else 0

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def ended(self, seconds: float = 240) -> int:
        code = self._process.wait(seconds)
        self._thread.join(10)
        return code

    @property
    def is_going(self) -> bool:
        return self._process.poll() is None

    def reaches(self, pauses: Path, point: str, seconds: float = 240) -> None:
        """Until it is held there."""
        reached = pauses / f"{point}.reached"
        wait_until(lambda: reached.exists() or not self.is_going, "the point is not reached", seconds)
        assert reached.exists(), self.text

    def __enter__(self) -> LakeCommand:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_going:
            self.kill()


def need_jars() -> None:
    """Without the connector's jars tests are skipped visibly, and fail in CI."""
    try:
        kafka_jars()
    except Refused as error:
        missing(str(error))


@contextlib.contextmanager
def lake_server() -> Iterator[LakeServer]:
    need_jars()
    server = LakeServer()
    try:
        yield server
    finally:
        server.close()


def main() -> None:
    from vreplication.spark.sql import sql_session

    session = sql_session("local[*]", jars=kafka_jars())
    for line in sys.stdin:
        try:
            said: dict[str, Any] = {"found": _do(session, **json.loads(line))}
        except VReplicationError as error:
            said = {"error": type(error).__name__, "message": str(error)}
        except Exception as error:
            said = {"error": "", "message": f"{type(error).__name__}: {str(error)[:2000]}"}
        print(json.dumps(said, default=str), flush=True)


def _do(session: Any, what: str, directory: str, **words: Any) -> Any:
    from vreplication.feed.lake import spark_reading as reading
    from vreplication.feed.lake.manifest import Store
    from vreplication.feed.lake.spark_compacting import compact
    from vreplication.feed.lake.stream import Filling, fill

    if what == "fill":
        told: list[Any] = []
        asked = Filling(
            address=parse(words["address"]),
            store=Store(Path(directory)),
            seconds=0.1,
            until_caught_up=True,
            most=words["most"],
        )
        fill(asked, lambda: session, stop=threading.Event(), notify=lambda _: None, committed=told.append)
        return [{name: getattr(each, name) for name in each.__slots__} for each in told]
    if what == "compact":
        done = compact(Store(Path(directory)), lambda: session, **words)
        return {name: getattr(done, name) for name in done.__slots__}
    read = reading.read_table if what == "rows" else reading.read_changes
    session.conf.set("spark.sql.session.timeZone", words.get("zone", "UTC"))
    try:
        frame = read(session, directory, words["table"], words["as_of"])
        return [json.loads(each.line) for each in reading.lines(frame).collect()]
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


if __name__ == "__main__":
    main()

"""The commands of a feed as processes: said as a user would type them, started, killed, started again, ended.

What must stay true: a signal goes to the process id of one that was started here; nothing of the user's VREPLICATION_…
reaches them; Ctrl-C comes to us alone, and they die with us.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.processes import dies_with_us, end

FEED = "shop-feed"
_ASK_SECONDS = 120.0


class Failed(Exception):
    """What did not go as it should, in a sentence."""


@dataclass(slots=True, kw_only=True)
class Commands:
    """say: shows a line. folder: where they run, beside the files with the addresses."""

    program: Sequence[str]
    folder: Path
    sink: str
    mode: str
    partitions: int
    say: Callable[[str], None]
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, *, say: bool) -> None:
        """The feed and two consumers; the same words each time."""
        feed = [
            "changefeed --source-file mariadb.url --source-file mysql.url",
            f"--sink {self.sink}",
            f"--workflow {FEED} --partitions {self.partitions} --dispatch index-value --snapshot initial --yes",
        ]
        consume = [f"consume --from {self.sink}", f"--target-file target.url --mode {self.mode}"]
        if say:
            self.say("\n$ vreplication " + " \\\n    ".join(feed))
            self.say("$ vreplication " + " \\\n    ".join(consume) + "    # twice\n")
        self._spawn("changefeed", " ".join(feed).split())
        for number in (1, 2):
            self._spawn(f"consume {number}", " ".join(consume).split())

    def ask(self, *words: str) -> str:
        """A command that ends by itself, and what it prints. Raises Failed."""
        self.say(f"$ vreplication {' '.join(words)}")
        process = self._popen(words, subprocess.PIPE)
        try:
            said = process.communicate(timeout=_ASK_SECONDS)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            raise Failed(f"`vreplication {words[0]}` has not ended in {_ASK_SECONDS:.0f} s.") from None
        finally:
            end(process)
        if process.returncode:
            raise Failed(f"`vreplication {words[0]}` ended with {process.returncode}: {said.strip()}")
        return said

    def check(self) -> None:
        """Raises Failed when one of them has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                words = "\n".join(self._log(name).read_text(errors="replace").splitlines()[-3:])
                raise Failed(f"`{name}` ended with {process.returncode}: {words}")

    def kill(self) -> None:
        """kill -9 of all of them."""
        for process in self._running.values():
            process.send_signal(signal.SIGKILL)
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def end(self) -> None:
        """Cleanly; idempotent."""
        for process in self._running.values():
            end(process)
        self._running.clear()

    def _spawn(self, name: str, words: Sequence[str]) -> None:
        with self._log(name).open("ab") as log:
            self._running[name] = self._popen(words, log.fileno())

    def _popen(self, words: Sequence[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*dies_with_us(), *self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self._environment,
            process_group=0,
        )

    @property
    def _environment(self) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("VREPLICATION_")}
        return {**others, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(self.folder / "state")}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

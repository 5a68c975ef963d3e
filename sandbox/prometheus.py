"""A private Prometheus in a folder of its own, that asks one address twice a second.

What must stay true: it listens on 127.0.0.1 only, reads no configuration of the machine, and ends with who started it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox import binaries
from sandbox.kafka import free_ports
from sandbox.processes import dies_with_us

START_SECONDS = 60.0


class PrometheusFailed(Exception):
    """It is not installed, did not start, or does not take what it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    port: int

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query. Raises PrometheusFailed with its own words where it cannot be parsed."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            raise PrometheusFailed(f"{text}: {json.load(error)['error']}") from None


@contextlib.contextmanager
def running(target: str) -> Iterator[Prometheus]:
    """Asks `target` (host:port). Raises PrometheusFailed."""
    program = binaries.prometheus()
    if program is None:
        raise PrometheusFailed("Prometheus is not installed. Run: python3 -m sandbox.install prometheus")
    with tempfile.TemporaryDirectory(prefix="vreplication-prometheus-") as folder:
        (port,) = free_ports(1)
        job = {"job_name": "vreplication", "static_configs": [{"targets": [target]}]}
        # JSON is YAML.
        config = {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": [job]}
        (Path(folder) / "config.yml").write_text(json.dumps(config))
        process = _launch(program, Path(folder), port)
        try:
            _wait(process, port, Path(folder) / "log")
            yield Prometheus(port=port)
        finally:
            process.kill()
            process.wait()


def lint(text: str) -> str:
    """What Prometheus' own tool has against names, types and helps; '' where nothing."""
    words = [str(binaries.prometheus("promtool")), "check", "metrics"]
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False).stderr


def _launch(program: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    words = [
        *dies_with_us("KILL"), str(program), f"--config.file={folder}/config.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
            return
        time.sleep(0.05)
    raise PrometheusFailed(f"Prometheus does not start: {log.read_text()[-500:]}")

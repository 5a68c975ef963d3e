"""Start, kill and restart a private Kafka Connect worker with Debezium's connectors: what feeds are measured beside.

A worker of distributed mode, alone in its group, with or without exactly-once for sources. Its heap and its collector
are what Kafka's own script gives it, unless told otherwise.

What must stay true: it listens on 127.0.0.1 only and ends with the process that started it; nothing is fetched but by
`prepare`; a signal goes to one process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox import install, kafka_jars
from sandbox.kafka import HOST, LOGGING, StartFailed, dies_with_us, free_ports, java_program, trouble
from sandbox.servers import RunningServer

START_SECONDS = 120.0
HEAP = ("-Xms256M", "-Xmx2G")
# As kafka-run-class.sh has it.
_COLLECTOR = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
_CLASSES = {
    "mysql": "io.debezium.connector.mysql.MySqlConnector",
    "mariadb": "io.debezium.connector.mariadb.MariaDbConnector",
}
_CONVERTERS = {
    f"{what}.converter{more}": value
    for what in ("key", "value")
    for more, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
}


def prepare(flavors: Sequence[str]) -> None:
    """Fetch what is missing. Raises InstallFailed."""
    for jars in (kafka_jars.CONNECT, *map(kafka_jars.debezium, flavors)):
        if not jars.folder.exists():
            install.install_maven()
            install.say(f"{jars.title} into {jars.folder} with mvn")
            install.fetch_jars(jars)


@dataclass(slots=True, kw_only=True)
class Worker:
    """One process. folder: is made; bootstrap: of the brokers."""

    folder: Path
    bootstrap: str
    exactly_once: bool
    heap: Sequence[str] = HEAP
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the worker was never started")
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / "connect.log"

    def start(self) -> None:
        """Until it answers. Raises StartFailed."""
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise StartFailed(f"Kafka Connect did not start:\n{trouble(self.log.read_text(errors='replace'))}")
            time.sleep(0.05)

    def launch(self) -> None:
        """Start the process and do not wait for what it answers."""
        self._write()
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*dies_with_us(), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9: what a crash looks like."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)

    def _answers(self) -> bool:
        """Its connectors can be asked for, so the group has a leader."""
        with contextlib.suppress(OSError):
            self.ask("GET", "/connectors")
            return True
        return False

    def _command(self) -> list[str]:
        jars = sorted(kafka_jars.CONNECT.folder.glob("*.jar"))
        places = [f"-Djava.io.tmpdir={self.folder}/tmp", f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties"]
        program = ["org.apache.kafka.connect.cli.ConnectDistributed", f"{self.folder}/connect.properties"]
        return [java_program(), *self.heap, *_COLLECTOR, *places, "-cp", os.pathsep.join(map(str, jars)), *program]

    def _write(self) -> None:
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self._place_plugins()
        (self.folder / "log4j2.properties").write_text(LOGGING)
        lines = [f"{name}={value}\n" for name, value in self._properties().items()]
        (self.folder / "connect.properties").write_text("".join(lines))

    def _place_plugins(self) -> None:
        """Each a folder of jars in a folder."""
        place = self.folder / "plugins"
        place.mkdir(exist_ok=True)
        for jars in map(kafka_jars.debezium, kafka_jars.DEBEZIUM):
            if jars.folder.exists() and not (place / jars.name).exists():
                (place / jars.name).symlink_to(jars.folder)

    def _properties(self) -> dict[str, object]:
        group = f"connect-{'once' if self.exactly_once else 'often'}-{self.port}"
        topics = {f"{what}.storage.topic": f"_{group}-{what}" for what in ("config", "offset", "status")}
        copies = {f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")}
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            **_CONVERTERS,
            **topics,
            **copies,
            "offset.storage.partitions": 1,
            "status.storage.partitions": 1,
            "listeners": f"http://{HOST}:{self.port}",
            "plugin.path": self.folder / "plugins",
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled" if self.exactly_once else "disabled",
            # So that one that was killed is missed as soon as the broker allows, and its work is given out at once.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "scheduled.rebalance.max.delay.ms": 0,
        }

    # Connectors.

    def ask(self, method: str, path: str, said: Any = None) -> Any:
        """Raises OSError; what the worker refuses is one, too, with its words."""
        data = None if said is None else json.dumps(said).encode()
        request = urllib.request.Request(f"http://{HOST}:{self.port}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found = answer.read()
        except urllib.error.HTTPError as error:
            raise OSError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:500]}") from None
        return json.loads(found) if found else None

    def create(self, name: str, config: Mapping[str, str], *, state: str = "RUNNING") -> None:
        """state: STOPPED, so that its offsets may be set first."""
        self._again("POST", "/connectors", {"name": name, "config": config, "initial_state": state})

    def set_offset(self, name: str, server: str, offset: Mapping[str, object]) -> None:
        """Of a stopped connector: from where it reads the log."""
        offsets = {"offsets": [{"partition": {"server": server}, "offset": offset}]}
        self._again("PATCH", f"/connectors/{name}/offsets", offsets)

    def offsets(self, name: str) -> list[dict[str, Any]]:
        return list(self.ask("GET", f"/connectors/{name}/offsets")["offsets"])

    def resume(self, name: str) -> None:
        self._again("PUT", f"/connectors/{name}/resume")

    def delete(self, name: str) -> None:
        self._again("DELETE", f"/connectors/{name}")

    def failure(self, name: str) -> str:
        """Why it does not run; empty where it does."""
        found = self.ask("GET", f"/connectors/{name}/status")
        parts = [found["connector"], *found["tasks"]]
        return next((part.get("trace", "failed") for part in parts if part["state"] == "FAILED"), "")

    def _again(self, method: str, path: str, said: Any = None) -> None:
        """While the worker sorts itself out it says 409, and right after its start it may know of nothing yet."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask(method, path, said)
                return
            except OSError as error:
                if time.monotonic() > deadline or not any(word in str(error) for word in (" 409 ", " 404 ", " 500 ")):
                    raise
            time.sleep(0.2)


def connector(server: RunningServer, bootstrap: str, prefix: str, **more: str) -> dict[str, str]:
    """Debezium's settings for a server of ours, its defaults but for what has to be said."""
    history = "schema.history.internal.kafka"
    return {
        "connector.class": _CLASSES[server.flavor],
        "tasks.max": "1",
        "database.hostname": HOST,
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "database.server.id": str(500_000 + sum(prefix.encode())),
        **({} if server.is_mariadb else {"database.ssl.mode": "disabled", "driver.allowPublicKeyRetrieval": "true"}),
        "topic.prefix": prefix,
        f"{history}.bootstrap.servers": bootstrap,
        f"{history}.topic": f"_history.{prefix}",
        # The broker makes no topic by itself.
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        **more,
    }

"""Start, kill, freeze and restart a private Apache Kafka in a folder of its own: one broker, or several.

`python -m sandbox.kafka` alone keeps an archive of the classes that a broker loads, beside the jars.

What must stay true: a broker listens on 127.0.0.1 only; it ends with the process that started it, also when that one is
killed; a signal goes to one process id; a broker that was killed or stopped starts again with its ports and its data.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sandbox import kafka_jars
from sandbox.binaries import ServerMissing

HOST = "127.0.0.1"
START_SECONDS = 90.0
STOP_SECONDS = 60.0
_ARCHIVE = kafka_jars.BROKER.folder / kafka_jars.ARCHIVE
# Quick to start rather than quick at work, on cores that others need too.
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto", "-Xlog:disable")
_DEFAULTS: dict[str, object] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    # A transaction whose producer is gone ends when its time is up, not up to ten seconds later.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    # How soon it is noticed that a broker is gone. One that was killed starts again no sooner, either.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    # Taken from the heap at once; the default is a third of it.
    "log.cleaner.dedupe.buffer.size": 16 << 20,
}
LOGGING = """status = error
appender.0.type = Console
appender.0.name = out
appender.0.layout.type = PatternLayout
appender.0.layout.pattern = %d %p [%t] %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.0.ref = out
# All settings, at each start.
logger.0.name = org.apache.kafka.common.config.AbstractConfig
logger.0.level = warn
"""


class StartFailed(Exception):
    """A broker did not answer; the text ends with what its log has to say of that."""


@dataclass(slots=True, kw_only=True)
class Broker:
    """One process, controller as well as broker. Its number is its id in Kafka's metadata.

    java: options of the JVM. directory_id: by which the controllers know its data.
    """

    number: int
    folder: Path
    port: int
    controller_port: int
    java: Sequence[str]
    directory_id: str = field(default_factory=lambda: _uuid())
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def controller(self) -> str:
        return f"{HOST}:{self.controller_port}"

    @property
    def pid(self) -> int:
        """Process id; another one after each start."""
        if self._process is None:
            raise RuntimeError(f"broker {self.number} was never started")
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def write(self, properties: Mapping[str, object]) -> None:
        """Its settings, into a folder that is new."""
        self.folder.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        self.log.touch()
        (self.folder / "log4j2.properties").write_text(LOGGING)
        lines = [f"{name}={value}\n" for name, value in properties.items()]
        (self.folder / "server.properties").write_text("".join(lines))

    def command(self, program: str, *words: str) -> list[str]:
        """One of Kafka's programs, as it is run for this broker."""
        places = [f"-Djava.io.tmpdir={self.folder}/tmp", f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties"]
        return [java_program(), *self.java, *places, "-cp", _class_path(), program, *words]

    def launch(self) -> None:
        """Start the process and do not wait for what it answers."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*dies_with_us(), *self.command("kafka.Kafka", f"{self.folder}/server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """Signal it and wait until it is gone; SIGKILL when it does not go. A frozen one hears SIGKILL only."""
        self.send(number)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            self._process.kill()
            self._process.wait(STOP_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Brokers that were started together. A broker is named by its number, from 0 on."""

    brokers: tuple[Broker, ...]

    @property
    def bootstrap(self) -> str:
        """host:port of each, with commas between them."""
        return ",".join(broker.address for broker in self.brokers)

    def admin(self) -> AdminClient:
        """A new client to which everything is allowed."""
        return _client(self.bootstrap)

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """As many copies as there are brokers, three at most; there when this returns."""
        admin = self.admin()
        topic = NewTopic(name, num_partitions=partitions, replication_factor=_copies(self), config=dict(settings or {}))
        admin.create_topics([topic])[name].result(START_SECONDS)
        _wait(lambda: self._leads_all(admin, name), f"no leader of {name}")

    def leader(self, topic: str, partition: int = 0) -> int:
        """Number of the broker that takes writes; -1 while there is none."""
        found = self.admin().list_topics(topic, timeout=START_SECONDS).topics[topic].partitions.get(partition)
        return -1 if found is None else int(found.leader)

    def kill(self, number: int) -> None:
        """kill -9: what a crash looks like."""
        self.brokers[number].end(signal.SIGKILL)

    def stop(self, number: int) -> None:
        """Shut down cleanly; kill -9 after a minute."""
        self.thaw(number)
        self.brokers[number].end(signal.SIGTERM)

    def start(self, *numbers: int) -> None:
        """Again, after `kill` or `stop`. Several at once where there are too few of them to agree on anything."""
        for number in numbers:
            if not self.brokers[number].is_alive():
                self.brokers[number].launch()
        for number in numbers:
            _wait_until_ready(self.brokers[number], beside=0)

    def freeze(self, number: int) -> None:
        """It does nothing any more, and its connections stay open."""
        self.brokers[number].send(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self.brokers[number].send(signal.SIGCONT)

    def restore(self) -> None:
        """All of them alive, and each with all of its data again."""
        for broker in self.brokers:
            self.thaw(broker.number)
        self.start(*range(len(self.brokers)))
        admin = self.admin()
        _wait(lambda: _is_in_sync(admin), "some copies stay behind")

    def close(self) -> None:
        """Nobody reads its data any more: no clean end."""
        for broker in self.brokers:
            broker.end(signal.SIGKILL)

    def _leads_all(self, admin: AdminClient, name: str) -> bool:
        """Each broker is asked by itself: who has not heard of a topic yet tells a client that there is none."""
        clients = [admin] if len(self.brokers) == 1 else [_client(broker.address) for broker in self.brokers]
        return all(_has_leaders(client, name) for client in clients)


def start_cluster(
    directory: Path, brokers: int = 1, *, options: Mapping[str, object] | None = None, java: Sequence[str] | None = None
) -> Cluster:
    """Format `directory` for as many brokers and start them there.

    options: settings of each broker beside ours, or instead of them. java: options of its JVM beside ours, instead of
    the archive's. Raises ServerMissing or StartFailed.
    """
    for attempt in range(3):
        cluster = _describe(directory.resolve(), brokers, java)
        try:
            _begin(cluster, options or {})
        except BaseException as error:
            cluster.close()
            # Between choosing a port and binding it somebody else may have taken it.
            if attempt == 2 or not isinstance(error, StartFailed) or not _port_was_taken(cluster):
                raise
            for broker in cluster.brokers:
                shutil.rmtree(broker.folder)
            continue
        return cluster
    raise AssertionError("unreachable")


def _describe(directory: Path, count: int, java: Sequence[str] | None) -> Cluster:
    heap = "-Xmx512m" if count == 1 else "-Xmx320m"
    archive = [f"-XX:SharedArchiveFile={_ARCHIVE}"] if java is None else java
    ports = free_ports(2 * count)
    return Cluster(
        brokers=tuple(
            Broker(
                number=number,
                folder=directory / f"broker-{number}",
                port=ports.pop(),
                controller_port=ports.pop(),
                java=(heap, *_JAVA_OPTIONS, *archive),
            )
            for number in range(count)
        )
    )


def _begin(cluster: Cluster, options: Mapping[str, object]) -> None:
    for broker in cluster.brokers:
        broker.write({**_properties(broker, cluster), **options})
    _format(cluster)
    for broker in cluster.brokers:
        broker.launch()
    for broker in cluster.brokers:
        _wait_until_ready(broker, beside=len(cluster.brokers) - 1)


def _properties(broker: Broker, cluster: Cluster) -> dict[str, object]:
    copies = _copies(cluster)
    must_have = max(1, copies - 1)
    return {
        **_DEFAULTS,
        "node.id": broker.number,
        "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{broker.controller}",
        "controller.quorum.bootstrap.servers": ",".join(other.controller for other in cluster.brokers),
        "log.dirs": broker.folder / "data",
        "default.replication.factor": copies,
        "min.insync.replicas": must_have,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": must_have,
    }


def _copies(cluster: Cluster) -> int:
    return min(3, len(cluster.brokers))


def _format(cluster: Cluster) -> None:
    """Side by side: each is the start of a JVM."""
    voters = ",".join(f"{b.number}@{b.controller}:{b.directory_id}" for b in cluster.brokers)
    fixed = ("format", "--cluster-id", _uuid(), "--initial-controllers", voters, "--config")
    running = [_format_one(broker, *fixed) for broker in cluster.brokers]
    for process in running:
        said = process.communicate(timeout=START_SECONDS)[0]
        if process.returncode:
            raise StartFailed(f"Formatting Kafka's storage failed:\n{trouble(said)}")


def _format_one(broker: Broker, *words: str) -> subprocess.Popen[str]:
    command = broker.command("kafka.tools.StorageTool", *words, f"{broker.folder}/server.properties")
    out = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True)


def _wait_until_ready(broker: Broker, *, beside: int) -> None:
    """Until it says itself that it is one of the cluster's, with as many others at least."""
    client = _client(broker.address)
    deadline = time.monotonic() + START_SECONDS
    while not _answers(client, broker.number, beside):
        if not broker.is_alive():
            raise StartFailed(f"broker {broker.number} ended while starting:\n{trouble(broker.said())}")
        if time.monotonic() > deadline:
            raise StartFailed(
                f"broker {broker.number} did not answer in {START_SECONDS:.0f} s:\n{trouble(broker.said())}"
            )
        time.sleep(0.05)


def _answers(client: AdminClient, number: int, beside: int) -> bool:
    with contextlib.suppress(KafkaException):
        found = client.list_topics(timeout=1).brokers
        return number in found and len(found) > beside
    return False


def _has_leaders(client: AdminClient, topic: str) -> bool:
    with contextlib.suppress(KafkaException):
        found = client.list_topics(topic, timeout=1).topics[topic]
        return found.error is None and all(part.leader >= 0 for part in found.partitions.values())
    return False


def _is_in_sync(client: AdminClient) -> bool:
    with contextlib.suppress(KafkaException):
        topics = client.list_topics(timeout=1).topics.values()
        parts = [part for topic in topics for part in topic.partitions.values()]
        return all(part.leader >= 0 and len(part.isrs) == len(part.replicas) for part in parts)
    return False


def _wait(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.05)


def _client(addresses: str) -> AdminClient:
    """It says nothing of brokers that are gone, and tries them again soon."""
    return AdminClient({"bootstrap.servers": addresses, "log_level": 0, "reconnect.backoff.max.ms": 200})


def java_program() -> str:
    """Raises ServerMissing where there is no Java, or no Kafka for it."""
    if not kafka_jars.BROKER.folder.exists():
        raise ServerMissing(f"Kafka is not in {kafka_jars.BROKER.folder}. Run: make install-kafka")
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    if program is None or not Path(program).exists():
        raise ServerMissing("Java is not installed. Run: make install-kafka")
    return program


def _class_path() -> str:
    """Always in the same order, or the archive would not fit."""
    return os.pathsep.join(map(str, sorted(kafka_jars.BROKER.folder.glob("*.jar"))))


def dies_with_us() -> list[str]:
    """As servers do it. SIGKILL, for a frozen one hears nothing else."""
    program = shutil.which("setpriv")
    if program is None or threading.current_thread() is not threading.main_thread():
        return []
    return [program, "--pdeathsig", "KILL"]


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to connections, one of which might take the port of a broker that is gone."""
    found: set[int] = set()
    while len(found) < count:
        port = 16_000 + secrets.randbelow(16_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.add(port)
    return list(found)


def _uuid() -> str:
    """As Kafka writes one; a dash in front would make it an option of its programs."""
    return f"A{secrets.token_urlsafe(16)[1:]}"


def _port_was_taken(cluster: Cluster) -> bool:
    return any("Address already in use" in broker.said() for broker in cluster.brokers)


def trouble(log: str, lines: int = 25) -> str:
    """The errors, which a broker that ends says much after, or else its last words."""
    said = log.splitlines()
    errors = [line for line in said if " ERROR " in line or " FATAL " in line or "Exception: " in line]
    return "\n".join((errors or said)[-lines:])


def keep_archive() -> None:
    """Written by a broker that ends cleanly, then moved into place whole. It fits this Java and these jars only."""
    with tempfile.TemporaryDirectory(prefix="making-", dir=kafka_jars.BROKER.folder) as folder:
        made = Path(folder) / kafka_jars.ARCHIVE
        cluster = start_cluster(Path(folder), java=[f"-XX:ArchiveClassesAtExit={made}"])
        cluster.stop(0)
        made.rename(_ARCHIVE)


def main() -> int:
    try:
        keep_archive()
    except (ServerMissing, StartFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

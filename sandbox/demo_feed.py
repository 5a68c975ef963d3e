"""`make demo-feed`: MariaDB and MySQL into one Kafka topic, and from there into a third server, while all of it is
scaled and killed, servers and all; then prove that the third one is equal, and show how late it was.

What must stay true: the proof does not trust vreplication: rows are compared by plain SELECTs, and the topic is read by
docs/feed.md alone (sandbox.feed_topic); the exit code is 0 only when all commands did as they were told, the reader of
the target never saw half a transaction, and every comparison holds; whatever was started is ended by its process id,
whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.status import Status

from sandbox import binaries, feed_proof, feed_workload, kafka, servers
from sandbox.databases import Database, create_database
from sandbox.feed_commands import FEED, Commands, Failed
from sandbox.feed_topic import Topic
from sandbox.feed_workload import MARIADB, MYSQL, TABLES, WRITERS, Moments, Size, Workload
from sandbox.install import ROOT
from sandbox.kafka import Cluster
from sandbox.processes import interrupt_once, runs_in, short
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session

SCHEMA, TARGET = "shop", "target"
FOLDER = ROOT / ".sandbox" / "demo-feed"
ROWS_VARIABLE = "VREPLICATION_DEMO_ROWS"
SEED_VARIABLE = "VREPLICATION_DEMO_SEED"
PARTITIONS = (3, 5, 2)
NAMES = {MARIADB: "MariaDB", MYSQL: "MySQL", TARGET: "the third one"}
_ROLES = {MARIADB: "first source", MYSQL: "second source", TARGET: "target"}
FLAVORS = {MARIADB: MARIADB, MYSQL: MYSQL, TARGET: MARIADB}
PATIENCE_SECONDS = 90.0
LEVEL_SECONDS = 2.0
"""MariaDB tells whole seconds: a target is hardly ever closer than one of them to two sources."""
_LOG_IS_TOLD = {"binlog-row-metadata": "FULL"}
_OF_SOURCES = {MARIADB: _LOG_IS_TOLD, MYSQL: {**_LOG_IS_TOLD, "gtid-mode": "ON", "enforce-gtid-consistency": "ON"}}
_KILLED = "everything killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What to show, and where. rows: of all tables before it begins. seconds: of each stage; down: until what was
    killed is started again. rate: transactions a second of each writer. mode: of the consumers."""

    rows: int = 40_000
    folder: Path = FOLDER
    seed: int = 1
    seconds: float = 12.0
    down: float = 3.0
    rate: float = 40.0
    mode: str = "transaction"
    program: Sequence[str] = (str(ROOT / ".venv/bin/vreplication"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How it went. stages: those of which latency was measured."""

    stages: tuple[str, ...]
    troubles: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.troubles


def main() -> int:
    """Exit 0 when the proof holds, 1 when not, 2 on bad input, 130 when interrupted."""
    console = Console(highlight=False)
    try:
        demo = read_settings()
        interrupt_once()
        return 0 if run(demo, console).holds else 1
    except (ValueError, binaries.ServerMissing, servers.StartFailed, kafka.StartFailed) as error:
        console.print(f"demo-feed: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("demo-feed: interrupted; all that was started is ended, and its files are removed")
        return 130


def read_settings() -> Demo:
    """From the environment. Raises ValueError with a sentence."""
    rows, seed = os.environ.get(ROWS_VARIABLE) or "40000", os.environ.get(SEED_VARIABLE) or "1"
    for name, value in ((ROWS_VARIABLE, rows), (SEED_VARIABLE, seed)):
        if not value.isdigit() or int(value) < 1:
            raise ValueError(f"{name} must be a number of at least 1, not {value!r}.")
    return Demo(rows=int(rows), seed=int(seed))


def run(demo: Demo, console: Console) -> Result:
    """Start all, show it, end all."""
    _make_room(demo.folder)
    try:
        with contextlib.ExitStack() as stack:
            show = _start(demo, console, stack)
            result = show.run()
    except KeyboardInterrupt:
        shutil.rmtree(demo.folder, ignore_errors=True)
        raise
    if result.holds:
        # What failed stays, to be looked at.
        shutil.rmtree(demo.folder)
    return result


def _make_room(folder: Path) -> None:
    """Remove what an earlier demo left; raises ValueError when one is still running."""
    for name in FLAVORS:
        with_pid = folder / name / "pid"
        if with_pid.exists() and runs_in(int(with_pid.read_text()), folder):
            raise ValueError(f"another demo runs in {short(folder)} (process {with_pid.read_text()}); end it first.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


# -- servers and brokers ----------------------------------------------------------------------------------------------


def _start(demo: Demo, console: Console, stack: contextlib.ExitStack) -> _Show:
    said = {f: f"{NAMES[f]} {'.'.join(map(str, binaries.version(f)))}" for f in (MARIADB, MYSQL)}
    console.print(f"Starting {said[MARIADB]} and {said[MYSQL]}, the sources, a second MariaDB,")
    console.print("the target, and a Kafka of three brokers …")
    places: dict[str, Database] = {}
    for number, (name, flavor) in enumerate(FLAVORS.items()):
        options = {"server-id": 201 + number, **_OF_SOURCES.get(name, {})}
        server = servers.start(flavor, demo.folder / name, options=options)
        stack.callback(server.stop)
        places[name] = create_database(server, SCHEMA, grants="feed_source") if name in TABLES else _target(server)
        stack.callback(places[name].close)
        _keep_url(demo.folder / f"{name}.url", places[name])
    cluster = kafka.start_cluster(demo.folder / "kafka", 3)
    stack.callback(cluster.close)
    show = _Show(demo=demo, console=console, places=places, cluster=cluster)
    stack.callback(show.stop)
    return show


def _target(server: servers.RunningServer) -> Database:
    """The least that a consumer has to be allowed where no DDL is in the feed, and a user who only reads."""
    password, user, reader = secrets.token_hex(12), "apply", "reader"
    with server.admin() as session:
        for statement in (
            f"CREATE DATABASE {ident(SCHEMA)}",
            f"CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'",
            f"CREATE USER '{reader}'@'%' IDENTIFIED BY '{password}'",
            f"GRANT INSERT, DELETE, SELECT ON {ident(SCHEMA)}.* TO '{user}'@'%'",
            f"GRANT CREATE, ALTER, SELECT, INSERT, UPDATE, DELETE ON `_vreplication`.* TO '{user}'@'%'",
            f"GRANT SELECT ON {ident(SCHEMA)}.* TO '{reader}'@'%'",
        ):
            session.execute_raw(statement)
    return Database(server=server, name=SCHEMA, user=user, app_user=reader, password=password, had_sidecar=False)


def _keep_url(file: Path, place: Database) -> None:
    login = f"{place.user}:{place.password}@{place.server.host}:{place.server.port}"
    file.touch(mode=0o600)
    file.write_text(f"mysql+pymysql://{login}/{SCHEMA}?ssl_disabled=true")


# -- the show ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Show:
    """One run: the application, the commands, and what is proved."""

    demo: Demo
    console: Console
    places: dict[str, Database]
    cluster: Cluster
    moments: Moments = field(default_factory=Moments)
    stages: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    workload: Workload = field(init=False)
    topic: Topic = field(init=False)
    commands: Commands = field(init=False)

    def __post_init__(self) -> None:
        size = Size.of(self.demo.rows)
        sources = {flavor: self.places[flavor].app_url for flavor in TABLES}
        reader = self.places[TARGET].app_url
        seed, rate = self.demo.seed, self.demo.rate
        self.workload = feed_workload.of(sources, reader, size, self.moments, seed=seed, rate=rate)
        self.topic = Topic(self.cluster.bootstrap, SCHEMA, self.moments)
        self.commands = Commands(
            program=self.demo.program,
            folder=self.demo.folder,
            sink=self._sink,
            mode=self.demo.mode,
            partitions=PARTITIONS[0],
            say=self.say,
        )

    def run(self) -> Result:
        began = time.monotonic()
        try:
            self._fill()
            self._begin()
            self._scale()
            self._kill()
            self._kill_servers()
            self._finish()
            self._prove()
        except Failed as error:
            self.troubles.append(str(error))
        self.stop()
        self.troubles += [*self.workload.errors, *self.topic.errors]
        result = Result(stages=tuple(self.stages), troubles=tuple(dict.fromkeys(self.troubles)))
        self._tell(result, time.monotonic() - began)
        return result

    def stop(self) -> None:
        """All that is ours but servers and brokers; idempotent."""
        self.commands.end()
        self.workload.stop()
        self.topic.stop()

    def say(self, text: str = "", style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    @property
    def _sink(self) -> str:
        return f"kafka://{self.cluster.bootstrap}/{SCHEMA}"

    # -- what happens -------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        admins = {name: place.admin for name, place in self.places.items()}
        with self.console.status("Filling the sources …"):
            for flavor, tables in TABLES.items():
                feed_workload.create(admins[flavor], tables)
                feed_workload.create(admins[TARGET], tables)
            feed_workload.fill(admins, Size.of(self.demo.rows), self.demo.seed)
        counts = {table: _count(admins[f], table) for f, tables in TABLES.items() for table in tables[:2]}
        said = [f"{', '.join(f'{counts[t]:,} {t}' for t in TABLES[f][:2])} on {NAMES[f]}" for f in TABLES]
        self.say(f"{'; '.join(said)}")
        self.say("The target has the same tables, empty")
        self.say(f"Starting the application: {WRITERS} writers on each source, and one who takes the time")

    def _begin(self) -> None:
        """Until the rows that were there before are in the target, and what was written meanwhile."""
        self.workload.start()
        self.commands.begin(say=True)
        began = time.monotonic()
        self._until(self._exists, "the feed does not begin")
        self.topic.start()
        watcher, reader = self.workload.readers
        watcher.start()
        self._until(lambda: self.topic.has_old_rows, "the rows that were there before are not in the topic")
        self._until_level("the rows that were there before are not in the target")
        reader.start()
        self.say("All rows that were there before are in the target", "bold")
        self.say(f"  after {time.monotonic() - began:.0f} s, without a lock, beside {self._done} new transactions;")
        self.say("  from here on the reader looks there for half a transaction, all the time\n")

    @property
    def _done(self) -> str:
        return f"{self.workload.transactions:,}"

    def _exists(self) -> bool:
        return SCHEMA in self.cluster.admin().list_topics(timeout=5).topics

    def _scale(self) -> None:
        """3, 5, 2."""
        self._enter(f"{PARTITIONS[0]} partitions")
        self._wait(self.demo.seconds)
        for count in PARTITIONS[1:]:
            self._enter(f"{count} partitions")
            began = time.monotonic()
            words = ("scale", FEED, "--partitions", str(count), "--source-file", "mariadb.url")
            self.commands.ask(*words)
            self._until(lambda count=count: self.topic.partitions == count, "it is not scaled")  # type: ignore[misc]
            took = time.monotonic() - began
            self.say(f"{count} partitions, {took:.1f} s after the command; no process stopped for it\n", "bold")
            self._wait(self.demo.seconds)

    def _kill(self) -> None:
        broker = max(self.cluster.leader(SCHEMA), 0)
        self.say(f"kill -9: the feed, both consumers, and broker {broker} of Kafka; writers go on", "bold")
        began = time.monotonic()
        self._enter(_KILLED)
        self.commands.kill()
        self.cluster.kill(broker)
        self._wait(self.demo.down)
        again = time.monotonic()
        self.commands.begin(say=False)
        self.cluster.brokers[broker].launch()
        self.say(f"  the same commands again, {again - began:.0f} s later")
        self._until(lambda: self.moments.behind() < LEVEL_SECONDS, "the target does not get level after the kill")
        took = time.monotonic() - again
        self.say(f"  {took:.1f} s after that the target is less than {LEVEL_SECONDS:.0f} s behind again\n")

    def _kill_servers(self) -> None:
        """One after the other, while all else goes on."""
        for name, place in self.places.items():
            self.say(f"kill -9: {NAMES[name]}, {_ROLES[name]}; all others go on", "bold")
            self._enter(f"{_ROLES[name]} killed")
            place.server.kill()
            self._wait(self.demo.down)
            again = time.monotonic()
            place.server.restart()
            place.reconnect()
            self._until(lambda: self.moments.behind() < LEVEL_SECONDS, "the target does not get level after the kill")
            took = time.monotonic() - again
            self.say(
                f"  {took:.1f} s after it was started again the target is less than {LEVEL_SECONDS:.0f} s behind\n"
            )
        self._enter("afterwards", takes_waiting=False)
        self._wait(self.demo.seconds / 2)

    def _finish(self) -> None:
        self.workload.stop_writing()
        wanted = self.moments.newest()
        self._until(lambda: self.moments.are_in_target(wanted), "the target does not get level")
        self._until(lambda: self.moments.are_in_topic(wanted), "the last rows are not in the topic")

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _enter(self, stage: str, *, takes_waiting: bool = True) -> None:
        self.moments.enter(stage, takes_waiting=takes_waiting)
        self.stages.append(stage)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._until(lambda: time.monotonic() > deadline, "")

    def _until_level(self, otherwise: str) -> None:
        """What is committed by now is in the target."""
        wanted = self.moments.newest()
        self._until(lambda: self.moments.are_in_target(wanted), otherwise)

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Raises Failed, also when somebody has ended or the application met an error."""
        deadline = time.monotonic() + max(PATIENCE_SECONDS, self.demo.rows / 1000)
        with self.console.status("…") as status:
            while not holds():
                self._check()
                if time.monotonic() > deadline:
                    raise Failed(f"{otherwise[:1].upper()}{otherwise[1:]}.")
                self._show(status)
                time.sleep(0.05)

    def _check(self) -> None:
        if errors := [*self.workload.errors, *self.topic.errors]:
            raise Failed(errors[0])
        self.commands.check()

    def _show(self, status: Status) -> None:
        stage = f"{self.moments.stage}: " if self.moments.stage else ""
        reads = self.workload.readers[1].done
        status.update(f"{stage}{self._done} transactions, {self.topic.rows:,} rows in the topic, {reads:,} reads …")

    # -- the proof ----------------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        self.say("The application rests. Every row of the sources beside the target's:", "bold")
        for flavor, tables in TABLES.items():
            for table in tables:
                self._compare(flavor, table)
        self.say()
        found = json.loads(self.commands.ask("feed-check", "--from", self._sink, "--json").strip().splitlines()[-1])
        topic = self.topic
        self._until(lambda: topic.rows >= found["rows"], "beside the feed fewer rows were read than there are")
        self.say(f"  {found['rows']:,} rows in {found['generations']} generations, by the rules of docs/feed.md;")
        self.say(f"  of {topic.rows:,} rows that were read beside the feed, {topic.duplicates:,} came twice\n")
        if (found["rows"], found["generations"]) != (topic.rows, topic.generation):
            self.troubles.append(f"Read beside the feed were {topic.rows:,} rows in {topic.generation} generations.")
        if topic.duplicates:
            self.troubles.append(f"{topic.duplicates:,} changes are in the topic twice.")

    def _compare(self, flavor: str, table: str) -> None:
        source, target = (feed_proof.rows(self.places[name].admin, table) for name in (flavor, TARGET))
        words = feed_proof.difference(source, target)
        shown = f"the same: {feed_proof.checksum(source)}" if not words else "NOT the same"
        self.say(f"  {table:<14} {NAMES[flavor]:<8} {len(source):>9,} rows   {shown}")
        if words:
            self.troubles.append(f"{table}: {words}")

    def _tell(self, result: Result, seconds: float) -> None:
        if self.stages:
            self._tell_latency()
        reads = self.workload.readers[1]
        saw = "one saw half a transaction" if reads.errors else "none saw half a transaction"
        lost, kept = self.workload.lost
        self.say(f"{lost} transactions were under way when their server was killed; {kept} of them it had committed.")
        self.say(f"{self._done} transactions accepted; {reads.done:,} reads of the target, {saw}.")
        for trouble in result.troubles:
            self.say(f"  {trouble}", "red")
        if not result.holds:
            self.say(f"  What the commands said is in {short(self.demo.folder)}.", "red")
        proved = f"Proved in {seconds:.0f} s: the target is equal, no change was lost, none came twice."
        self.say(f"\n{proved if result.holds else 'NOT proved.'}", "bold green" if result.holds else "bold red")

    def _tell_latency(self) -> None:
        self.say("Seconds from COMMIT on a source until a reader sees the row", "bold")
        for line in feed_proof.latency(self.moments, self.stages):
            self.say(line)
        self.say("  Measured by a row each 50 ms on each source, one clock for all; who reads the")
        self.say("  target looks each 10 ms. Up to a second and a half is to be expected: MariaDB's")
        self.say("  log has times in whole seconds, and with several sources a row waits until no")
        self.say("  other source can have an earlier one. A feed of one source does not wait so.\n")


def _count(session: Session, table: str) -> int:
    return int(session.value(f"SELECT COUNT(*) FROM {table}"))


if __name__ == "__main__":
    sys.exit(main())

"""`make demo-move`: move three live tables to another server, back, and there again, then prove that nothing was lost.

What must stay true: the proof does not trust vreplication (sandbox.shop_proof); the exit code is 0 only when all
commands succeeded, the application saw no error, and every proof holds; whatever was started is ended by its process
id, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from rich.console import Console
from rich.live import Live

from sandbox import binaries, servers, shop
from sandbox.databases import Database, grant_statements
from sandbox.install import ROOT
from sandbox.processes import dies_with_us, end, interrupt_once, runs_in, short
from sandbox.servers import RunningServer
from sandbox.shop import TABLES, Size
from sandbox.shop_actors import SOURCE, TARGET, Told
from sandbox.shop_proof import Proof, Prover, keep_copy
from sandbox.shop_workload import Workload
from vreplication.cli import figures
from vreplication.cli.bars import View
from vreplication.cli.watcher import watch
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot
from vreplication.state import moves

SCHEMA, WORKFLOW = "shop", "shop-move"
FOLDER = ROOT / ".sandbox" / "demo-move"
ROWS_VARIABLE = "VREPLICATION_DEMO_ROWS"
DIRECTION_VARIABLE = "VREPLICATION_DEMO_DIRECTION"
SEED_VARIABLE = "VREPLICATION_DEMO_SEED"
DIRECTIONS = ("mariadb-mysql", "mysql-mariadb")
NAMES = {"mariadb": "MariaDB", "mysql": "MySQL"}
TICK_SECONDS = 0.25
ASK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What to show, and where. rows: of all tables. after: transactions of each writer behind each switch."""

    rows: int = 300_000
    direction: str = DIRECTIONS[0]
    folder: Path = FOLDER
    seed: int = 1
    rate: float = 60.0
    after: int = 100
    program: Sequence[str] = (str(ROOT / ".venv/bin/vreplication"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A switch, or the end: what it took, and whether all is there. stall_seconds: the longest of a write."""

    title: str
    proof: Proof
    stall_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How it went."""

    stages: tuple[Stage, ...]
    troubles: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.troubles and len(self.stages) == 4


class CommandFailed(Exception):
    """What vreplication said."""


def main() -> int:
    """Exit 0 when the proof holds, 1 when not, 2 on bad input, 130 when interrupted."""
    console = Console(highlight=False)
    try:
        demo = read_settings()
        interrupt_once()
        return 0 if run(demo, console).holds else 1
    except (ValueError, binaries.ServerMissing, servers.StartFailed) as error:
        console.print(f"demo-move: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("demo-move: interrupted; both private servers are stopped")
        return 130


def read_settings() -> Demo:
    """From the environment. Raises ValueError with a sentence."""
    rows, seed = os.environ.get(ROWS_VARIABLE) or "300000", os.environ.get(SEED_VARIABLE) or "1"
    direction = os.environ.get(DIRECTION_VARIABLE) or DIRECTIONS[0]
    for name, value in ((ROWS_VARIABLE, rows), (SEED_VARIABLE, seed)):
        if not value.isdigit() or int(value) < 1:
            raise ValueError(f"{name} must be a number of at least 1, not {value!r}.")
    if direction not in DIRECTIONS:
        raise ValueError(f"{DIRECTION_VARIABLE} must be one of {', '.join(DIRECTIONS)}, not {direction!r}.")
    return Demo(rows=int(rows), direction=direction, seed=int(seed))


def run(demo: Demo, console: Console) -> Result:
    """Start two servers, show the whole, stop what was started."""
    _make_room(demo.folder)
    with contextlib.ExitStack() as stack:
        pair = _start(demo, console, stack)
        result = _Show(demo=demo, console=console, pair=pair).run()
    if result.holds:
        # What failed stays, to be looked at.
        for side in (SOURCE, TARGET):
            shutil.rmtree(demo.folder / side)
    return result


def _make_room(folder: Path) -> None:
    """Remove what an earlier demo left; raises ValueError when one is still running."""
    for side in (SOURCE, TARGET):
        with_pid = folder / side / "pid"
        if with_pid.exists() and runs_in(int(with_pid.read_text()), folder):
            raise ValueError(f"another demo runs in {short(folder)} (process {with_pid.read_text()}); end it first.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


# -- the servers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The schema on both servers, with the users of sql/grants/move_source and move_target."""

    source: Database
    target: Database

    @property
    def sides(self) -> dict[str, Database]:
        return {SOURCE: self.source, TARGET: self.target}

    def name(self, side: str) -> str:
        return NAMES[self.sides[side].server.flavor]


def _start(demo: Demo, console: Console, stack: contextlib.ExitStack) -> Pair:
    flavors = dict(zip((SOURCE, TARGET), demo.direction.split("-"), strict=True))
    said = {side: f"{NAMES[f]} {'.'.join(map(str, binaries.version(f)))}" for side, f in flavors.items()}
    console.print(f"Starting {said[SOURCE]}, the source, and {said[TARGET]}, the target …")
    running: dict[str, Database] = {}
    for number, (side, flavor) in enumerate(flavors.items()):
        # Without the second one both servers want SUPER for the triggers that deny writes.
        options = {"server-id": 101 + number, "log-bin-trust-function-creators": "ON"}
        server = servers.start(flavor, demo.folder / side, options=options)
        stack.callback(server.stop)
        running[side] = _database(server, side)
    return Pair(source=running[SOURCE], target=running[TARGET])


def _database(server: RunningServer, side: str) -> Database:
    """A schema with least-privilege users: vreplication's for this side, and the application's."""
    password = secrets.token_hex(12)
    made = Database(
        server=server, name=SCHEMA, user="vreplication", app_user="app", password=password, had_sidecar=False
    )
    grants = grant_statements(
        f"move_{side}.{server.flavor}", user=made.user, host="%", password=password, schema=SCHEMA
    )
    app = f"'{made.app_user}'@'%'"
    with server.admin() as session:
        session.execute(f"CREATE DATABASE {ident(SCHEMA)}")
        for statement in (
            *grants,
            f"CREATE USER {app} IDENTIFIED BY '{password}'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {ident(SCHEMA)}.* TO {app}",
        ):
            session.execute_raw(statement)
        if not server.is_mariadb:
            # The application connects as we do, which sets max_error_count.
            session.execute_raw(f"GRANT SESSION_VARIABLES_ADMIN ON *.* TO {app}")
    return made


# -- the show ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Show:
    """One run: the application, the command, and what is proved when."""

    demo: Demo
    console: Console
    pair: Pair
    stages: list[Stage] = field(default_factory=list)
    seconds: dict[Phase, float] = field(default_factory=dict)
    """How long each phase was seen."""

    def run(self) -> Result:
        size = Size.of(self.demo.rows, 2)
        self._fill(size)
        file = self.demo.folder / "writes-go-to"
        told = Told(file, {side: database.app_url for side, database in self.pair.sides.items()})
        told.write(SOURCE)
        workload = Workload(told, size, seed=self.demo.seed, rate=self.demo.rate)
        self.say("Starting the application: 2 writers, a reader, and one who tries both servers")
        troubles: list[str] = []
        with workload:
            workload.wait_for(10, SOURCE)
            try:
                with self._command(file) as process:
                    self._move(workload, process)
            except (CommandFailed, TimeoutError) as error:
                troubles += [str(error), *workload.errors]
        troubles += [f"{stage.title}: {trouble}" for stage in self.stages for trouble in stage.proof.troubles]
        result = Result(stages=tuple(self.stages), troubles=tuple(dict.fromkeys(troubles)))
        self._end(result, workload)
        for database in self.pair.sides.values():
            database.close()
        return result

    def say(self, text: str = "", style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False)

    def _fill(self, size: Size) -> None:
        admin = self.pair.source.admin
        with self.console.status(f"Filling {SCHEMA} …") as status:
            shop.create(admin)
            shop.fill(admin, size, lambda done: status.update(f"Filling … {done:,} of {size.orders:,} orders"))
            status.update("Keeping a copy for the proof …")
            keep_copy(admin)
        counts = {table: admin.value(f"SELECT COUNT(*) FROM {table}") for table in TABLES}
        self.say(f"{', '.join(f'{count:,} {table}' for table, count in counts.items())} on the source")

    def _move(self, workload: Workload, process: subprocess.Popen[bytes]) -> None:
        """There, back, there again, and the end."""
        prover = Prover(
            source=self.pair.source.admin,
            target=self.pair.target.admin,
            app=workload.told.places,
            workload=workload,
        )
        with connect(self.pair.target.url) as home:
            turn = _Turn(show=self, workload=workload, process=process, prover=prover, home=home)
            turn.switch(TARGET, 2, "moved", "")
            turn.switch(SOURCE, 3, "back again", "reverse")
            turn.switch(TARGET, 4, "there again", "release")
            turn.complete()

    # -- commands -----------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        source, target = (
            f"mysql+pymysql://{d.user}@{d.server.host}:{d.server.port}/{SCHEMA}" for d in self.pair.sides.values()
        )
        return {
            **os.environ,
            "VREPLICATION_SOURCE": source,
            "VREPLICATION_PASSWORD": self.pair.source.password,
            "VREPLICATION_TARGET": target,
            "VREPLICATION_TARGET_PASSWORD": self.pair.target.password,
            "XDG_STATE_HOME": str(self.demo.folder / "state"),
        }

    @contextlib.contextmanager
    def _command(self, file: Path) -> Iterator[subprocess.Popen[bytes]]:
        """The move under way."""
        tables = [word for table in TABLES for word in ("--table", table)]
        hook = f"{sys.executable} {ROOT / 'sandbox/on_switch.py'} {file}"
        self.say(
            f'\n$ vreplication move-tables {" ".join(tables)} \\\n    --on-switch "on_switch.py {file.name}" --yes\n'
        )
        more = ["--on-switch", hook, "--workflow", WORKFLOW, "--yes", "--json"]
        with (self.demo.folder / "command.log").open("wb") as log:
            process = self._begin([*self.demo.program, "move-tables", *tables, *more], log)
        try:
            yield process
        finally:
            end(process)

    @contextlib.contextmanager
    def ask(self, what: str) -> Iterator[subprocess.Popen[bytes]]:
        """An act on the workflow, which may last until it is done. Raises CommandFailed behind the block."""
        self.say(f"$ vreplication {what} {WORKFLOW}")
        log = self.demo.folder / f"{what}.log"
        yes = [] if what == "release" else ["--yes"]
        with log.open("wb") as output:
            process = self._begin([*self.demo.program, what, WORKFLOW, *yes], output)
        try:
            yield process
            if code := process.wait(ASK_SECONDS):
                raise CommandFailed(f"`vreplication {what}` ended with {code}: {log.read_text(errors='replace')}")
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"`vreplication {what}` has not ended, though all is done") from None
        finally:
            end(process)

    def _begin(self, command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """It has a process group of its own, so that Ctrl-C comes to us alone; it dies with us."""
        return subprocess.Popen(
            [*dies_with_us(), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.environment,
            process_group=0,
        )

    def last_words(self) -> str:
        """Of the command: why it ended, or the end of what it said."""
        log = self.demo.folder / "command.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        with contextlib.suppress(ValueError, IndexError):
            return str(json.loads(lines[-1])["reason"])
        return "\n".join(lines[-3:])

    # -- what is shown ------------------------------------------------------------------------------------------------

    def until(self, is_so: Callable[[], bool], process: subprocess.Popen[bytes], picture: _Picture) -> None:
        """Show how it gets on. Raises CommandFailed."""
        looked = time.monotonic()
        with watch(self.pair.target.url, WORKFLOW) as watcher, picture:
            while True:
                if is_done := is_so():
                    watcher.settle()
                snapshot, now = watcher.latest, time.monotonic()
                self.seconds[snapshot.phase] = self.seconds.get(snapshot.phase, 0.0) + now - looked
                looked = now
                picture.show(snapshot)
                if is_done:
                    return
                self._check(process)
                time.sleep(TICK_SECONDS)

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        # 0 is seen by who waits for that.
        if process.poll():
            raise CommandFailed(f"vreplication ended with {process.returncode}: {self.last_words()}")

    def show(self, stage: Stage, name: str) -> None:
        """name: of the server that takes the writes."""
        proof = stage.proof
        self.stages.append(stage)
        rows = sum(each.rows for each in proof.serving.values())
        where = "the same on both" if proof.other else "as written"
        self.say(f"\n{name} takes the writes: {stage.title}", style="bold")
        if proof.holds:
            self.say(f"  accepted writes      {proof.accepted:>9,}      all are there, each once")
            sums = " ".join(each.checksum[:6] for each in proof.expected.values())
            self.say(f"  rows of {len(TABLES)} tables     {rows:>9,}      {where}: {sums}")
        self.say(f"  longest write stall  {1000 * stage.stall_seconds:>9,.0f} ms")
        if proof.gap_seconds:
            self.say(f"  writes denied        {1000 * proof.gap_seconds:>9,.0f} ms   between the two servers")
        for words in proof.refusals[:1]:
            self.say(f"  the other one says   {words}")
        for trouble in proof.troubles:
            self.say(f"  {trouble}", style="red")
        self.say()

    def _end(self, result: Result, workload: Workload) -> None:
        copied, verified = self.seconds.get(Phase.COPYING, 0.0), self.seconds.get(Phase.VERIFYING, 0.0)
        if self.stages:
            stalls = ", ".join(f"{1000 * stage.stall_seconds:,.0f}" for stage in self.stages[:3])
            self.say(f"Copied in {copied:.1f} s and verified in {verified:.1f} s in all, under live writes.")
            self.say(f"The application's longest write stall, switch by switch: {stalls} ms.")
        told = "none of them saw half a transaction" if result.holds else "see below"
        self.say(
            f"{len(workload.accepted):,} transactions accepted, {workload.refused.total():,} refused;"
            f" {workload.reads:,} reads, {told}."
        )
        for trouble in result.troubles:
            self.say(f"  {trouble}", style="red")
        verdict = "Proved: no write was lost, none was taken twice." if result.holds else "NOT proved."
        self.say(f"\n{verdict}", style="bold green" if result.holds else "bold red")


class _Picture(Protocol):
    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...


class _Bars:
    """Those of `vreplication online-ddl`."""

    def __init__(self, console: Console) -> None:
        self._view = View()
        self._live = Live(self._view, console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        self._view.update(snapshot)
        self._live.refresh()


class _Line:
    """One line, which goes when it is done; nothing where that is no terminal."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("…")

    def __enter__(self) -> None:
        self._status.start()

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, snapshot: Snapshot) -> None:
        rows = f" {snapshot.verify_rows:,} rows" if snapshot.phase is Phase.VERIFYING and snapshot.verify_rows else ""
        self._status.update(f"{figures.phase(snapshot)}{rows} …")


@dataclass(slots=True, kw_only=True)
class _Turn:
    """What follows on what."""

    show: _Show
    workload: Workload
    process: subprocess.Popen[bytes]
    prover: Prover
    home: Session

    def switch(self, side: str, number: int, title: str, what: str) -> None:
        """Until `side` takes writes, then the proof. number: of the switch behind this one; what: has to be asked."""

        def is_so() -> bool:
            found = moves.find(self.home, WORKFLOW)
            return found is not None and found.serving == side and found.number == number

        self.workload.longest_stall()
        since = time.monotonic() if what else 0.0
        with self.show.ask(what) if what else contextlib.nullcontext():
            self._watch(is_so, is_first=not what)
        self._prove(side, title, since, is_other_level=True)

    def complete(self) -> None:
        self.workload.longest_stall()
        since = time.monotonic()
        with self.show.ask("complete"):
            self._watch(lambda: self.process.poll() == 0, is_first=False)
        self._prove(TARGET, "complete", since, is_other_level=False)

    def _watch(self, is_so: Callable[[], bool], *, is_first: bool) -> None:
        console = self.show.console
        is_drawn = is_first and console.is_terminal and not console.is_dumb_terminal
        self.show.until(is_so, self.process, _Bars(console) if is_drawn else _Line(console))

    def _prove(self, side: str, title: str, since: float, *, is_other_level: bool) -> None:
        self.workload.wait_for(self.show.demo.after, side)
        stall = self.workload.longest_stall()
        with self.show.console.status("Proving, while writers are held and readers go on …"):
            proof = self.prover.prove(side, since, is_other_level=is_other_level)
        self.show.show(Stage(title=title, proof=proof, stall_seconds=stall), self.show.pair.name(side))


if __name__ == "__main__":
    sys.exit(main())

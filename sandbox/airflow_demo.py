"""`make airflow` and `make airflow-stop`: Airflow beside a private server under a live workload, and a second one.

`orders` has the workload; `customers` may be moved to the second server, and no application has to follow it there.

What must stay true: one process in the background owns all the others and ends them; `start` returns when everything is
up and prints where, whoever started it, or what is silent; `stop` returns when nothing is left, even of one that was
killed. Tables and Airflow's metadata end together: runs of yesterday would begin against today's tables. A server's
password is in Airflow's connection only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from sandbox import orders, servers
from sandbox.databases import Database, create_database, grant_statements
from sandbox.deployment import Deployment, DeploymentFailed
from sandbox.install import ROOT
from sandbox.keeping import Keeper
from sandbox.processes import is_there
from sandbox.workload import Workload

SOURCE, TARGET = "vreplication_source", "vreplication_target"
DAGS = ("online_ddl", "move_tables")
_START_SECONDS = 300.0
_PARSED_SECONDS = 120.0


def home() -> Path:
    """Everything is written below it: var, and .sandbox for the server."""
    return Path(os.environ.get("VREPLICATION_AIRFLOW_HOME") or ROOT).resolve()


def state(name: str) -> Path:
    """pid: of the process in the background; ready: when all is up, the port; failed: why not."""
    return home() / "var" / f"sandbox.{name}"


def main(words: list[str]) -> int:
    """start, stop, or serve (the process in the background)."""
    return {"start": start, "stop": stop, "serve": serve}[words[0] if words else "start"]()


def deployment(port: int | None = None) -> Deployment:
    return Deployment(
        home=home(),
        port=port or int(os.environ.get("AIRFLOW_PORT") or 8080),
        settings={
            "AIRFLOW_CONFIG": str(ROOT / "airflow.cfg"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        },
    )


def rows() -> int:
    return int(os.environ.get("VREPLICATION_DEMO_ROWS") or 200_000)


def start() -> int:
    """Start it unless somebody has; either way return when it is up."""
    (home() / "var").mkdir(parents=True, exist_ok=True)
    with state("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        was_up = bool(_living()) and state("ready").exists()
        process = None if _living() else _launch()
    if was_up and (silent := deployment(int(state("ready").read_text())).silent()):
        return _tell_silent(silent)
    deadline = time.monotonic() + _START_SECONDS
    while not state("ready").exists():
        # Asked for its end, so that a child of ours does not stay as a zombie.
        has_ended = process.poll() is not None if process else not _living()
        if has_ended or time.monotonic() > deadline:
            return _give_up()
        time.sleep(0.3)
    return _print()


def _launch() -> subprocess.Popen[bytes]:
    for old in ("ready", "failed"):
        state(old).unlink(missing_ok=True)
    _say("Starting two private servers, a workload and Airflow; this takes about a minute …")
    with state("log").open("wb") as out:
        command = [sys.executable, "-m", "sandbox.airflow_demo", "serve"]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    state("pid").write_text(str(process.pid))
    return process


def _give_up() -> int:
    why = state("failed").read_text() if state("failed").exists() else state("log").read_text()[-2000:]
    _say(f"airflow: {why.strip()}")
    stop()
    return 2


def _tell_silent(found: dict[str, str]) -> int:
    for name, wrong in found.items():
        _say(f"airflow: Airflow's {name} {wrong}; releases will not be acted on.")
    _say(
        f"What ended, and when it starts again, is in {state('log')}, their last words in {deployment().var / 'logs'}."
    )
    return 2


def _print() -> int:
    where = deployment(int(state("ready").read_text()))
    print(f"url: {where.url}\nuser: admin\npassword: {where.password()}", flush=True)
    return 0


def stop() -> int:
    pid = _living()
    if pid:
        os.kill(pid, signal.SIGTERM)
        while _living():
            time.sleep(0.2)
    deployment().end_left_over()
    begun = [old for old in map(state, ("pid", "ready", "failed")) if old.exists()]
    for old in begun:
        old.unlink(missing_ok=True)
    if not begun:
        _say(f"Nothing of `make airflow` runs with its files in {home()}.")
        return 0
    _say("Stopped. Tables, runs and connections are gone; `make airflow` starts afresh.")
    return 0


def _living() -> int | None:
    """Process numbers are used again: it must also be our command."""
    try:
        pid = int(state("pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return None
    return pid if b"sandbox.airflow_demo" in words and is_there(pid) else None


def serve() -> int:
    """Until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    folder, where = home() / ".sandbox" / "airflow", deployment()
    where.end_left_over()
    # Logs of runs that are gone, under names that come again.
    for old in (folder, where.var / "logs"):
        shutil.rmtree(old, ignore_errors=True)
    try:
        with contextlib.ExitStack() as stack:
            source, target = (stack.enter_context(_running(folder / name)) for name in ("source", "target"))
            stack.callback(where.stop)
            _serve(where, source, target, over)
    except (DeploymentFailed, servers.StartFailed) as error:
        state("failed").write_text(str(error))
        return 2
    shutil.rmtree(folder, ignore_errors=True)
    return 0


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[servers.RunningServer]:
    # MariaDB wants SUPER for the triggers of a move otherwise.
    options = {"server-id": 1 + (folder.name == "target"), "log-bin-trust-function-creators": "ON"}
    server = servers.start("mariadb", folder, options=options)
    try:
        yield server
    finally:
        server.stop()


def _serve(
    where: Deployment, source: servers.RunningServer, target: servers.RunningServer, over: threading.Event
) -> None:
    there, here = create_database(target, "shop", grants="move_target"), create_database(source, "shop")
    with source.admin("shop") as session:
        for statement in _grants_of_a_move(here):
            session.execute_raw(statement)
        for table, count in (("orders", rows()), ("customers", rows() // 10)):
            orders.create(session, table)
            orders.fill(session, table, count)
    with Workload(here.app_url, "orders", rows=rows(), writers=2, rate=20):
        where.prepare()
        where.add_connection(SOURCE, here.url)
        where.add_connection(TARGET, there.url)
        where.start()
        _unpause(where, over)
        _tell_ready(where.port)
        keeper = Keeper(where, lambda text: _say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}"))
        while not over.wait(0.5):
            keeper.look(time.monotonic())


def _grants_of_a_move(database: Database) -> list[str]:
    """For the user who may change tables already."""
    found = grant_statements(
        "move_source.mariadb", user=database.user, host="%", password=database.password, schema=database.name
    )
    return [statement for statement in found if not statement.startswith("CREATE USER")]


def _unpause(where: Deployment, over: threading.Event) -> None:
    """A DAG is not known before its file has been read. Raises DeploymentFailed."""
    deadline, waiting = time.monotonic() + _PARSED_SECONDS, list(DAGS)
    while waiting and not over.is_set():
        status, told = where.call("PATCH", f"/api/v2/dags/{waiting[0]}", {"is_paused": False})
        if status == 200 and told["is_paused"] is False:
            waiting.pop(0)
        elif time.monotonic() > deadline:
            raise DeploymentFailed(f"{waiting[0]} was not read: {status} {told}")
        else:
            over.wait(0.5)


def _tell_ready(port: int) -> None:
    """In one step: who waits for it reads it at once."""
    new = state("ready.new")
    new.write_text(str(port))
    new.rename(state("ready"))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make airflow` and `make airflow-stop`: Airflow beside a private server under a live workload.

What must stay true: one process in the background owns all the others and ends them; `start` returns when everything is
up and prints where; `stop` returns when nothing is left. A server's password is in Airflow's connection only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from sandbox import orders, servers
from sandbox.databases import create_database
from sandbox.deployment import Deployment, DeploymentFailed
from sandbox.install import ROOT
from sandbox.workload import Workload

FOLDER = ROOT / ".sandbox" / "airflow"
PID, READY, FAILED = (ROOT / "var" / name for name in ("sandbox.pid", "sandbox.ready", "sandbox.failed"))
CONNECTION = "vreplication_source"
_START_SECONDS = 300.0


def main(words: list[str]) -> int:
    """start, stop, or serve (the process in the background)."""
    return {"start": start, "stop": stop, "serve": serve}[words[0] if words else "start"]()


def deployment() -> Deployment:
    return Deployment(home=ROOT, port=int(os.environ.get("AIRFLOW_PORT") or 8080))


def rows() -> int:
    return int(os.environ.get("VREPLICATION_DEMO_ROWS") or 200_000)


def start() -> int:
    if _living():
        return _print()
    for old in (READY, FAILED):
        old.unlink(missing_ok=True)
    PID.parent.mkdir(exist_ok=True)
    _say("Starting a private server, a workload and Airflow; this takes about a minute …")
    with (PID.parent / "sandbox.log").open("wb") as out:
        command = [sys.executable, "-m", "sandbox.airflow_demo", "serve"]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
    PID.write_text(str(process.pid))
    return _wait_for(process)


def _wait_for(process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while not READY.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            why = FAILED.read_text() if FAILED.exists() else (PID.parent / "sandbox.log").read_text()[-2000:]
            _say(f"airflow: {why.strip()}")
            stop()
            return 2
        time.sleep(0.3)
    return _print()


def _print() -> int:
    where = deployment()
    print(f"url: {where.url}\nuser: admin\npassword: {where.password()}", flush=True)
    return 0


def stop() -> int:
    pid = _living()
    if pid:
        os.kill(pid, signal.SIGTERM)
        while _living():
            time.sleep(0.2)
    for old in (PID, READY, FAILED):
        old.unlink(missing_ok=True)
    return 0


def _living() -> int | None:
    """Process numbers are used again: it must also be our command."""
    try:
        pid = int(PID.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return pid if b"sandbox.airflow_demo" in words and state != "Z" else None


def serve() -> int:
    """Until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    shutil.rmtree(FOLDER, ignore_errors=True)
    where = deployment()
    try:
        server = servers.start("mariadb", FOLDER)
        try:
            _serve(where, server, over)
        finally:
            where.stop()
            server.stop()
    except (DeploymentFailed, servers.StartFailed) as error:
        FAILED.write_text(str(error))
        return 2
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 0


def _serve(where: Deployment, server: servers.RunningServer, over: threading.Event) -> None:
    database = create_database(server, "shop")
    with server.admin("shop") as session:
        orders.create(session, "orders")
        orders.fill(session, "orders", rows())
    with Workload(database.app_url, "orders", rows=rows(), writers=2, rate=20):
        where.prepare()
        where.add_connection(CONNECTION, database.url)
        where.start()
        where.airflow("dags", "unpause", "--yes", "online_ddl", check=False)
        READY.touch()
        while not over.wait(0.5):
            pass


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

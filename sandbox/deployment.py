"""Airflow's four components, and their database, as processes of ours: prepared, started, waited for, ended.

What must stay true: everything is written below `home`/var; keys and passwords are drawn once, readable by the owner
alone; each component is a process group of its own and is ended by its id, which is noted: an owner may be killed; a
connection's password goes through a file that only the owner reads, or a request, into Airflow's encrypted table, never
into an argument.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sandbox import postgres
from sandbox.install import ROOT
from sandbox.processes import began, descendants, end_all, is_there, of_session, send
from vreplication.mysql.url import SourceUrl

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
USERS = ("admin", "editor", "viewer")
POOLS = {"vreplication_copy": 2, "vreplication_replicate": 3, "vreplication_backfill": 2, "vreplication_feed": 4}
"""Replicating tasks take fewer than half of the executor's 12 slots, so that copies are never starved; all of them
leave one for the short tasks, a cut-over among them. Feeds and consumers keep theirs for as long as they run."""
_BEATING = {"scheduler": "scheduler", "triggerer": "triggerer", "dag-processor": "dag_processor"}
"""Components that have heartbeats, and what Airflow's health calls them."""
_DATABASE = "postgres"
READY_SECONDS = 180.0
_END_SECONDS = 10.0
"""A task that does not end in time is killed: whatever kills it, the same task goes on from the sidecar."""


class DeploymentFailed(Exception):
    """A component did not start; the message ends with its last words."""


@dataclass(slots=True, kw_only=True)
class Deployment:
    """home: AIRFLOW_HOME. settings: AIRFLOW__SECTION__KEY → value, on top of airflow.cfg."""

    home: Path
    port: int = 8080
    settings: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    metadata: postgres.Postgres | None = field(default=None, repr=False)
    _tokens: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def var(self) -> Path:
        return self.home / "var"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        ours = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "XDG_STATE_HOME": str(self.var / "state"),
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        if self.metadata:
            ours["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = self.metadata.url
        # Settings of the user's own Airflow would win over those of airflow.cfg.
        around = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return {**around, **ours, **self.settings}

    def prepare(self) -> None:
        """Keys, passwords, metadata database, pools. Done again it changes nothing. Raises DeploymentFailed."""
        self._draw_keys()
        self._start_metadata()
        self.airflow("db", "migrate")
        # include_deferred: a task that waits in the triggerer takes no slot. One file for all, because each of
        # Airflow's commands takes two seconds of CPU.
        pools = {
            name: {"slots": n, "description": "vreplication", "include_deferred": False} for name, n in POOLS.items()
        }
        (self.var / "pools.json").write_text(json.dumps(pools))
        self.airflow("pools", "import", str(self.var / "pools.json"))

    def _start_metadata(self) -> None:
        """PostgreSQL; it ends, with all that is in it, where `stop` is called."""
        try:
            self.metadata = self.metadata or postgres.start(self.var / "postgres.json")
        except postgres.PostgresFailed as error:
            raise DeploymentFailed(str(error)) from None

    def _draw_keys(self) -> None:
        keys = {
            "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "secret": secrets.token_hex(32),
            "jwt": secrets.token_hex(64),
        }
        for name, value in keys.items():
            _write_once(self.var / "keys" / name, value)
        _write_once(self.var / "passwords.json", json.dumps({user: secrets.token_urlsafe(12) for user in USERS}))

    def password(self, user: str = "admin") -> str:
        return str(json.loads((self.var / "passwords.json").read_text())[user])

    def add_connection(self, conn_id: str, url: SourceUrl) -> None:
        """Replace a connection; it is one of those that the page shows."""
        words = {"conn_type": "mysql", "host": url.host, "port": url.port, "login": url.user, "password": url.password}
        found = {**words, "schema": url.database, "extra": json.dumps({"vreplication": True})}
        # By a request where Airflow runs: two command lines took five seconds.
        add = self._post_connection if self.processes else self._import_connection
        add(conn_id, found)

    def _post_connection(self, conn_id: str, found: Mapping[str, object]) -> None:
        self.call("DELETE", f"/api/v2/connections/{conn_id}")
        status, told = self.call("POST", "/api/v2/connections", {"connection_id": conn_id, **found})
        if status != 201:
            raise DeploymentFailed(f"connection {conn_id} was not made: {status} {told}")

    def _import_connection(self, conn_id: str, found: Mapping[str, object]) -> None:
        """Before anything runs, by the command line."""
        path = self.var / "keys" / "connections.json"
        path.touch(0o600)
        path.write_text(json.dumps({conn_id: found}))
        try:
            self.airflow("connections", "import", "--overwrite", str(path))
        finally:
            path.unlink()

    def airflow(self, *words: str, check: bool = True) -> str:
        """Run Airflow's command line; returns what it printed. Raises DeploymentFailed."""
        command = [str(Path(sys.executable).parent / "airflow"), *words]
        done = subprocess.run(command, env=self.environment(), cwd=ROOT, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise DeploymentFailed(f"airflow {' '.join(words[:2])} failed: {(done.stderr or done.stdout)[-2000:]}")
        return done.stdout

    def start(self) -> None:
        """Start all; returns when each says that it is healthy. Raises DeploymentFailed."""
        if _is_taken(self.port):
            raise DeploymentFailed(f"port {self.port} is taken by another program; end it, or set AIRFLOW_PORT.")
        for component in COMPONENTS:
            self._start(component)
        self._wait()

    def _start(self, component: str) -> None:
        log = self.log(component)
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [str(Path(sys.executable).parent / "airflow"), component]
        with log.open("ab") as out:
            self.processes[component] = subprocess.Popen(
                command, env=self.environment(), cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        # After each of them: an owner that is killed between two starts leaves none that is not noted.
        noted = {name: [process.pid, began(process.pid)] for name, process in self.processes.items()}
        self.noted.write_text(json.dumps(noted))

    @property
    def noted(self) -> Path:
        """Component → process id and when that process began: numbers are used again."""
        return self.var / "components.json"

    def log(self, component: str) -> Path:
        return self.var / "logs" / f"{component}.log"

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_healthy():
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                name = dead[0] if dead else COMPONENTS[0]
                raise DeploymentFailed(f"{name} did not start: {self.log(name).read_text()[-2000:]}")
            time.sleep(0.5)

    def _is_healthy(self) -> bool:
        found = self._health()
        return all(found.get(name, {}).get("status") == "healthy" for name in ("metadatabase", *_BEATING.values()))

    def _health(self) -> dict[str, Any]:
        """As Airflow tells it; empty where it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def silent(self) -> dict[str, str]:
        """Component → what is wrong, of each that has ended or has no heartbeat, whoever owns it."""
        found = self._health()
        if not found:
            return {"api-server": "does not answer"}
        if found.get("metadatabase", {}).get("status") != "healthy":
            return {"database": "does not answer"}
        told = {name: found.get(key, {}) for name, key in _BEATING.items()}
        return {
            name: _since(each.get(f"latest_{_BEATING[name]}_heartbeat"))
            for name, each in told.items()
            if each.get("status") != "healthy" or not self._is_noted_alive(name)
        }

    def _is_noted_alive(self, component: str) -> bool:
        """Its heartbeat counts as new for half a minute."""
        try:
            pid, at = json.loads(self.noted.read_text())[component]
        except (OSError, ValueError, KeyError):
            return False
        return is_there(pid) and began(pid) == at

    def ended(self) -> dict[str, int]:
        """Component and exit code of each that has ended by itself."""
        processes = {**self.processes, **({_DATABASE: self.metadata.process} if self.metadata else {})}
        codes = {name: process.poll() for name, process in processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def restart(self, component: str) -> None:
        """What it had started would be in the way of what it starts."""
        if component == _DATABASE and self.metadata:
            self.metadata = postgres.again(self.metadata)
            return
        end_all(of_session(self.processes[component].pid))
        self._start(component)

    def stop(self) -> None:
        """End each component and every task that it has started; what does not end in time is killed."""
        # Before the first signal: whose parent has ended is nobody's descendant any more, and goes on unseen.
        tasks = [pid for process in self.processes.values() for pid in descendants(process.pid)]
        for pid in [*tasks, *(process.pid for process in self.processes.values())]:
            send(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            send(process.pid, signal.SIGKILL)
            process.wait()
        while any(map(is_there, tasks)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in filter(is_there, tasks):
            send(pid, signal.SIGKILL)
        self.processes.clear()
        self.noted.unlink(missing_ok=True)
        if self.metadata:
            self.metadata.stop()
            self.metadata = None

    def end_left_over(self) -> None:
        """End what an owner that was killed has left running, tasks and all."""
        with contextlib.suppress(OSError, ValueError):
            noted = json.loads(self.noted.read_text()).values()
            tops = [pid for pid, at in noted if began(pid) == at]
            end_all([*(pid for top in tops for pid in descendants(top)), *tops])
            self.noted.unlink(missing_ok=True)
        postgres.end_left_over(self.var / "postgres.json")

    def call(self, method: str, path: str, body: object = None, *, user: str | None = "admin") -> tuple[int, Any]:
        """A request as `user` (None: nobody): status and JSON, or text where it is none."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if user:
            headers["Authorization"] = f"Bearer {self.token(user)}"
        return _request(method, self.url + path, headers, body)

    def token(self, user: str) -> str:
        """A day's login; drawn once."""
        if user not in self._tokens:
            self._tokens[user] = self._log_in(user)
        return self._tokens[user]

    def _log_in(self, user: str) -> str:
        login = {"username": user, "password": self.password(user)}
        headers = {"Content-Type": "application/json"}
        status, found = _request("POST", f"{self.url}/auth/token", headers, login)
        if status not in (200, 201):
            raise DeploymentFailed(f"{user} cannot log in: {status} {found}")
        return str(found["access_token"])


def _request(method: str, url: str, headers: Mapping[str, str], body: object) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, _read(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _read(error.read())


def _since(moment: str | None) -> str:
    """In the machine's own zone."""
    if moment is None:
        return "has been silent since it was started"
    return f"has been silent since {datetime.fromisoformat(moment).astimezone():%H:%M:%S}"


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _write_once(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        path.touch(0o600)
        path.write_text(text)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

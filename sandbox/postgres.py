"""A private PostgreSQL in a folder of its own: where Airflow keeps its metadata.

SQLite has one writer at a time: a few runs triggered at once end Airflow's scheduler with "database is locked".

What must stay true: it listens on 127.0.0.1 only, and asks for a password that was drawn for it; it never runs as root,
which PostgreSQL refuses; it ends with the process that started it, or by the id noted for the next start; what was in
it goes with it, so that nothing has to be on a disk before a statement is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.install import postgres_folder
from sandbox.processes import began, descendants, dies_with_us, end_all

USER = "airflow"
START_SECONDS = 60.0
_END_SECONDS = 20.0
_PLACES = ("/dev/shm", "/tmp", "/var/tmp")
_SETTINGS = (
    "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200", "shared_buffers=64MB", "fsync=off",
    "full_page_writes=off",
)  # fmt: skip
"""A commit is written before it is told all the same: one that is killed keeps it, which a power cut would not."""


class PostgresFailed(Exception):
    """It is not installed, or did not start; the message ends with its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """note: the file that names it, for whoever has to end what a killed owner left."""

    folder: Path
    note: Path
    port: int
    password: str = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def url(self) -> str:
        """For SQLAlchemy; holds the password."""
        return f"postgresql+psycopg2://{USER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def stop(self) -> None:
        """Sessions that are still open are ended; then the folder goes."""
        # SIGINT ends PostgreSQL's sessions; at SIGTERM it waits until their clients go.
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.note.unlink(missing_ok=True)


def start(note: Path) -> Postgres:
    """A new and empty one. Raises PostgresFailed."""
    programs = postgres_folder()
    if programs is None:
        raise PostgresFailed("PostgreSQL is not installed. Run: python3 -m sandbox.install postgres")
    folder, password = _folder(), secrets.token_hex(16)
    note.write_text(json.dumps({"folder": str(folder)}))
    try:
        _initialize(programs, folder, password)
        return _start(programs, folder, password, note)
    except BaseException:
        end_left_over(note)
        raise


def again(ended: Postgres) -> Postgres:
    """One that has ended by itself, with all that is in it, where it was. Whoever asks it waits, or finds it away."""
    programs = postgres_folder()
    assert programs
    return _launch(programs, ended.folder, ended.password, ended.note, ended.port)


def end_left_over(note: Path) -> None:
    """End what an owner that was killed has left, and remove its folder."""
    try:
        found = json.loads(note.read_text())
    except (OSError, ValueError):
        return
    pid = found.get("pid")
    # Process numbers are used again: by its beginning it is known for the one that was noted.
    if pid and began(pid) == found["began"]:
        end_all([*descendants(pid), pid])
    shutil.rmtree(found["folder"], ignore_errors=True)
    note.unlink(missing_ok=True)


def _folder() -> Path:
    """Of the user that it runs as, who has to come into all folders above it."""
    places = (tempfile.gettempdir(), *_PLACES)
    place = next(filter(_lets_in, places), None) if os.geteuid() == 0 else tempfile.gettempdir()
    if place is None:
        raise PostgresFailed(f"PostgreSQL needs a folder that others may enter; none of {', '.join(places)} is one.")
    made = Path(tempfile.mkdtemp(prefix="vreplication-postgres-", dir=place))
    if login := _login():
        os.chown(made, login.pw_uid, login.pw_gid)
    return made


def _lets_in(place: str) -> bool:
    path = Path(place).resolve()
    return path.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def _login() -> pwd.struct_passwd | None:
    """None: it runs as we do."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    found = names.get("postgres") or names.get("nobody")
    if found is None:
        raise PostgresFailed("PostgreSQL refuses root, and this machine has neither a user postgres nor nobody.")
    return found


def _as_user() -> dict[str, Any]:
    """How subprocess starts it."""
    login = _login()
    return {} if login is None else {"user": login.pw_uid, "group": login.pw_gid, "extra_groups": []}


def _initialize(programs: Path, folder: Path, password: str) -> None:
    secret = folder / "password"
    secret.touch(0o600)
    secret.write_text(password)
    if login := _login():
        os.chown(secret, login.pw_uid, login.pw_gid)
    words = ["-D", folder / "data", "-U", USER, f"--pwfile={secret}", "--auth=scram-sha-256"]
    fixed = ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    command = [str(word) for word in (programs / "initdb", *words, *fixed)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **_as_user())
    secret.unlink()
    if done.returncode:
        raise PostgresFailed(f"PostgreSQL's data directory was not made: {(done.stderr or done.stdout)[-1000:]}")


def _start(programs: Path, folder: Path, password: str, note: Path) -> Postgres:
    for attempt in range(3):
        made = _launch(programs, folder, password, note, _free_port())
        if is_ready(made):
            return made
        last = _tail(made)
        # Between choosing a port and binding it somebody else may have taken it.
        if attempt == 2 or "in use" not in last:
            made.stop()
            raise PostgresFailed(f"PostgreSQL did not start: {last}")
        made.process.wait()
    raise AssertionError("unreachable")


def _launch(programs: Path, folder: Path, password: str, note: Path, port: int) -> Postgres:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = [*dies_with_us("INT"), str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port), *settings]
    with (folder / "log").open("ab") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, **_as_user()
        )
    noted = {"folder": str(folder), "pid": process.pid, "began": began(process.pid)}
    note.write_text(json.dumps(noted))
    return Postgres(folder=folder, note=note, port=port, password=password, process=process)


def is_ready(made: Postgres) -> bool:
    """Once it has let us in; False when it has ended, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while made.process.poll() is None and time.monotonic() < deadline:
        if _lets_us_in(made):
            return True
        time.sleep(0.05)
    return False


def _lets_us_in(made: Postgres) -> bool:
    import psycopg2

    with contextlib.suppress(psycopg2.OperationalError):
        psycopg2.connect(made.url.replace("+psycopg2", "")).close()
        return True
    return False


def _tail(made: Postgres) -> str:
    return (made.folder / "log").read_text(errors="replace")[-1000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

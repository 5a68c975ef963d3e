"""Start, stop, kill and restart a private MariaDB or MySQL server in a folder of its own.

What must stay true: a server listens on 127.0.0.1 only and root has a password; it ends with the process that started
it, also when that one is killed; `stop` and `kill` act on one process id and wait until it is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox import binaries, datadirs
from vreplication.errors import Refused, Transient
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl

START_SECONDS = 90.0
STOP_SECONDS = 60.0
# Fast rather than durable: a killed process keeps what it wrote, only a power cut would not.
_DEFAULTS: dict[str, object] = {
    "bind-address": "127.0.0.1",
    "server-id": 1,
    "log-bin": "binlog",
    "binlog-row-image": "FULL",
    "sync-binlog": 0,
    "innodb-flush-log-at-trx-commit": 2,
    "innodb-buffer-pool-size": "256M",
    "skip-name-resolve": "ON",
    "socket": "server.sock",
}
_FLAVOR_DEFAULTS: dict[str, dict[str, object]] = {
    "mariadb": {"binlog-format": "ROW"},
    "mysql": {"mysqlx": "OFF", "secure-file-priv": ""},
}
OPTIONS_VARIABLE = "VREPLICATION_{}_OPTIONS"
"""More of the server's options, unless whoever starts it says otherwise: `gtid-mode=ON enforce-gtid-consistency=ON`."""
_processes: dict[int, subprocess.Popen[bytes]] = {}


class StartFailed(Exception):
    """The server did not answer; the text ends with the tail of its error log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server of ours, or (folder None) one that somebody handed us."""

    flavor: str
    host: str = "127.0.0.1"
    port: int
    user: str = "root"
    password: str = field(repr=False)
    folder: Path | None
    options: tuple[tuple[str, object], ...] = ()

    @property
    def is_mariadb(self) -> bool:
        return self.flavor == "mariadb"

    @property
    def is_ours(self) -> bool:
        return self.folder is not None

    @property
    def pid(self) -> int:
        """Process id; another one after `restart`."""
        return int((self._home / "pid").read_text())

    @property
    def admin_url(self) -> str:
        """Everything is allowed to this user. Holds a password."""
        return f"mysql+pymysql://{self.user}:{self.password}@{self.host}:{self.port}/mysql"

    @property
    def error_log(self) -> Path:
        return self._home / "error.log"

    @property
    def _home(self) -> Path:
        if self.folder is None:
            raise RuntimeError("this server was not started by the sandbox")
        return self.folder

    def url(self, database: str = "mysql", *, user: str = "", password: str = "") -> SourceUrl:
        """Where the server is, for `vreplication.mysql.session.connect`; the administrator's unless a user is named."""
        login = (user, password) if user else (self.user, self.password)
        return SourceUrl(host=self.host, port=self.port, user=login[0], password=login[1], database=database)

    def plain(self, url: SourceUrl) -> SourceUrl:
        """The same login unencrypted, on a server of ours: on MySQL that saves small statements a fifth of all CPU."""
        return dataclasses.replace(url, tls=(("ssl_disabled", "true"),)) if self.is_ours else url

    def admin(self, database: str = "mysql", *, read_timeout: float = 600.0) -> Session:
        """A new connection to which everything is allowed."""
        return connect(self.plain(self.url(database)), read_timeout=read_timeout)

    def is_alive(self) -> bool:
        return _is_alive(self.pid)

    def stop(self) -> None:
        """Shut down cleanly; kill -9 after a minute."""
        if self.folder is not None:
            _end(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """kill -9: what a crash looks like."""
        _end(self.pid, signal.SIGKILL)

    def restart(self, options: Mapping[str, object] | None = None) -> RunningServer:
        """Start again on the same port and data after `stop` or `kill` (a living server is stopped first)."""
        if self.is_alive():
            self.stop()
        merged = self.options if options is None else tuple(options.items())
        server = dataclasses.replace(self, options=merged)
        _launch(server)
        _wait_until_ready(server)
        return server


def start(flavor: str, folder: Path, *, options: Mapping[str, object] | None = None, port: int = 0) -> RunningServer:
    """Initialize `folder` and start a server there.

    An option's value None takes our default away, "" gives a bare `--name`. Raises ServerMissing or StartFailed.
    """
    folder = folder.resolve()
    _initialize(flavor, folder, options or {})
    for attempt in range(3):
        server = _describe(flavor, folder, port or _free_port(), options or {})
        _launch(server)
        try:
            _wait_until_ready(server)
        except StartFailed:
            # Between choosing a port and binding it somebody else may have taken it.
            if port or attempt == 2 or "in use" not in _tail(server.error_log):
                raise
            continue
        return server
    raise AssertionError("unreachable")


def adopt(url: SourceUrl) -> RunningServer:
    """A server that somebody else runs; `stop` leaves it alone."""
    with connect(url) as session:
        flavor = "mariadb" if "mariadb" in str(session.value("SELECT VERSION()")).lower() else "mysql"
    return RunningServer(flavor=flavor, host=url.host, port=url.port, user=url.user, password=url.password, folder=None)


def _describe(flavor: str, folder: Path, port: int, options: Mapping[str, object]) -> RunningServer:
    password = secrets.token_hex(12)
    return RunningServer(flavor=flavor, port=port, password=password, folder=folder, options=tuple(options.items()))


def _initialize(flavor: str, folder: Path, options: Mapping[str, object]) -> None:
    if (folder / "data").exists():
        raise StartFailed(f"{folder}/data exists already; a new server needs a folder of its own.")
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for_good = [_argument(name, options[name]) for name in sorted(_FOR_GOOD & options.keys())]
    try:
        datadirs.create(flavor, folder / "data", for_good)
    except datadirs.NotInitialized as error:
        raise StartFailed(f"Initializing {flavor} failed: {error}") from None


def _launch(server: RunningServer) -> None:
    folder = server._home
    init = folder / "init.sql"
    # Before the password is in it. Not as an argument, which every user of the machine can read.
    init.touch(mode=0o600)
    init.write_text(_root_account(server.password))
    process = subprocess.Popen(
        [*_dies_with_us(), *binaries.server_command(server.flavor), *_arguments(server), f"--init-file={init}"],
        stdin=subprocess.DEVNULL,
        stdout=(folder / "output.log").open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    _processes[process.pid] = process
    (folder / "pid").write_text(str(process.pid))


_FOR_GOOD = {"lower_case_table_names"}
"""Options that a data directory has from its first day on."""


def _root_account(password: str) -> str:
    """One statement a line, as an init file wants it; idempotent, for it runs at each start.

    Not logged: a replica has a root of its own, and no transactions of its own.
    """
    lines = ["SET SESSION sql_log_bin=0;"]
    for host in ("localhost", "127.0.0.1"):
        lines += [
            f"CREATE USER IF NOT EXISTS 'root'@'{host}' IDENTIFIED BY '{password}';",
            f"ALTER USER 'root'@'{host}' IDENTIFIED BY '{password}';",
            f"GRANT ALL PRIVILEGES ON *.* TO 'root'@'{host}' WITH GRANT OPTION;",
        ]
    return "\n".join(lines) + "\n"


def _arguments(server: RunningServer) -> list[str]:
    folder = server._home
    places = {"datadir": folder / "data", "tmpdir": folder / "tmp", "log-error": server.error_log}
    more = os.environ.get(OPTIONS_VARIABLE.format(server.flavor.upper()), "").split()
    asked = {name: value for name, _, value in (word.partition("=") for word in more)}
    wanted = {**_DEFAULTS, **_FLAVOR_DEFAULTS[server.flavor], **places, "port": server.port, **asked}
    given = {name.replace("_", "-"): value for name, value in server.options}
    return [*binaries.as_root(), *(_argument(*item) for item in {**wanted, **given}.items() if item[1] is not None)]


def _argument(name: str, value: object) -> str:
    # Of secure-file-priv an empty value is one: files may be read and written anywhere.
    return f"--{name}" if value == "" and name != "secure-file-priv" else f"--{name}={value}"


def _dies_with_us() -> list[str]:
    """A test run that is killed must not leave a server behind.

    The kernel ties the signal to the thread that started the process, so only the main thread may ask for it.
    """
    program = shutil.which("setpriv")
    if program is None or threading.current_thread() is not threading.main_thread():
        return []
    return [program, "--pdeathsig", "TERM"]


def _wait_until_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(server):
        if not _is_alive(server.pid):
            raise StartFailed(f"{server.flavor} ended while starting:\n{_tail(server.error_log)}")
        if time.monotonic() > deadline:
            server.kill()
            raise StartFailed(f"{server.flavor} did not answer in {START_SECONDS:.0f} s:\n{_tail(server.error_log)}")
        time.sleep(0.05)


def _answers(server: RunningServer) -> bool:
    with contextlib.suppress(Refused, Transient), server.admin(read_timeout=10) as session:
        return bool(session.value("SELECT 1"))
    return False


def _is_alive(pid: int) -> bool:
    if pid in _processes:
        # A child of ours that has ended stays a process, which takes signals, until it is asked for like this.
        return _processes[pid].poll() is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _end(pid: int, first: signal.Signals) -> None:
    """Signal one process and wait until it is gone; SIGKILL when it does not go."""
    for number, seconds in ((first, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        if not _is_alive(pid):
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while _is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
    _processes.pop(pid, None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path, lines: int = 25) -> str:
    if not log.exists():
        return "(no error log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

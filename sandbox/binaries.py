"""Where the servers' programs are, and the command lines that initialize and run them.

What must stay true: no program here reads a configuration file of the machine (--no-defaults), so that a test sees the
server's own defaults and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

FLAVORS = ("mariadb", "mysql")
MYSQL_FOLDER_VARIABLE = "VREPLICATION_MYSQL_DIST"
MARIADB_FOLDER_VARIABLE = "VREPLICATION_MARIADB_DIST"
PLACE = Path("~/.cache/vreplication")
KEYRING = "file_key_management.so"
LOCK_INFO = "metadata_lock_info.so"
DISKS = "disks.so"
PROMETHEUS = ("prometheus", "promtool")
OLDEST = {"mariadb": (10, 11), "mysql": (9, 7)}
_CURES = {
    "mysqld": f"Run: make install-mysql (or set {MYSQL_FOLDER_VARIABLE})",
    "mariadbd": "Run: python3 -m sandbox.versions, which tells what it can fetch",
}
_SYSTEM_TABLES = (
    "mariadb_system_tables.sql",
    "mariadb_performance_tables.sql",
    "mariadb_system_tables_data.sql",
    "fill_help_tables.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mariadb_sys_schema.sql",
)
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


class ServerMissing(Exception):
    """The programs of this flavor are not installed; the text says how to get them."""


def mysql_folder() -> Path:
    """The folder that holds MySQL's programs (they are run from there, never installed)."""
    return Path(os.environ.get(MYSQL_FOLDER_VARIABLE) or "~/.cache/vreplication/mysql").expanduser()


def mariadb_folder() -> Path | None:
    """A folder with MariaDB's programs that is meant instead of the machine's own."""
    found = os.environ.get(MARIADB_FOLDER_VARIABLE)
    return Path(found).expanduser() if found else None


def folder_variable(flavor: str) -> str:
    return MARIADB_FOLDER_VARIABLE if flavor == "mariadb" else MYSQL_FOLDER_VARIABLE


@contextlib.contextmanager
def taken_from(flavor: str, folder: Path) -> Iterator[None]:
    """Meanwhile the flavor's programs are those of a folder."""
    variable = folder_variable(flavor)
    before, os.environ[variable] = os.environ.get(variable), str(folder)
    try:
        yield
    finally:
        os.environ.pop(variable)
        if before:
            os.environ[variable] = before


def name_of(flavor: str) -> str:
    """The flavor, or the name of a folder of ours that holds another version of it."""
    folder = mysql_folder() if flavor == "mysql" else mariadb_folder()
    return folder.name if folder and folder.parent == PLACE.expanduser() else flavor


def oldest(flavor: str) -> tuple[int, int]:
    """What is tested on; a version that was asked for by its folder is never too old."""
    return (0, 0) if name_of(flavor) != flavor else OLDEST[flavor]


def mariadb_keyring() -> Path | None:
    """MariaDB's plugin that keeps keys in a file, where the distribution or `sandbox.install keyring` has put it."""
    return _plugin(KEYRING)


def mariadb_lock_info() -> Path | None:
    """MariaDB's plugin that tells who holds a metadata lock, likewise."""
    return _plugin(LOCK_INFO)


def mariadb_disks() -> Path | None:
    """MariaDB's plugin that tells how full its disks are, likewise."""
    return _plugin(DISKS)


def _plugin(name: str) -> Path | None:
    """A server takes plugins of its own version only."""
    own = mariadb_folder()
    folders = [own / "usr/lib/mysql/plugin"] if own else [Path("/usr/lib/mysql/plugin"), keyring_folder()]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def keyring_folder() -> Path:
    return Path("~/.cache/vreplication/mariadb").expanduser()


def prometheus_folder() -> Path:
    return Path("~/.cache/vreplication/prometheus").expanduser()


def prometheus(name: str = PROMETHEUS[0]) -> Path | None:
    """One of Prometheus' programs: of the machine, or where `sandbox.install prometheus` has put it."""
    found = shutil.which(name)
    path = Path(found) if found else prometheus_folder() / name
    return path if path.exists() else None


def server_command(flavor: str) -> list[str]:
    """Program and first arguments of the server. Raises ServerMissing."""
    if flavor == "mysql":
        return _command_of(mysql_folder(), "mysqld", "share/mysql")
    own = mariadb_folder()
    return _command_of(own, "mariadbd", "share/mariadb") if own else _mariadb_command()


def initialize_command(flavor: str, data: Path) -> list[str]:
    """What fills an empty data directory; root has no password then."""
    if flavor == "mysql":
        return [*server_command(flavor), "--initialize-insecure", f"--datadir={data}", *as_root()]
    if own := mariadb_folder():
        return _bootstrap_command(own, data)
    _mariadb_command()
    program = shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db"
    # Without --force it gives up where the machine cannot look up its own name (containers).
    fixed = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--force"]
    return [program, *fixed, f"--datadir={data}", *as_root()]


def client_command(flavor: str, name: str) -> list[str]:
    """One of the flavor's client programs. Raises ServerMissing."""
    own = mysql_folder() if flavor == "mysql" else mariadb_folder()
    if own:
        return [*_loading(own, own / "usr/bin" / name)]
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(f"{name} is not installed. Run: apt-get install mariadb-client")
    return [found]


def version(flavor: str) -> tuple[int, int, int]:
    """Version of the installed server. Raises ServerMissing, also when it does not start."""
    return parse_version(_first_line([*server_command(flavor), "--version"], flavor), flavor)


def parse_version(text: str, flavor: str) -> tuple[int, int, int]:
    """`mysqld  Ver 9.7.4-2 for Linux …` as numbers."""
    found = re.search(r"Ver (\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise ServerMissing(f"The {flavor} server does not say its version: {text[:200]!r}")
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def as_root() -> list[str]:
    """Both servers refuse to run as root unless they are told to."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _mariadb_command() -> list[str]:
    program = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
    if not Path(program).exists():
        raise ServerMissing("MariaDB is not installed. Run: make install (or apt-get install mariadb-server)")
    return [program, "--no-defaults"]


def _command_of(folder: Path, program: str, share: str) -> list[str]:
    """A server of another distribution's folder: no chroot, no root."""
    start = _loading(folder, folder / "usr/sbin" / program)
    places = [
        f"--basedir={folder}/usr",
        f"--lc-messages-dir={folder}/usr/{share}",
        f"--plugin-dir={folder}/usr/lib/mysql/plugin",
    ]
    return [*start, "--no-defaults", *places]


def _loading(folder: Path, program: Path) -> list[str]:
    """Through that folder's own loader and libraries; one that has none is made for any machine."""
    machine = platform.machine()
    loader = folder / "lib64" / _LOADERS["x86_64"] if machine == "x86_64" else folder / "lib" / _loader(machine)
    if not program.exists():
        raise ServerMissing(f"{folder} holds no {program.name}. {_CURES.get(program.name, 'Take another folder.')}")
    if not loader.exists():
        return [str(program)]
    libraries = folder / "usr/lib" / f"{machine}-linux-gnu"
    return [str(loader), "--library-path", str(libraries), str(program)]


def _bootstrap_command(folder: Path, data: Path) -> list[str]:
    """What mariadb-install-db does, which starts no program through a loader."""
    share = folder / "usr/share/mariadb"
    scripts = [str(share / name) for name in _SYSTEM_TABLES]
    first = shlex.join(["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket=NULL;"])
    # A statement a line.
    pour = f'mkdir -p "$0" && {{ printf "%s\\n" {first}; cat {shlex.join(scripts)}; }} | "$@"'
    quiet = ["--bootstrap", f"--datadir={data}", "--skip-log-bin", "--max-allowed-packet=64M", *as_root()]
    return ["sh", "-c", pour, str(data), *server_command("mariadb"), *quiet]


def _loader(machine: str) -> str:
    if machine not in _LOADERS:
        raise ServerMissing(
            f"No MySQL for machine type {machine!r} here. Set VREPLICATION_TEST_DSN to a server of yours."
        )
    return _LOADERS[machine]


def _first_line(command: list[str], flavor: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"The {flavor} server does not start: {error}") from None
    if done.returncode:
        raise ServerMissing(f"The {flavor} server does not start: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout.strip().splitlines()[0]

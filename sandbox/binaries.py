"""Where the servers' programs are, and the command lines that initialize and run them.

What must stay true: no program here reads a configuration file of the machine (--no-defaults), so that a test sees the
server's own defaults and nothing else.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

FLAVORS = ("mariadb", "mysql")
MYSQL_FOLDER_VARIABLE = "VREPLICATION_MYSQL_DIST"
KEYRING = "file_key_management.so"
LOCK_INFO = "metadata_lock_info.so"
DISKS = "disks.so"
PROMETHEUS = ("prometheus", "promtool")
OLDEST = {"mariadb": (10, 11), "mysql": (9, 7)}
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


class ServerMissing(Exception):
    """The programs of this flavor are not installed; the text says how to get them."""


def mysql_folder() -> Path:
    """The folder that holds MySQL's programs (they are run from there, never installed)."""
    return Path(os.environ.get(MYSQL_FOLDER_VARIABLE) or "~/.cache/vreplication/mysql").expanduser()


def mariadb_keyring() -> Path | None:
    """MariaDB's plugin that keeps keys in a file, where the distribution or `sandbox.install keyring` has put it."""
    return _mariadb_plugin(KEYRING)


def mariadb_lock_info() -> Path | None:
    """MariaDB's plugin that tells who holds a metadata lock, likewise."""
    return _mariadb_plugin(LOCK_INFO)


def mariadb_disks() -> Path | None:
    """MariaDB's plugin that tells how full its disks are, likewise."""
    return _mariadb_plugin(DISKS)


def _mariadb_plugin(name: str) -> Path | None:
    found = (folder / name for folder in (Path("/usr/lib/mysql/plugin"), keyring_folder()))
    return next((path for path in found if path.exists()), None)


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
    return _mariadb_command() if flavor == "mariadb" else _mysql_command(mysql_folder())


def initialize_command(flavor: str, data: Path) -> list[str]:
    """What fills an empty data directory; root has no password then."""
    if flavor == "mysql":
        return [*server_command(flavor), "--initialize-insecure", f"--datadir={data}", *as_root()]
    _mariadb_command()
    program = shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db"
    # Without --force it gives up where the machine cannot look up its own name (containers).
    fixed = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--force"]
    return [program, *fixed, f"--datadir={data}", *as_root()]


def client_command(flavor: str, name: str) -> list[str]:
    """One of the flavor's client programs. Raises ServerMissing."""
    if flavor == "mysql":
        *loading, _program = _mysql_command(mysql_folder())[:4]
        return [*loading, str(mysql_folder() / "usr/bin" / name)]
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


def _mysql_command(folder: Path) -> list[str]:
    """mysqld of another distribution's folder, through that folder's own loader and libraries: no chroot, no root."""
    program = folder / "usr/sbin/mysqld"
    machine = platform.machine()
    loader = folder / "lib64" / _LOADERS["x86_64"] if machine == "x86_64" else folder / "lib" / _loader(machine)
    if not program.exists() or not loader.exists():
        raise ServerMissing(f"MySQL is not in {folder}. Run: make install-mysql (or set {MYSQL_FOLDER_VARIABLE})")
    libraries = folder / "usr/lib" / f"{machine}-linux-gnu"
    places = [
        f"--basedir={folder}/usr",
        f"--lc-messages-dir={folder}/usr/share/mysql",
        f"--plugin-dir={folder}/usr/lib/mysql/plugin",
    ]
    return [str(loader), "--library-path", str(libraries), str(program), "--no-defaults", *places]


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

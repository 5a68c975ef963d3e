"""Fresh data directories of servers: made once and kept in the user's cache, then copied.

What must stay true: two servers never share an identity or a password, so what is kept has neither; what a killed
process left half made is never copied; other programs or other options get another directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox import binaries

CACHE = Path("~/.cache/vreplication/servers")
SECONDS = 180.0
# MySQL's server_uuid: a server without this file gives itself one.
_IDENTITY = "auto.cnf"
# What the server needs at its very first start already, to run on any machine.
_FIRST_START = {"mariadb": [], "mysql": ["--secure-file-priv=", "--mysqlx=OFF"]}


class NotInitialized(Exception):
    """The end of what the program said that could not initialize a data directory."""


def create(flavor: str, data: Path, options: Sequence[str] = ()) -> None:
    """Make `data` the directory of a server that has no accounts but root without a password.

    `options` are arguments of the server that a data directory has from its first day on.
    """
    with _alone(
        CACHE.expanduser() / "-".join([binaries.name_of(flavor), *(option.strip("-") for option in options)])
    ) as cache:
        kept = cache / _fingerprint(flavor)
        if not kept.exists():
            _clear(cache)
            _keep(flavor, kept, options)
        # Most of a redo log is holes.
        _run(["cp", "-a", "--reflink=auto", "--sparse=always", str(kept), str(data)])


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[Path]:
    """Until it is copied, too, for whoever has other programs clears it away."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _fingerprint(flavor: str) -> str:
    """Another one when the programs were replaced where they are."""
    command = [*binaries.initialize_command(flavor, Path("data")), *binaries.server_command(flavor)]
    programs = [Path(word).stat() for word in command if Path(word).is_absolute() and Path(word).is_file()]
    told = repr((command, [(found.st_mtime_ns, found.st_size) for found in programs]))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _clear(cache: Path) -> None:
    """What older programs made, and what a process left that was killed."""
    for left in cache.iterdir():
        if left.is_dir():
            shutil.rmtree(left)


def _keep(flavor: str, kept: Path, options: Sequence[str]) -> None:
    """It has its name only when it is whole."""
    with tempfile.TemporaryDirectory(prefix="making-", dir=kept.parent) as folder:
        data = Path(folder) / "data"
        _run([*binaries.initialize_command(flavor, data), *options])
        _run_once(flavor, Path(folder), data, options)
        (data / _IDENTITY).unlink(missing_ok=True)
        data.rename(kept)


def _run_once(flavor: str, folder: Path, data: Path, options: Sequence[str]) -> None:
    """MySQL's first start takes three times as long as its second one."""
    init = folder / "init.sql"
    init.write_text("SHUTDOWN;\n")
    places = [f"--datadir={data}", f"--tmpdir={folder}", f"--socket={folder}/socket", f"--init-file={init}"]
    quiet = ["--skip-networking", "--skip-log-bin", *_FIRST_START[flavor]]
    _run([*binaries.server_command(flavor), *places, *quiet, *options, *binaries.as_root()])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise NotInitialized((done.stdout + done.stderr)[-2000:])

"""How much room a server's file systems have, where that can be known: by its own word, or because we stand on them.

Neither server tells it in plain SQL. MariaDB does with its plugin DISKS. Else we look ourselves, if this is the
server's machine, proved: it has our machine's name, and the log that it writes is seen here, as long as it says.

What must stay true: what is not proved is not known. A name, a port or a path of its own proves nothing: behind
localhost may be a container or a tunnel, and the same path may be here and there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from vreplication.mysql.server import inspect, is_mariadb
from vreplication.mysql.session import Row, Session, SqlError

UNKNOWN = "how much is free cannot be seen from here"
_TRIES = 3
"""A log may be rotated between two looks."""
_HEADER_BYTES = 4096
"""An encrypted log is longer than the server says by its header."""
_PLACES = "SELECT @@GLOBAL.datadir, @@GLOBAL.log_bin_basename, @@GLOBAL.hostname"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system that holds data or binary logs. device: the same for what lies on the same one."""

    path: str
    device: str
    free: int


def disks(session: Session) -> tuple[Disk, ...]:
    """That of the data directory, and that of the logs, in this order; () where it cannot be known."""
    data, base, _ = places = _row(session)
    paths = (data, os.path.dirname(base) or data)
    return _here(paths) if _is_here(session, places) else _told(session, paths)


def _row(session: Session) -> tuple[str, str, str]:
    data, base, host = ("" if value is None else str(value) for value in session.rows(_PLACES)[0])
    return data, base, host


def _is_here(session: Session, places: tuple[str, str, str]) -> bool:
    """Proved once a connection: a server that moves away takes it with it."""
    return session.lasting("is_here", lambda: _proved(session, places))


def _proved(session: Session, places: tuple[str, str, str]) -> bool:
    data, base, host = places
    if not base or host != socket.gethostname() or not os.path.isdir(data):
        return False
    statement = inspect(session).log_status
    return any(_is_seen(session, statement, os.path.dirname(base)) for _ in range(_TRIES))


def _is_seen(session: Session, statement: str, folder: str) -> bool:
    """Is the log that is being written here, and as long as the server says before and after we look?"""
    try:
        before = _end_of_log(session, statement)
        length = os.stat(os.path.join(folder, before[0])).st_size
        after = _end_of_log(session, statement)
    except (OSError, SqlError):
        return False
    # Between two answers of the server, for the log grows meanwhile; a file of the same name on another machine has
    # another length.
    return before[0] == after[0] and before[1] <= length <= after[1] + _HEADER_BYTES


def _end_of_log(session: Session, statement: str) -> tuple[str, int]:
    row: Row = (session.rows(statement) or [("", 0)])[0]
    return str(row[0]), int(row[1])


def _here(paths: Sequence[str]) -> tuple[Disk, ...]:
    found = ((path, os.statvfs(path), os.stat(path).st_dev) for path in paths)
    # Of what is free, file systems keep some for root, who does not run servers: f_bavail is without it.
    return tuple(Disk(path=path, device=str(dev), free=stat.f_bavail * stat.f_frsize) for path, stat, dev in found)


def _told(session: Session, paths: Sequence[str]) -> tuple[Disk, ...]:
    """By MariaDB's plugin, which asks for FILE and shows nothing without it."""
    if not is_mariadb(session):
        return ()
    try:
        rows = session.rows("SELECT Path, Available FROM information_schema.DISKS")
    except SqlError:
        return ()
    mounts = {str(path): int(kibibytes) * 1024 for path, kibibytes in rows}
    found = [on for path in paths if (on := _on(mounts, path)) is not None]
    return tuple(found) if len(found) == len(paths) else ()


def _on(mounts: dict[str, int], path: str) -> Disk | None:
    """The innermost that holds this path."""
    inside = [mount for mount in mounts if f"{path.rstrip('/')}/".startswith(f"{mount.rstrip('/')}/")]
    mount = max(inside, key=len, default=None)
    return None if mount is None else Disk(path=path, device=mount, free=mounts[mount])


def size(count: float) -> str:
    """`1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f}".removesuffix(".0") + f" {unit}"
        count /= 1024
    return f"{count:,.1f}".removesuffix(".0") + " TiB"

"""How much disk the copy and its binary log need, and whether it is there.

What must stay true: free space is only compared where we stand on the server's own file system; elsewhere the need is
told and nothing is guessed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from vreplication.planning.facts import Check, Facts, OfServer, ok, refuse
from vreplication.schema.model import Table

_MARGIN = 1.1
_LOCAL = ("localhost", "127.0.0.1", "::1", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system of the server's, by its device number, with its free bytes."""

    device: int
    free: int = field(compare=False)


def check(facts: Facts) -> Check:
    return room(facts, *needed(facts))


def room(facts: OfServer, copy: int, log: int) -> Check:
    """Whether a server has room for so many bytes of tables, and of its binary log."""
    words = f"The copy needs about {size(copy)} and the binary log about {size(log)}"
    data, logs = _places(facts)
    wanted: dict[Disk, int] = {}
    for place, need in ((data, copy), (logs, log)):
        if disk := _disk(facts, place):
            wanted[disk] = wanted.get(disk, 0) + need
    if not wanted:
        return ok("disk", f"{words}; how much is free cannot be seen from here.")
    # The one with the least room to spare speaks for all.
    tightest = min(wanted, key=lambda disk: disk.free - wanted[disk])
    if tightest.free < wanted[tightest]:
        return refuse("disk", f"{words}, and {size(tightest.free)} are free.", "Make room on the server's disk.")
    return ok("disk", f"{words}; {size(tightest.free)} are free.")


def needed(facts: Facts) -> tuple[int, int]:
    """Bytes of the shadow table and of the rows in the log."""
    return needed_of(facts.source)


def needed_of(table: Table) -> tuple[int, int]:
    return int((table.data_bytes + table.index_bytes) * _MARGIN), int(table.data_bytes * _MARGIN)


def _places(facts: OfServer) -> tuple[str, str]:
    """The data directory, and the logs'."""
    data = facts.server.setting("datadir") or ""
    return data, os.path.dirname(facts.server.setting("log_bin_basename") or "") or data


def _disk(facts: OfServer, place: str) -> Disk | None:
    """Where `place` is, if the server whose process id stands in its data directory is on this very machine."""
    pid_file = os.path.join(facts.server.setting("datadir") or "", facts.server.setting("pid_file") or "")
    is_here = facts.session.url.unix_socket or facts.session.url.host in _LOCAL
    if not (is_here and os.path.isfile(pid_file) and os.path.isdir(place)):
        return None
    found = os.statvfs(place)
    return Disk(device=os.stat(place).st_dev, free=found.f_bavail * found.f_frsize)


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

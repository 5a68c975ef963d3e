"""How much disk the copy and its binary log need, and whether it is there.

What must stay true: free space is only compared where we stand on the server's own file system; elsewhere the need is
told and nothing is guessed.
"""

from __future__ import annotations

import os

from vreplication.planning.facts import Check, Facts, ok, refuse

_MARGIN = 1.1
_LOCAL = ("localhost", "127.0.0.1", "::1", "")


def check(facts: Facts) -> Check:
    copy, log = needed(facts)
    words = f"The copy needs about {size(copy)} and the binary log about {size(log)}"
    free = {place: left for place in _places(facts) if (left := _free(facts, place)) is not None}
    if not free:
        return ok("disk", f"{words}; how much is free cannot be seen from here.")
    wanted = copy + log if len(free) == 1 else max(copy, log)
    left = min(free.values())
    if left < wanted:
        return refuse("disk", f"{words}, and {size(left)} are free.", "Make room on the server's disk.")
    return ok("disk", f"{words}; {size(left)} are free.")


def needed(facts: Facts) -> tuple[int, int]:
    """Bytes of the shadow table and of the rows in the log."""
    table = facts.source
    return int((table.data_bytes + table.index_bytes) * _MARGIN), int(table.data_bytes * _MARGIN)


def _places(facts: Facts) -> list[str]:
    """The data directory, and the logs' where that is another."""
    data = facts.server.setting("datadir") or ""
    logs = os.path.dirname(facts.server.setting("log_bin_basename") or data)
    return [data] if os.path.normpath(logs) == os.path.normpath(data) else [data, logs]


def _free(facts: Facts, place: str) -> int | None:
    """Free bytes where `place` is a directory of a server on this very machine."""
    pid_file = facts.server.setting("pid_file") or ""
    is_here = facts.session.url.unix_socket or facts.session.url.host in _LOCAL
    if not (is_here and place and os.path.isdir(place) and os.path.exists(os.path.join(place, pid_file))):
        return None
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

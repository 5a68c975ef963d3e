"""How much disk the copy and its binary log need, and whether it is there.

What must stay true: free space is only compared where it is known (mysql/disk.py); elsewhere the need is told and
nothing is guessed.
"""

from __future__ import annotations

from vreplication.mysql import disk
from vreplication.planning.facts import Check, Facts, OfServer, ok, refuse
from vreplication.schema.model import Table

_MARGIN = 1.1


def check(facts: Facts) -> Check:
    return room(facts, *needed(facts))


def room(facts: OfServer, copy: int, log: int) -> Check:
    """Whether a server has room for so many bytes of tables, and of its binary log."""
    words = f"The copy needs about {disk.size(copy)} and the binary log about {disk.size(log)}"
    found = disk.disks(facts.session)
    # The server's disk cannot be seen from another machine, on which most plans are made.
    if not found:
        return ok("disk", f"{words}; {disk.UNKNOWN}.")
    # Logs on a disk of their own refuse nothing that fits there; on one disk both needs add up.
    wanted: dict[str, int] = {}
    for each, need in zip(found, (copy, log), strict=True):
        wanted[each.device] = wanted.get(each.device, 0) + need
    # The one with the least room to spare speaks for all.
    tightest = min(found, key=lambda each: each.free - wanted[each.device])
    if tightest.free < wanted[tightest.device]:
        return refuse("disk", f"{words}, and {disk.size(tightest.free)} are free.", "Make room on the server's disk.")
    return ok("disk", f"{words}; {disk.size(tightest.free)} are free.")


def needed(facts: Facts) -> tuple[int, int]:
    """Bytes of the shadow table and of the rows in the log; twice where there is a full copy beside it."""
    copy, log = needed_of(facts.source)
    return (2 * copy, 2 * log) if facts.spec.keeps_one else (copy, log)


def needed_of(table: Table) -> tuple[int, int]:
    # The log has the rows, and nothing of the indexes.
    return int((table.data_bytes + table.index_bytes) * _MARGIN), int(table.data_bytes * _MARGIN)

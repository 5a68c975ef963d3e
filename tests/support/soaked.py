"""What histories of feeds came to, for `make soak`: a line a history in a file, and all of them as a table.

`python -m tests.support.soaked FILE` prints the table. A history is noted behind its proof: one with a row that
was lost, doubled or misplaced fails its test, and is missing here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support.running_feed import Running, content
from vreplication.feed.messages import Kind

FILE = "VREPLICATION_FEED_TABLE"
_HEAD = ("kind", "server", "exact histories", "killed", "rows")


def note(kind: str, flavor: str, killed: int, feed: Running) -> None:
    """killed: how often the feed was. Only where a soak asks for it."""
    if place := os.environ.get(FILE):
        rows = sum(tags.kind is Kind.ROW for messages in content(feed.feed).values() for tags, _, _ in messages)
        with Path(place).open("a") as file:
            file.write(json.dumps([kind, flavor, killed, rows]) + "\n")


def table(lines: list[str]) -> list[str]:
    found: dict[tuple[str, str], list[int]] = {}
    for kind, flavor, killed, rows in map(json.loads, lines):
        sums = found.setdefault((kind, flavor), [0, 0, 0])
        sums[:] = sums[0] + 1, sums[1] + killed, sums[2] + rows
    rule = ["---"] * 2 + ["---:"] * (len(_HEAD) - 2)
    cells = [_HEAD, rule, *([*names, *map(str, sums)] for names, sums in sorted(found.items()))]
    return [f"| {' | '.join(each)} |" for each in cells]


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]).read_text().splitlines())))

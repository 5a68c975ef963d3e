"""A table's definition as a plain ALTER leaves it, as a digest: has the ALTER happened?

What must stay true: it is the same for a table and for its empty copy by CREATE TABLE … LIKE in whatever schema; so
what such a copy lacks or calls otherwise is left out (foreign keys, names of CHECK constraints, the counter).
"""

from __future__ import annotations

import hashlib
import re

from vreplication.schema.shadow import comparable

_NAME = r"`(?:[^`]|``)*`"
_FOREIGN = re.compile(rf"  CONSTRAINT {_NAME} FOREIGN KEY ")
_CHECK = re.compile(rf"^  CONSTRAINT {_NAME} CHECK")


def digest(create_sql: str, table: str) -> str:
    """Columns and keys count in their order, CHECK constraints in any."""
    return hashlib.sha256("\n".join(_lines(create_sql, table)).encode()).hexdigest()


def _lines(create_sql: str, table: str) -> list[str]:
    found = [line.rstrip(",") for line in comparable(create_sql, table).splitlines() if not _FOREIGN.match(line)]
    # MySQL lists them in the order of their names, which are others on a copy.
    checks = [_CHECK.sub("  CHECK", line) for line in found if _CHECK.match(line)]
    return [line for line in found if not _CHECK.match(line)] + sorted(checks)

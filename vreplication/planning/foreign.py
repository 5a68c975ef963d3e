"""Foreign keys as InnoDB knows them: all of them, also of tables that the user may not see. Needs PROCESS.

What must stay true: names are those of the tables, whatever characters they have.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.mysql.session import Session

_ACTS = 1 | 2 | 4 | 8
"""Bits of a key's type: ON DELETE CASCADE, SET NULL; ON UPDATE CASCADE, SET NULL."""
Named = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """child, parent: schema and table. acts: it deletes or changes rows of the child by itself."""

    child: Named
    parent: Named
    acts: bool


def foreign_keys(session: Session, *, is_mariadb: bool) -> list[ForeignKey]:
    """Of the whole server."""
    table = "INNODB_SYS_FOREIGN" if is_mariadb else "INNODB_FOREIGN"
    parts = [_part(column, which, is_mariadb) for column in ("FOR_NAME", "REF_NAME") for which in (1, -1)]
    rows = session.rows(f"SELECT {','.join(parts)}, TYPE & {_ACTS} FROM information_schema.{table}")
    return [
        ForeignKey(child=(str(a), str(b)), parent=(str(c), str(d)), acts=bool(int(acts))) for a, b, c, d, acts in rows
    ]


def _part(column: str, which: int, is_mariadb: bool) -> str:
    """MariaDB keeps names as the file system has them (a@002db), and a slash means nothing there."""
    part = f"SUBSTRING_INDEX({column},'/',{which})"
    return f"CONVERT(CONVERT(CAST({part} AS BINARY) USING filename) USING utf8mb4)" if is_mariadb else part

"""Backups that forbid DDL on MySQL (LOCK INSTANCE FOR BACKUP), looked for before tables are locked for a switch.

Such a backup may take hours, and CREATE TRIGGER, DROP TRIGGER and RENAME wait for it; LOCK TABLES does not (measured).
MariaDB's BACKUP STAGE keeps LOCK TABLES out as well, so there the attempt ends before anything is decided.

What must stay true: a look waits a second at most and leaves nothing behind, in no log either. It cannot hold a backup
off: one that waits keeps out all DDL that comes after it (measured).
"""

from __future__ import annotations

from vreplication.errors import Transient
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import LockWait, connect
from vreplication.mysql.url import SourceUrl
from vreplication.settings import BEAT_SECONDS, SIDECAR


class BackupUnderWay(Transient):
    """It forbids DDL."""


def check_none(url: SourceUrl) -> None:
    """Raises BackupUnderWay. Needs our schema there."""
    with connect(url, read_timeout=BEAT_SECONDS) as session:
        if is_mariadb(session):
            return
        # MySQL's own default is a year, and an attempt at a switch waits for this look.
        session.execute_raw("SET SESSION lock_wait_timeout=1")
        name = qualified(SIDECAR, f"backup_{session.id}")
        try:
            # Never committed. It waits as all DDL does.
            session.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY) ENGINE=InnoDB START TRANSACTION")
        except LockWait:
            raise BackupUnderWay(f"a backup on {url.host}:{url.port} forbids DDL (LOCK INSTANCE FOR BACKUP)") from None
        session.rollback()

"""Looking in the log for the RENAME of a cut-over: found, or said to be missing, also where writes never cease."""

from __future__ import annotations

import pytest
from stream_setup import app, run, source

from sandbox.databases import Database
from tests.support.tailing import here
from vreplication.binlog.events import Position
from vreplication.binlog.renamed import behind_rename
from vreplication.binlog.watch import Watch
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session

__all__ = ["app", "source"]


class Busy:
    """A server that is written to before each next item is waited for: it sends no heartbeat."""

    def __init__(self, database: Database, app: Session, start: Position) -> None:
        self.database, self.app, self.start = database, app, start
        self.writes = 0

    def write(self) -> None:
        assert self.writes < 100, "it reads on behind what was there when it began"
        self.writes += 1
        run(self.app, f"INSERT INTO other VALUES ({self.writes},'a')")

    def behind_rename(self) -> Position:
        names = [(self.database.name, name) for name in ("t", "old")]
        is_mariadb = self.database.server.is_mariadb
        return behind_rename(self.database.admin, self.start, names, is_mariadb=is_mariadb, check=self.write)


@pytest.fixture
def busy(database: Database, app: Session, source: Watch) -> Busy:
    return Busy(database, app, here(database))


def test_the_place_behind_the_rename(busy: Busy) -> None:
    busy.write()
    run(busy.app, "RENAME TABLE t TO old, other TO t, old TO other")
    end = here(busy.database)
    busy.write()
    assert busy.behind_rename() == end


def test_a_log_without_the_rename_is_said_to_lack_it(busy: Busy) -> None:
    """The names are there, but not in a RENAME: a restored log, or somebody else's statements."""
    run(busy.app, "ALTER TABLE t RENAME TO old", "CREATE TABLE t LIKE old")
    with pytest.raises(SourceChanged, match="does not show the RENAME"):
        busy.behind_rename()

"""`--foreign-keys rebuild`: keys of and to the table go over with it, under live writes of parents and children."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox.databases import Database
from tests.support.families import HOMES, PEOPLE, PETS, Families, grant
from tests.support.flow import Run, begin, let_go, paused_at, wait_reached, wait_until
from vreplication.cutover import foreign
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.planning.foreign import foreign_keys
from vreplication.state import journal
from vreplication.state.workflows import WorkflowRow

pytestmark = pytest.mark.usefixtures("quick")
TOLD = (journal.FOREIGN_KEYS, journal.ORPHANS)


@pytest.fixture(autouse=True)
def _rights(database: Database) -> None:
    grant(database)


@pytest.mark.parametrize("table", [PETS, HOMES, PEOPLE])
def test_keys_go_over_with_a_child_a_parent_and_both(database: Database, table: str) -> None:
    """A pet's key acts on it, which MariaDB does not log; people are parents of pets and children of homes."""
    is_logged = database.server.flavor == "mysql" or table != PETS
    families = Families(database, "ON DELETE CASCADE" if is_logged else "")
    before = families.foreign_keys()
    with families.writing():
        run = begin(database, table, "ADD COLUMN z INT, MODIFY v BIGINT", foreign_keys="rebuild")
        result = run.result()
    assert (result.event, result.exit_code) == ("complete", 0), (result, run.said)
    assert families.foreign_keys() == before
    print(run.said, families.done, families.deadlocks, result.write_stall_millis, result.cutover_millis)
    assert families.refused == []
    families.prove()
    looked_at = [key for key in before if (database.name, table) in (key.child, key.parent)]
    with connect(database.url) as session:
        [told] = verified(session, run)
    assert told["event"] == "foreign keys verified"
    assert [str(key) in told["details"] for key in looked_at] == [True] * (2 if table == PEOPLE else 1)


def verified(session: Session, run: Run) -> list[dict[str, Any]]:
    """What the journal says of the keys."""
    return [each for each in journal.read(session, run.workflow) if each["event"] in TOLD]


def test_a_row_that_lost_its_parent_is_told_at_the_end(database: Database, pauses: Path) -> None:
    """Rows of the table and of a child, each without a parent: the workflow is complete and its exit code 1."""
    Families(database, "")
    with paused_at(pauses, "workflow.switched"), connect(database.app_url) as app, connect(database.url) as session:
        run = begin(database, PEOPLE, "ADD COLUMN z INT", foreign_keys="rebuild")
        wait_reached(pauses, "workflow.switched", run)
        app.execute_raw("SET SESSION foreign_key_checks=0")
        app.execute_raw(f"INSERT INTO {PEOPLE} (id,home) VALUES (900,901)")
        app.execute_raw(f"INSERT INTO {PETS} (id,person) VALUES (910,911)")
        let_go(pauses, "workflow.switched")
        result = run.result()
        [told] = verified(session, run)
    assert (result.event, result.exit_code) == ("complete", 1), (result, run.said)
    assert (told["event"], told["details"]) == ("orphans", result.reason)
    schema = database.name
    for words in (
        f"{schema}.{PEOPLE} have no parent in {schema}.{HOMES} by foreign key lives: home = 901.",
        f"{schema}.{PETS} have no parent in {schema}.{PEOPLE} by foreign key owned: person = 911.",
    ):
        assert f"Rows of {words}" in told["details"]


@pytest.mark.only_on("mariadb")
def test_a_process_that_stops_with_the_keys_moved_does_not_keep_rename_from_them(
    database: Database, pauses: Path
) -> None:
    """The server ends its session, which had the lock: who waits for that is still there."""
    families = Families(database, "")
    before = families.foreign_keys()
    with families.writing(), connect(database.url) as session:
        with paused_at(pauses, "cutover.sentry_dropped"):
            run = begin(database, PEOPLE, "ADD COLUMN z INT", foreign_keys="rebuild")
            wait_reached(pauses, "cutover.sentry_dropped", run)
            wait_until(lambda: session.rows(f"SHOW COLUMNS FROM {PEOPLE} LIKE 'z'"), "it is not switched")
        result = run.result()
    assert (result.event, result.exit_code) == ("complete", 0), (result, run.said)
    assert families.foreign_keys() == before
    # The old table has its keys until we come back: the risk that is told.
    assert all("__vr_old" in each for each in families.refused), families.refused
    families.prove()


@pytest.mark.only_on("mariadb")
def test_odd_names_go_over_as_they_are(database: Database) -> None:
    """InnoDB keeps names as the file system has them, and by these it is asked who refers to the table."""
    admin = database.admin
    for sql in (
        "CREATE TABLE `pä``r/t` (`i d` INT PRIMARY KEY)",
        "CREATE TABLE `Ünd x` (`se``l` INT, id INT PRIMARY KEY, CONSTRAINT `k``y,` FOREIGN KEY (`se``l`) REFERENCES"
        " `pä``r/t` (`i d`))",
        "CREATE TABLE `c(h` (id INT PRIMARY KEY, r INT, CONSTRAINT `c ) REFERENCES` FOREIGN KEY (r) REFERENCES `Ünd x`"
        " (id) ON DELETE CASCADE ON UPDATE SET NULL)",
    ):
        admin.execute_raw(sql)

    def printed() -> list[str]:
        return [str(admin.rows(f"SHOW CREATE TABLE {ident(name)}")[0][1]) for name in ("Ünd x", "c(h")]

    before = printed()
    assert begin(database, "Ünd x", "ADD COLUMN z INT", foreign_keys="rebuild").result().event == "complete"
    assert [sql.replace("  `z` int(11) DEFAULT NULL,\n", "") for sql in printed()] == before


def refused(database: Database, table: str, alter: str = "ADD COLUMN z INT", **more: str) -> str:
    result = begin(database, table, alter, foreign_keys="rebuild", **more).result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    return str(result.reason)


@pytest.mark.only_on("mariadb")
def test_what_cannot_go_over_is_refused_by_name(database: Database) -> None:
    Families(database)
    admin = database.admin
    assert "owned" in refused(database, PETS)  # it deletes pets, and MariaDB does not log that
    assert "--revert-window" in refused(database, HOMES, revert_window="1d")
    assert "--triggers" in refused(database, HOMES, triggers="preserve")
    assert "Column id " in refused(database, HOMES, "MODIFY id BIGINT")
    assert "an index on home" in refused(database, PEOPLE, "DROP INDEX lives")
    # A plain ALTER drops the key, or takes it along to the other column.
    assert "drops foreign key lives" in refused(database, PEOPLE, "DROP FOREIGN KEY IF EXISTS lives, ADD COLUMN z INT")
    admin.execute_raw(f"ALTER TABLE {PEOPLE} ADD COLUMN next INT NOT NULL DEFAULT 7")
    exchanged = "CHANGE home next INT NOT NULL, CHANGE next home INT NOT NULL, ADD KEY (home)"
    assert "Column home of foreign key lives" in refused(database, PEOPLE, exchanged)
    admin.execute_raw("SET SESSION foreign_key_checks=0")
    admin.execute_raw(f"INSERT INTO {PEOPLE} (id,home) VALUES (900,901)")
    assert "lives now: 901" in refused(database, HOMES)
    admin.execute_raw(f"DELETE FROM {PEOPLE} WHERE id=900")
    admin.execute_raw(f"ALTER TABLE {HOMES} ADD COLUMN up INT, ADD FOREIGN KEY (up) REFERENCES {HOMES} (id)")
    assert "to itself" in refused(database, HOMES)
    admin.execute_raw(f"REVOKE RELOAD ON *.* FROM '{database.user}'@'%'")
    assert "RELOAD" in refused(database, PEOPLE)


@pytest.mark.only_on("mariadb")
def test_a_session_that_puts_keys_back_goes_on_with_its_own_settings(database: Database) -> None:
    """A preparation that was cut short is undone and begun again in one session, whose ALTER is to be checked."""
    admin = database.admin
    for sql in ("CREATE TABLE p (id INT PRIMARY KEY)", "CREATE TABLE c (id INT PRIMARY KEY, p INT, KEY (p))"):
        admin.execute_raw(sql)
    admin.execute_raw("CREATE TABLE p_new LIKE p")
    admin.execute_raw("ALTER TABLE c ADD CONSTRAINT k__vr FOREIGN KEY (p) REFERENCES p_new (id)")
    row = SimpleNamespace(
        spec={"foreign_keys": "rebuild"},
        source_schema=database.name,
        source_table="p",
        shadow_table="p_new",
        retired_table="p_old",
    )
    with connect(database.url) as session:
        settings = "SELECT @@SESSION.foreign_key_checks, @@SESSION.lock_wait_timeout"
        before = session.rows(settings)
        foreign.undo_now(session, cast(WorkflowRow, row))
        assert session.rows(settings) == before
    assert "CONSTRAINT `k` FOREIGN KEY (`p`) REFERENCES `p` (`id`)" in admin.rows("SHOW CREATE TABLE c")[0][1]


def test_keys_of_tables_with_slashes_in_their_names(database: Database) -> None:
    """MySQL keeps schema and table with a slash between them."""
    admin, name = database.admin, f"{database.name}/o"
    admin.execute_raw(f"CREATE DATABASE {ident(name)}")
    try:
        admin.execute_raw(f"CREATE TABLE {ident(name)}.p (id INT PRIMARY KEY)")
        admin.execute_raw(
            f"CREATE TABLE {ident(name)}.`c/d` (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {ident(name)}.p (id))"
        )
        [key] = foreign_keys(admin, is_mariadb=database.server.is_mariadb, to=(name, "p"))
        assert (key.child, key.parent) == ((name, "c/d"), (name, "p"))
        assert key in foreign_keys(admin, is_mariadb=database.server.is_mariadb)
    finally:
        admin.execute_raw(f"DROP DATABASE {ident(name)}")

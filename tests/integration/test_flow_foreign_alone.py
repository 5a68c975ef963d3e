"""`--foreign-keys rebuild` on MySQL, where one session holds the locks of the whole family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.families import HOMES, PEOPLE, PETS, Families, grant
from tests.support.flow import begin, paused_at, wait_reached, wait_until
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.state import lease

pytestmark = [pytest.mark.only_on("mysql"), pytest.mark.usefixtures("quick")]
LOGGED = pytest.mark.only_on("mysql", since=(9, 6))
"""Keys that change rows by themselves are refused where the log does not have it."""


@pytest.fixture(autouse=True)
def _rights(database: Database) -> None:
    grant(database)


def printed(session: Session, *tables: str) -> list[str]:
    return [str(session.rows(f"SHOW CREATE TABLE {ident(name)}")[0][1]) for name in tables]


def test_to_itself_in_a_ring_and_with_odd_names(database: Database) -> None:
    """Indexes that the server has made for keys have the keys' names; the new columns' values are drawn once."""
    admin = database.admin
    for sql in (
        "CREATE TABLE `pä``r/t` (`i d` INT PRIMARY KEY, last INT)",
        "CREATE TABLE `Ünd x` (id INT PRIMARY KEY AUTO_INCREMENT, `se``l` INT, up INT, CONSTRAINT `k``y,` FOREIGN KEY"
        " (`se``l`) REFERENCES `pä``r/t` (`i d`), CONSTRAINT up FOREIGN KEY (up) REFERENCES `Ünd x` (id))",
        "CREATE TABLE `c(h` (id INT PRIMARY KEY, r INT, CONSTRAINT `c ) REFERENCES` FOREIGN KEY (r) REFERENCES `Ünd x`"
        " (id) ON DELETE CASCADE ON UPDATE SET NULL)",
        "ALTER TABLE `pä``r/t` ADD CONSTRAINT ring FOREIGN KEY (last) REFERENCES `Ünd x` (id)",
        "INSERT INTO `pä``r/t` (`i d`) VALUES (1)",
        "INSERT INTO `Ünd x` VALUES (1,1,NULL),(2,1,1),(3,NULL,2)",
        "INSERT INTO `c(h` VALUES (1,2)",
        "UPDATE `pä``r/t` SET last=3",
    ):
        admin.execute_raw(sql)
    tables = ("pä`r/t", "Ünd x", "c(h")
    before = printed(admin, *tables)
    result = begin(
        database, "Ünd x", "ADD COLUMN z DATETIME DEFAULT CURRENT_TIMESTAMP", foreign_keys="rebuild", retired="drop"
    ).result()
    assert (result.event, result.exit_code) == ("complete", 0), result
    new = "  `z` datetime DEFAULT CURRENT_TIMESTAMP,\n"
    assert [sql.replace(new, "") for sql in printed(admin, *tables)] == before
    for sql, code in (
        ("DELETE FROM `Ünd x` WHERE id=3", 1451),
        ("INSERT INTO `Ünd x` (up) VALUES (9)", 1452),
        ("DELETE FROM `pä``r/t`", 1451),
    ):
        with pytest.raises(SqlError) as refused:
            admin.execute_raw(sql)
        assert refused.value.code == code


def test_catch_up_that_is_started_again_under_the_lock_fails_the_attempt_alone(
    database: Database, pauses: Path
) -> None:
    families = Families(database, "")
    with paused_at(pauses, "cutover.catch_up_fenced"), connect(database.url) as session:
        run = begin(database, PEOPLE, "ADD COLUMN z INT", foreign_keys="rebuild")
        wait_reached(pauses, "cutover.catch_up_fenced", run)
        lease.acquire(session, run.workflow, lease.REPLICATE)
    assert run.result().exit_code == 0, run.said
    families.prove()


@LOGGED
def test_what_is_written_up_to_the_lock_goes_over(database: Database, pauses: Path) -> None:
    """Behind the place at which catch-up stands still: rows that come, change, go and change their key."""
    Families(database)
    with paused_at(pauses, "cutover.before_lock"), connect(database.app_url) as app:
        run = begin(database, PETS, "ADD COLUMN z DATETIME DEFAULT CURRENT_TIMESTAMP", foreign_keys="rebuild")
        wait_reached(pauses, "cutover.before_lock", run)
        for sql in (
            f"UPDATE {PETS} SET v=v+1 WHERE id < 20",
            f"DELETE FROM {PETS} WHERE id BETWEEN 5 AND 9",
            f"UPDATE {PETS} SET id=id+1000 WHERE id BETWEEN 30 AND 39",
            f"INSERT INTO {PETS} (id,person,v) VALUES (5,5,7)",
            f"DELETE FROM {PEOPLE} WHERE id=50",
        ):
            app.execute_raw(sql)
        wanted = app.rows(f"SELECT id,person,v FROM {PETS} ORDER BY id")
    assert run.result().exit_code == 0
    assert list(database.admin.rows(f"SELECT id,person,v FROM {PETS} ORDER BY id")) == list(wanted)
    # Under the lock they were alike.
    assert not any("differ" in words for words in run.said), run.said


@pytest.fixture
def another(database: Database) -> Iterator[str]:
    """A schema that our user may not see."""
    name = f"{database.name}_o"
    database.admin.execute_raw(f"CREATE DATABASE {name}")
    yield name
    database.admin.execute_raw(f"DROP DATABASE {name}")


def test_who_uses_a_relative_holds_it_up_and_is_named(database: Database, another: str) -> None:
    """Pets refer to people, who refer to homes: a reader of pets would keep the ALTER of people waiting."""
    families = Families(database, "")
    before = families.foreign_keys()
    # What the server takes along with pets.
    database.admin.execute_raw(
        f"CREATE TABLE {another}.visits (pet INT PRIMARY KEY, FOREIGN KEY (pet) REFERENCES {database.name}.{PETS} (id))"
    )
    with connect(database.app_url) as app:
        app.execute_raw("BEGIN")
        app.execute_raw(f"SELECT COUNT(*) FROM {PETS}")
        run = begin(database, HOMES, "ADD COLUMN z INT", foreign_keys="rebuild")
        wait_until(lambda: any(f"connection {app.id} " in words for words in run.said), "nobody was named")
        app.execute_raw("COMMIT")
    assert run.result().exit_code == 0
    assert families.foreign_keys() == before
    families.prove()


def test_a_backup_that_forbids_ddl_keeps_no_writer_waiting(database: Database, pauses: Path) -> None:
    """LOCK TABLES does not wait for it, but the first ALTER does."""
    families = Families(database, "")
    with database.server.admin() as backup:
        with paused_at(pauses, "workflow.gate_open"):
            run = begin(database, PEOPLE, "ADD COLUMN z INT", foreign_keys="rebuild")
            wait_reached(pauses, "workflow.gate_open", run)
            backup.execute_raw("LOCK INSTANCE FOR BACKUP")
        wait_until(lambda: any("cut-over not done" in words for words in run.said), "it was not tried")
        assert all("forbids DDL" in words for words in run.said if "not done" in words), run.said
        backup.execute_raw("UNLOCK INSTANCE")
    assert run.result().exit_code == 0
    families.prove()


@pytest.mark.parametrize("point", ["cutover.locked", "cutover.key_given", "cutover.key_moved", "cutover.after_rename"])
def test_a_process_that_stops_under_the_locks(database: Database, pauses: Path, point: str) -> None:
    """At the deadline the holder is ended, behind the first ALTER of a child by its server: no row loses its parent."""
    families = Families(database)
    before = families.foreign_keys()
    with families.writing(), connect(database.url) as session:
        with paused_at(pauses, point):
            run = begin(database, PEOPLE, "ADD COLUMN z INT", foreign_keys="rebuild")
            wait_reached(pauses, point, run)
            done = families.done
            # Writers go on.
            wait_until(lambda: families.done > done + 5 or families.refused, "the locks are not let go", 20)
            assert (point == "cutover.after_rename") == bool(session.rows(f"SHOW COLUMNS FROM {PEOPLE} LIKE 'z'"))
        result = run.result()
    assert (result.event, result.exit_code) == ("complete", 0), (result, run.said)
    assert families.foreign_keys() == before
    # By keys that are there twice until we come back: the risk that is told.
    assert all("__vr" in each for each in families.refused), families.refused
    families.prove()


def refused(database: Database, table: str, alter: str = "ADD COLUMN z INT", **more: str) -> str:
    result = begin(database, table, alter, foreign_keys="rebuild", **more).result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    return str(result.reason)


@LOGGED
def test_what_cannot_go_over_is_refused_by_name(database: Database) -> None:
    families = Families(database)
    assert "--revert-window" in refused(database, HOMES, revert_window="1d")
    assert "unique key" in refused(database, PEOPLE, "ADD UNIQUE KEY (home)")
    assert "Column id " in refused(database, HOMES, "MODIFY id BIGINT")
    database.admin.execute_raw(f"ALTER TABLE {PEOPLE} ADD KEY lives__vr (v)")
    assert "lives__vr" in refused(database, PEOPLE)
    act = f"ADD CONSTRAINT lives FOREIGN KEY (home) REFERENCES {HOMES} (id) ON DELETE CASCADE"
    database.admin.execute_raw(f"ALTER TABLE {PEOPLE} DROP KEY lives__vr, DROP FOREIGN KEY lives")
    database.admin.execute_raw(f"ALTER TABLE {PEOPLE} {act}")
    assert "owned" in refused(database, PEOPLE)
    database.admin.execute_raw(f"REVOKE REFERENCES ON {database.name}.* FROM '{database.user}'@'%'")
    assert "REFERENCES" in refused(database, PETS)
    assert len(families.foreign_keys()) == 2


@pytest.mark.parametrize("table", [PEOPLE, f"{PEOPLE}__vr_new"])
def test_a_trigger_that_no_log_tells_of_is_seen_under_the_lock(database: Database, pauses: Path, table: str) -> None:
    """It would stay on the old table, or go live with the new one."""
    Families(database, "")
    with paused_at(pauses, "cutover.before_lock"), database.server.admin(database.name) as hidden:
        run = begin(database, PEOPLE, "ADD COLUMN z INT", foreign_keys="rebuild")
        wait_reached(pauses, "cutover.before_lock", run)
        hidden.execute_raw("SET SESSION sql_log_bin=0")
        hidden.execute_raw(f"CREATE TRIGGER unseen BEFORE INSERT ON {table} FOR EACH ROW SET NEW.v=7")
    result = run.result()
    assert result.event == "failed", result
    assert "unseen" in str(result.reason), result


SWAP = "RENAME COLUMN id TO code, RENAME COLUMN code TO id"
STAFF = (
    f"{PEOPLE} (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, boss INT, FOREIGN KEY (boss) REFERENCES {PEOPLE} (id))"
)


@pytest.mark.parametrize("alter", [SWAP, "MODIFY id BIGINT NOT NULL", "MODIFY boss BIGINT"])
def test_of_a_key_to_its_own_table_neither_side_may_change(database: Database, alter: str) -> None:
    """Exchanged, code has the name id, and the key, made without checks, would refer to its values."""
    database.admin.execute_raw(f"CREATE TABLE {STAFF}")
    database.admin.execute_raw(f"INSERT INTO {PEOPLE} VALUES (1,2,NULL),(2,1,1),(3,9,2)")
    assert "is changed, renamed or dropped" in refused(database, PEOPLE, alter)


def test_of_a_key_to_its_own_table_the_unique_key_stays(database: Database) -> None:
    """Without it a row would have several parents."""
    database.admin.execute_raw(f"CREATE TABLE {STAFF.replace('(id)', '(code)')}")
    alter = "DROP KEY code, ADD KEY code (code)"
    assert "lacks a unique key of code" in refused(database, PEOPLE, alter)

"""The property at its hardest: odd collations, narrowing, values by the session, odd settings, writes at every moment.

Whatever is drawn, the workflow ends with what a plain ALTER TABLE makes of the final source, or with its refusal, or
with one of the refusals that docs/limits.md lists; and no verification has to copy a row again.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support import every_case, hard, oracle
from tests.support.flow import Run, contents, definition, wait_until
from tests.support.hard import Hard, Setting, Write
from vreplication.engine import recheck
from vreplication.errors import Refused
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.phases import Phase as Where
from vreplication.planning.spec import Spec
from vreplication.state import journal, workflows
from vreplication.workflows import operate

GROUPS, SIDE_BY_SIDE = int(os.environ.get("VREPLICATION_HARD_GROUPS", every_case.examples(6, 10))), 4
SEED_VARIABLE = "VREPLICATION_HARD_SEED"
_LEGAL = frozenset({1062, 1048, 1264, 1265, 1406, 1366, 1292, 3819, 1665, 1364, 1213, 1267, 3854})
STRICTER = {
    "a value that did not fit, if only for a time or under a server that cuts": r"not fit the new|cannot hold",
    "white space or digits that a note cuts": r"\(1265\)",
    "a change written as a statement": r"written as a statement",
    "white space that CHAR cuts": r"copy differs",
    "a key that MariaDB sorts otherwise than it compares": r"no CHAR under a NOPAD",
}
"""Ends of ours where a plain ALTER goes through: docs/limits.md."""


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """By workflow: what is to be done between the last comparison and the lock, once."""
    found: dict[str, Callable[[], None]] = {}
    genuine = recheck.Recheck.until_small

    def until_small(self: recheck.Recheck, *, with_sample: bool) -> None:
        genuine(self, with_sample=with_sample)
        found.pop(self.workflow, lambda: None)()

    monkeypatch.setattr(recheck.Recheck, "until_small", until_small)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("quick")
@pytest.mark.either
def test_a_hard_case_gives_what_a_plain_alter_gives(server: RunningServer, late: dict[str, Callable[[], None]]) -> None:
    ended: Counter[str] = Counter()
    database = create_database(server)
    database.admin.execute_raw("SET GLOBAL event_scheduler=ON")

    @seed(int(os.environ.get(SEED_VARIABLE, "11")))
    @settings(
        max_examples=GROUPS,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(
        hard.settings(server.flavor),
        st.lists(hard.cases(server.flavor), min_size=SIDE_BY_SIDE, max_size=SIDE_BY_SIDE),
    )
    def run_group(setting: Setting, group: list[Hard]) -> None:
        with oracle.settings(database, **dict(setting.variables)), ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            ended.update(pool.map(lambda case: run_case(database, setting, case, late), group))

    try:
        run_group()
    finally:
        database.drop()
    complete = ended["complete"]
    print(f"\n{server.flavor}: {complete} of {sum(ended.values())} complete; {dict(ended)}")
    assert sum(ended.values()) >= GROUPS * SIDE_BY_SIDE
    assert complete >= 0.4 * sum(ended.values()), ended


def run_case(database: Database, setting: Setting, case: Hard, late: dict[str, Callable[[], None]]) -> str:
    """What it came to. Raises AssertionError, with the case, when it is not what a plain ALTER gives."""
    name = f"t{secrets.token_hex(4)}"
    with oracle.application(database) as app, writer(database, name) as write:
        try:
            app.execute_raw(f"CREATE TABLE `{name}` {case.create}")
            app.execute_raw(f"CREATE TABLE `{name}_trial` LIKE `{name}`")
            app.execute_raw(f"ALTER TABLE `{name}_trial` {case.alter}")
        except SqlError as error:
            return f"not legal here: {error.code}"
        inserts = [Write(f"INSERT IGNORE INTO {{t}} (`n`,`k`,`u`,`ts`,`x`) VALUES ({row})") for row in case.rows]
        write(inserts[::2] + list(case.phases[0]))
        run = Run(spec(name, case)).start(database.url)
        wait_for(database, run, lambda row: row.rows_total is not None)
        write([*inserts[1::2], *case.phases[1]])
        wait_for(database, run, lambda row: row.phase is Where.WAITING)
        write([*case.phases[2], *([case.statement] if setting.has_statements else [])])
        late[run.workflow] = lambda: write(case.phases[3])
        release(database, run)
        try:
            return judged(database, app, run, name, setting, case)
        except AssertionError as error:
            raise AssertionError(f"HARD {str(error)[:900]} | {case.alter} | {run.said} | {setting} {case}") from error


def spec(name: str, case: Hard) -> Spec:
    return Spec(
        table=f"`{name}`",
        alter=case.alter,
        workflow=f"w-{secrets.token_hex(4)}",
        copy_path=case.path,  # type: ignore[arg-type]
        apply_parallelism=case.apply_parallelism,
        chunk_rows=5,
        cutover="manual",
    )


def judged(database: Database, app: Session, run: Run, name: str, setting: Setting, case: Hard) -> str:
    result = run.result()
    assert result.event != "complete" or not setting.has_statements, "complete over a change that no row event tells"
    if result.event != "complete":
        if oracle.plain_alter(app, name, case.alter) is not None:
            return "refused, as by a plain ALTER"
        kinds = [kind for kind, words in STRICTER.items() if re.search(words, str(result.reason))]
        assert kinds, f"a plain ALTER takes it: {result}"
        return f"refused: {kinds[0]}"
    with connect(database.url) as session:
        assert "mismatch" not in [entry["event"] for entry in journal.read(session, run.workflow)]
    found, shape = contents(app, name), definition(app, name)
    app.execute_raw(f"DROP TABLE `{name}`")
    refusal = oracle.plain_alter(app, str(result.retired_table), case.alter)
    assert refusal is None, f"complete, where a plain ALTER is refused: {refusal}"
    assert found == contents(app, str(result.retired_table))
    assert shape == definition(app, str(result.retired_table))
    return "complete"


def wait_for(database: Database, run: Run, is_so: Callable[[workflows.WorkflowRow], bool]) -> None:
    """Or until it has ended."""

    def is_there() -> bool:
        row = workflows.find(session, run.workflow)
        return not run.is_going or (row is not None and is_so(row))

    with connect(database.url) as session:
        wait_until(is_there, f"it does not get on: {run.said}", pause_seconds=0.1)


def release(database: Database, run: Run) -> None:
    with contextlib.suppress(Refused):
        operate.release(database.url, run.workflow, "test")


@contextlib.contextmanager
def writer(database: Database, name: str) -> Iterator[Callable[[list[Write] | tuple[Write, ...]], None]]:
    """Runs writes, each by its way; what the table refuses is passed over."""
    with database.server.admin(database.name) as session:
        session.execute_raw("SET SESSION time_zone=DEFAULT, sql_mode=DEFAULT, lc_time_names=DEFAULT")
        session.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        run(session, f"CREATE TABLE `{name}_x` (i INT)", f"CREATE VIEW `{name}_v` AS SELECT 1")

        def write(writes: list[Write] | tuple[Write, ...]) -> None:
            for one in writes:
                session.execute_raw(f"SET SESSION binlog_format={one.format or 'ROW'}")
                try:
                    _WAYS[one.way](session, name, one.sql)
                except SqlError as error:
                    if error.code not in _LEGAL:
                        raise AssertionError(f"{one}: {error}") from error

        yield write


def run(session: Session, *statements: str) -> None:
    for statement in statements:
        session.execute_raw(statement)


def _directly(session: Session, name: str, sql: str) -> None:
    session.execute_raw(sql.format(t=f"`{name}`"))


def _by_view(session: Session, name: str, sql: str) -> None:
    run(session, f"CREATE OR REPLACE VIEW `{name}_v` AS SELECT * FROM `{name}`", sql.format(t=f"`{name}_v`"))


def _by_trigger(session: Session, name: str, sql: str) -> None:
    body = sql.format(t=f"`{name}`")
    run(session, f"CREATE TRIGGER `{name}_g` AFTER INSERT ON `{name}_x` FOR EACH ROW {body}")
    try:
        session.execute_raw(f"INSERT INTO `{name}_x` VALUES (1)")
    finally:
        session.execute_raw(f"DROP TRIGGER `{name}_g`")


def _by_procedure(session: Session, name: str, sql: str) -> None:
    run(session, f"CREATE PROCEDURE `{name}_p`() {sql.format(t=f'`{name}`')}")
    try:
        session.execute_raw(f"CALL `{name}_p`()")
    finally:
        session.execute_raw(f"DROP PROCEDURE `{name}_p`")


def _by_event(session: Session, name: str, sql: str) -> None:
    body = sql.format(t=f"`{name}`")
    session.execute_raw(f"CREATE EVENT `{name}_e` ON SCHEDULE AT CURRENT_TIMESTAMP DO {body}")
    query = "SELECT 1 FROM information_schema.events WHERE event_schema=DATABASE() AND event_name=%s"
    wait_until(lambda: session.row(query, (f"{name}_e",)) is None, "the event does not end")


_WAYS = dict(zip(hard.WAYS, (_directly, _by_view, _by_trigger, _by_procedure, _by_event), strict=True))

"""The property: whatever table, rows, writes and ALTER are drawn, an online DDL gives what a plain ALTER gives.

Cases are drawn in groups that run side by side on one server: a workflow mostly waits. The drawn cases are counted, so
that a run which drew too few fails.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.drawn import Case, cases
from tests.support.flow import Run, contents, definition, wait_until
from vreplication.errors import Refused
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.planning.spec import Spec
from vreplication.state import workflows
from vreplication.workflows import operate
from vreplication.workflows.online_ddl import run as online_ddl

pytestmark = pytest.mark.either

GROUPS, SIDE_BY_SIDE = 10, 4
_LEGAL = frozenset({1062, 1048})
COPIED, FOLLOWED = "complete by the copy alone", "complete by copy and catch-up"


def run_case(database: Database, case: Case) -> str:
    """Run one case; returns what it came to. Raises AssertionError when the result differs."""
    name = f"t{secrets.token_hex(4)}"
    with connect(database.app_url) as app:
        try:
            app.execute_raw(f"CREATE TABLE `{name}` {case.create}")
            app.execute_raw(f"CREATE TABLE `{name}_trial` LIKE `{name}`")
            app.execute_raw(f"ALTER TABLE `{name}_trial` {case.alter}")
        except SqlError as error:
            return f"not legal here: {error.code}"
        inserts = [f"INSERT INTO `{name}` VALUES ({row})" for row in case.rows]
        fill(app, name, inserts[::2])
        run = Run(
            Spec(
                table=f"`{name}`",
                alter=case.alter,
                workflow=f"w-{secrets.token_hex(4)}",
                copy_path=case.path,  # type: ignore[arg-type]
                chunk_rows=case.chunk_rows,
                cutover="manual",
            )
        ).start(database.url)
        writes = [write.replace("{t}", f"`{name}`") for write in case.writes]
        fill(app, name, writes[: len(writes) // 2])
        wait_prepared(database, run)
        # Every second row and every later write comes by the log, beside the copy or behind it.
        fill(app, name, [*writes[len(writes) // 2 :], *inserts[1::2]])
        app.execute_raw("COMMIT")
        release(database, run)
        result = run.result()
        if result.event == "refused":
            return f"refused: {result.reason}"
        assert result.event == "complete", (case, result, run.said)
        compare(app, name, str(result.retired_table), case)
        return FOLLOWED if result.events_applied else COPIED


def wait_prepared(database: Database, run: Run) -> None:
    """Until the start position is taken and the copy may begin; or it has ended."""

    def is_prepared() -> bool:
        row = workflows.find(session, run.workflow)
        return not run.is_going or (row is not None and row.rows_total is not None)

    with connect(database.url) as session:
        wait_until(is_prepared, f"the workflow is not prepared: {run.said}", pause_seconds=0.1)


def fill(app: Session, name: str, statements: list[str]) -> None:
    for statement in statements:
        try:
            app.execute_raw(statement)
        except SqlError as error:
            if error.code not in _LEGAL:
                raise AssertionError(statement) from error


def release(database: Database, run: Run) -> None:
    """As an operator does it, once the workflow is known."""

    def is_released() -> bool:
        try:
            operate.release(database.url, run.workflow, "test")
        except Refused:
            return not run.is_going
        return True

    wait_until(is_released, f"the workflow does not begin: {run.said}")


def compare(app: Session, name: str, retired: str, case: Case) -> None:
    found, shape = contents(app, name), definition(app, name)
    app.execute_raw(f"DROP TABLE `{name}`")
    app.execute_raw(f"ALTER TABLE `{retired}` {case.alter}")
    assert found == contents(app, retired), case
    assert shape == definition(app, retired), case


def draw(server: RunningServer, groups: int, side_by_side: int) -> None:
    """Draw groups of cases and run each group side by side; fails when too few could be used."""
    ended: list[str] = []
    database = create_database(server)

    @settings(
        max_examples=groups,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.lists(cases(), min_size=side_by_side, max_size=side_by_side))
    def run_group(group: list[Case]) -> None:
        with ThreadPoolExecutor(side_by_side) as pool:
            ended.extend(pool.map(lambda case: run_case(database, case), group))

    try:
        run_group()
    finally:
        database.drop()
    followed = ended.count(FOLLOWED)
    complete = followed + ended.count(COPIED)
    others = sorted({e for e in ended if e not in (COPIED, FOLLOWED)})
    print(f"\n{complete} cases complete of {len(ended)} drawn, {followed} through catch-up; others: {others}")
    assert len(ended) >= groups * side_by_side
    assert complete >= 0.8 * len(ended), others
    assert followed >= 0.5 * len(ended), "too few changes came by the log"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("quick")
def test_an_online_ddl_gives_what_a_plain_alter_gives(server: RunningServer) -> None:
    draw(server, GROUPS, SIDE_BY_SIDE)


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quick")
@pytest.mark.in_turn("mariadb")
def test_the_same_through_spark(server: RunningServer, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_ddl, "SparkStart", lambda *_, **__: Shared(spark))
    draw(server, 5, 2)


class Shared:
    """The session of the test run, in the place of spark.session.SparkStart."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def context(self, *_: Any) -> Any:
        return self._spark

    def is_starting(self) -> bool:
        return False

    def release(self) -> None: ...

    def stop(self) -> None:
        """The run's own fixture stops it."""

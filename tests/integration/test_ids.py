"""Ids under which a move keeps state of its tables and streams, or a group its tables: no other workflow gets them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.flow import call
from tests.support.local_spark import WITHOUT
from tests.support.rows import make_move, workflow_row
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import make_spec
from vreplication.scheduler import due, queueing
from vreplication.settings import SIDECAR
from vreplication.state import groups, layout, workflows
from vreplication.state.groups import Group
from vreplication.workflows.changefeed import run as feeding
from vreplication.workflows.changefeed.spec import make_feed_spec

pytestmark = pytest.mark.either


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        layout.install(opened)
        opened.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
        yield opened


def refused(session: Session, workflow: str, strategy: str = "online") -> list[str]:
    """What a plan says of the id."""
    made = make_plan(session, make_spec(table="t", alter="ADD x INT", workflow=workflow, strategy=strategy))
    return [each.sentence for each in made.refusals if each.name == "workflow"]


@pytest.mark.parametrize("phase", [Phase.COPYING, Phase.COMPLETE])
def test_what_is_a_part_of_a_move_is_refused_by_its_plan(session: Session, phase: Phase) -> None:
    """Begun all the same it failed by a duplicate key, and its cancel took the move's ledger. Its verdicts stay."""
    make_move(session, "shop", session.url.database, phase=phase)
    for workflow in ("shop.1", "shop.2", "shop.s2", "shop.s3.2"):
        assert "shop" in refused(session, workflow)[0]
        assert refused(session, workflow, "instant")
    for workflow in ("shop.a", "shop.revert", "shop.s", "shopping.1", "shop-1", "eshop.s2"):
        assert not refused(session, workflow)


def test_numbers_behind_what_is_no_move_are_free(session: Session) -> None:
    workflows.create(session, workflow_row("shop", phase=Phase.COMPLETE))
    assert not refused(session, "shop.1")


def test_an_online_ddl_touches_nothing_of_the_move(database: Database, session: Session) -> None:
    make_move(session, "shop", session.url.database)
    words = ("--alter", "ADD x INT", "--spark-master", WITHOUT, "--json")
    ended = call(database, "online-ddl", "--table", "t", "--workflow", "shop.1", *words)
    assert ended.code == 2
    assert "keeps state of its own" in ended.out
    assert [row.id for row in workflows.load_all(session)] == ["shop"]


def test_the_table_of_a_group_whose_turn_has_not_come(database: Database, session: Session) -> None:
    """By itself under another table's name it would be cancelled with the group."""
    specs = tuple(make_spec(table=table, alter="FORCE").model_dump(mode="json") for table in ("a", "b"))
    groups.create(session, Group(id="two", specs=specs, at_once=1))
    for workflow in ("two", "two.2"):
        words = ("--alter", "ADD x INT", "--spark-master", WITHOUT, "--json")
        ended = call(database, "online-ddl", "--table", "t", "--workflow", workflow, *words)
        assert (ended.code, "two" in ended.out) == (2, True)
    assert workflows.load_all(session) == []


def test_a_feed_and_what_is_queued(session: Session) -> None:
    make_move(session, "shop", session.url.database)
    workflows.create(session, workflow_row("orders.s2.1", phase=Phase.COMPLETE))
    spec = make_feed_spec(workflow="shop.s2", sink="kafka://nowhere.example:9092/topic")
    with pytest.raises(Refused, match="keeps state of its own"):
        feeding.create_or_resume(spec, [session.url], "")
    schema = session.url.database
    entry = queueing.make_entry(schema, {"table": "t", "alter": "FORCE", "workflow": "shop.1"})
    with pytest.raises(Refused, match="keeps state of its own"):
        queueing.submit(session, entry, "ann")
    given = {"kind": "move_tables", "tables": ("t",), "source_conn_id": "old", "workflow": "orders"}
    with pytest.raises(Refused, match=r"a workflow orders\.s2\.1"):
        queueing.submit(session, queueing.make_entry(schema, given), "ann")
    assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.queue") == 0


def test_what_the_queue_has_for_something_else_is_not_begun(database: Database, session: Session) -> None:
    """The end of the one was taken for the other's: the queue called it done, and started its successors."""
    session.execute_raw("CREATE TABLE u (id INT PRIMARY KEY) ENGINE=InnoDB")
    # As somebody writes it whose server does not tell the case of letters apart.
    given = {"table": "T", "alter": "ADD x INT", "workflow": "w1"}
    queueing.submit(session, queueing.make_entry(session.url.database, given), "ann")

    def begin(table: str, alter: str) -> tuple[int, str]:
        words = ("--alter", alter, "--workflow", "w1", "--strategy", "instant", "--json")
        ended = call(database, "online-ddl", "--table", table, *words)
        return ended.code, ended.out

    for table, alter in (("u", "ADD x INT"), ("t", "ADD y INT")):
        code, told = begin(table, alter)
        assert (code, "in the queue, for another table or ALTER" in told) == (2, True), told
    spec = make_feed_spec(workflow="w1", sink="kafka://nowhere.example:9092/topic")
    with pytest.raises(Refused, match="in the queue"):
        feeding.create_or_resume(spec, [session.url], "")
    assert due.standings(queueing.look(session))[0].state == due.DUE
    code, told = begin("t", "ADD  x INT")
    assert code == 0, told
    assert due.standings(queueing.look(session))[0].state == due.DONE

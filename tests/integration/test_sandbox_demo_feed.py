"""The demo of a feed proves what is right, by the real program; and its proof sees what is lost, split or twice."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from rich.console import Console

from sandbox import demo_feed, feed_proof, feed_workload, kafka, servers
from sandbox.databases import Database
from sandbox.demo_feed import Demo
from sandbox.feed_workload import MARIADB, MYSQL, TABLES, Missing, Orders, Reader, Size, Transfers
from vreplication.errors import Ambiguous
from vreplication.mysql.session import Session

pytestmark = pytest.mark.either


@pytest.mark.xdist_group("kafka_cluster")
@pytest.mark.seldom
def test_two_servers_into_a_third_are_proved(tmp_path: Path) -> None:
    """In the group of those who have brokers of their own: not beside them."""
    demo, said = Demo(rows=1_000, folder=tmp_path / "demo", seconds=2.0, down=1.0, rate=20.0), io.StringIO()
    try:
        result = demo_feed.run(demo, Console(file=said, width=120))
    except (demo_feed.binaries.ServerMissing, servers.StartFailed, kafka.StartFailed) as error:
        pytest.skip(str(error))
    assert result.holds, said.getvalue()
    killed = ("everything killed", "first source killed", "second source killed", "target killed")
    assert result.stages == ("3 partitions", "5 partitions", "2 partitions", *killed, "afterwards")
    assert "no change was lost, none came twice" in said.getvalue()
    assert not demo.folder.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM items WHERE order_id=1 AND line=1",
        "UPDATE orders SET cents=cents+CASE id WHEN 1 THEN 1 ELSE -1 END WHERE id IN (1, 2)",
        "UPDATE accounts SET balance=balance-1, moves=moves+1 WHERE id=1",
        "DELETE FROM transfers WHERE id=1",
    ],
)
def test_half_a_transaction_is_seen(database: Database, statement: str) -> None:
    admin, size = database.admin, Size.of(100)
    for tables in TABLES.values():
        feed_workload.create(admin, tables)
    feed_workload.fill({MARIADB: admin, MYSQL: admin}, size, 1)
    reader = Reader(database.app_url, size)
    reader.act(admin)
    admin.execute_raw(statement)
    with pytest.raises(Missing, match="half a transaction"):
        reader.act(admin)


def test_what_was_under_way_counts_where_the_server_has_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second COMMIT is done, and each is without an answer."""
    admin, size, done = database.admin, Size.of(100), itertools.cycle((True, False))
    for tables in TABLES.values():
        feed_workload.create(admin, tables)
    feed_workload.fill({MARIADB: admin, MYSQL: admin}, size, 1)

    def lose(session: Session) -> None:
        session.execute_raw("COMMIT" if next(done) else "ROLLBACK")
        raise Ambiguous("The connection was lost while committing.")

    monkeypatch.setattr(Session, "_commit", lose)
    for writer in (Orders(0, database.app_url, size, 1, 1.0), Transfers(0, database.app_url, size, 1, 1.0)):
        for _ in range(40):
            with pytest.raises(Ambiguous):
                writer.act(admin)
            writer._settle(admin)
        assert (writer.done, writer.lost, writer.kept) == (20, 40, 20)
    Reader(database.app_url, size).act(admin)


def test_a_row_that_is_lost_or_invented_is_named() -> None:
    assert feed_proof.difference([(1, "a")], [(1, "a")]) == ""
    told = feed_proof.difference([(1, "a"), (2, "b")], [(2, "b"), (2, "c")])
    assert "1 of the source's are not in the target [(1, 'a')]" in told
    assert "1 of the target's are not on the source [(2, 'c')]" in told

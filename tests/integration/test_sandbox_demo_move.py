"""The demo proves a right move, by the real program without a JVM; and its proof sees what is lost, split or late."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from sandbox import demo_move, servers, shop
from sandbox.demo_move import Demo
from sandbox.shop_actors import SOURCE, TARGET, Accepted, Told
from sandbox.shop_proof import Prover, in_turn, keep_copy
from sandbox.shop_workload import Workload
from tests.support.pairs import Pair, _pair_servers, pair

__all__ = ["_pair_servers", "pair"]

WITHOUT_JVM = """
from tests.support import local_spark
local_spark.install()
from vreplication.workflows.move_tables import run
run.SparkStart = local_spark.LocalStart
from vreplication.__main__ import main
main()
"""


def test_there_and_back_and_there_again_is_proved(tmp_path: Path) -> None:
    program, said = (sys.executable, "-c", WITHOUT_JVM), io.StringIO()
    demo = Demo(rows=3_000, folder=tmp_path / "demo", after=10, program=program)
    try:
        result = demo_move.run(demo, Console(file=said, width=120))
    except (demo_move.binaries.ServerMissing, servers.StartFailed) as error:
        pytest.skip(str(error))
    assert result.holds, said.getvalue()
    assert [stage.title for stage in result.stages] == ["moved", "back again", "there again", "complete"]
    assert "no write was lost, none was taken twice" in said.getvalue()


@pytest.fixture
def prover(pair: Pair, tmp_path: Path) -> Iterator[Prover]:
    """Of an application that has written to the source, and rests; nothing moves."""
    size = shop.Size.of(2_000, 2)
    shop.create(pair.source.admin)
    shop.fill(pair.source.admin, size)
    keep_copy(pair.source.admin)
    told = Told(tmp_path / "to", {SOURCE: pair.source.app_url, TARGET: pair.target.app_url})
    told.write(SOURCE)
    try:
        with Workload(told, size, rate=500) as workload:
            workload.wait_for(30, SOURCE)
        yield Prover(source=pair.source.admin, target=pair.target.admin, app=told.places, workload=workload)
    finally:
        pair.source.admin.execute("DROP DATABASE IF EXISTS shop_at_start")


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_what_is_lost_or_split_is_not_proved(prover: Prover) -> None:
    right = prover.prove(SOURCE, 0.0, is_other_level=False)
    assert right.holds, right.troubles
    admin = prover.source
    admin.execute("UPDATE customers SET serial=serial-1 WHERE id=-1")
    admin.execute("DELETE FROM items WHERE order_id=1 AND line=1")
    wrong = "\n".join(prover.prove(SOURCE, 0.0, is_other_level=False).troubles)
    assert "customers on the source, other content: (-1,)" in wrong
    assert "half of a transaction is on the side that takes writes, the source: orders [1]" in wrong
    assert "items on the source: " in wrong


def test_a_write_that_the_old_side_takes_too_late_is_told() -> None:
    taken = [
        Accepted(SOURCE, 1.0, 1.1, "a"),
        Accepted(TARGET, 2.0, 2.1, "a"),
        Accepted(SOURCE, 2.05, 2.2, "b"),
    ]
    assert in_turn(taken, TARGET, 0.0)[1] == []
    assert len(in_turn([*taken, Accepted(SOURCE, 2.2, 2.3, "b")], TARGET, 0.0)[1]) == 1

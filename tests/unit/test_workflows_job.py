"""How hard a workflow may work, from what was asked for and what the server allows."""

from __future__ import annotations

import pytest

from vreplication.engine.job import limits_of
from vreplication.planning.spec import Spec
from vreplication.settings import MOST_CHUNK_MILLIS, Limits, Tuning


def spec(**more: object) -> Spec:
    return Spec.model_validate({"table": "t", "alter": "FORCE", **more})


def test_what_was_asked_for() -> None:
    asked = spec(copy_parallelism=8, chunk_rows=700, chunk_millis=900, apply_parallelism=3)
    assert limits_of(asked, holds_counter=False) == Limits(
        copy_parallelism=8,
        chunk_rows=700,
        chunk_millis=900,
        apply_parallelism=3,
        most_chunk_millis=MOST_CHUNK_MILLIS,
    )


@pytest.mark.parametrize(("asked", "given"), [(900, 100), (100, 100), (60, 60)])
def test_a_chunk_that_locks_the_counter_is_short(asked: int, given: int) -> None:
    """Catch-up's inserts wait for as long as a chunk holds the table's AUTO_INCREMENT counter."""
    limits = limits_of(
        spec(copy_parallelism=8, chunk_rows=700, chunk_millis=asked, apply_parallelism=3), holds_counter=True
    )
    assert (limits.copy_parallelism, limits.chunk_millis) == (8, given)
    assert limits.most_chunk_millis == 100
    assert (limits.chunk_rows, limits.apply_parallelism) == (700, 3)


def test_no_tuning_goes_beyond() -> None:
    limits = limits_of(spec(), holds_counter=True).tuned(Tuning(copy_parallelism=6, chunk_millis=2000))
    assert (limits.copy_parallelism, limits.chunk_millis) == (6, 100)

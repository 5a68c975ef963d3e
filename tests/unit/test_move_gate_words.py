"""What a move says that it waits for, and why it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from vreplication.workflows.move_tables import steps
from vreplication.workflows.move_tables.steps import Work


@pytest.mark.parametrize(
    ("number", "window", "words"),
    [
        (1, "Sat 02:00-04:00 UTC", "Waiting for the window Sat 02:00-04:00 UTC, or `vreplication release m`."),
        (1, None, "Waiting for `vreplication release m`."),
        # Behind a way back a window opens nothing any more.
        (3, "Sat 02:00-04:00 UTC", "Waiting for `vreplication release m`."),
        (2, "Sat 02:00-04:00 UTC", "Waiting for `vreplication reverse m` or `vreplication complete m`."),
    ],
)
def test_who_may_let_it_switch(number: int, window: str | None, words: str) -> None:
    work: Any = SimpleNamespace(
        driver=SimpleNamespace(workflow="m"), spec=SimpleNamespace(cutover_window=window), number=number
    )
    assert [reason.sentence for reason in steps._not_released(cast(Work, work), lambda: False)] == [words]


@pytest.mark.parametrize(("kept", "words"), [((), "Another client"), (("g",), "The target may compute g otherwise")])
def test_rows_that_differ_may_be_computed_otherwise(kept: tuple[str, ...], words: str) -> None:
    """DECIMAL(20,6) AS (n/3) is 0.333300 on MySQL and 0.333333 on MariaDB; a client that writes was looked for."""
    pairs = tuple(SimpleNamespace(target=SimpleNamespace(name=name)) for name in kept)
    table: Any = SimpleNamespace(mapping=SimpleNamespace(kept=pairs))
    assert steps._cure(cast(Work, SimpleNamespace(number=1)), table, ()).startswith(words)

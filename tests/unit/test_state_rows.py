"""The text of a sidecar statement: it follows from names alone, and each value comes to its own place."""

from __future__ import annotations

from typing import Any

import pytest

from vreplication.state import rows, sidecar


class Told:
    """In the place of a session: keeps what it was told."""

    def __init__(self) -> None:
        self.last: tuple[str, tuple[Any, ...]] = ("", ())

    def execute(self, sql: str, args: tuple[Any, ...]) -> int:
        self.last = (" ".join(sql.split()), args)
        return 1

    def named_rows(self, sql: str, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        self.execute(sql, args)
        return [{"workflow": "w"}, {"workflow": "v"}]


@pytest.fixture
def told() -> Any:
    return Told()


def test_a_row_is_found_by_its_columns(told: Any) -> None:
    assert rows.find(told, sidecar.gate_release, workflow="w") == {"workflow": "w"}
    sql, args = told.last
    assert sql.endswith("FROM _vreplication.gate_release WHERE _vreplication.gate_release.workflow = %s")
    assert args == ("w",)


def test_a_row_is_put(told: Any) -> None:
    rows.put(told, sidecar.marker_applied, {"workflow": "w", "id": "m"}, branches="[]", applied_at=sidecar.now())
    assert told.last == (
        "INSERT INTO _vreplication.marker_applied (workflow, id, branches, applied_at) VALUES (%s, %s, %s, now(%s)) "
        "ON DUPLICATE KEY UPDATE branches = %s, applied_at = now(%s)",
        ("w", "m", "[]", 6, "[]", 6),
    )


def test_the_clock_may_be_in_the_key_part(told: Any) -> None:
    rows.put(told, sidecar.verification, {"workflow": "w", "started_at": sidecar.now()}, verdict="clean")
    assert told.last[1] == ("w", "clean", 6, "clean")


def test_a_column_may_be_asked_for_and_set(told: Any) -> None:
    rows.change(told, sidecar.split, {"workflow": "w", "attempt": 3}, attempt=4)
    sql, args = told.last
    assert sql.startswith("UPDATE _vreplication.split SET attempt=%s WHERE ")
    assert args == (4, "w", 3)


def test_values_never_become_part_of_the_text(told: Any) -> None:
    texts = set()
    for value in (None, 1, "%s'; DROP TABLE x", b"\x00"):
        rows.add(told, sidecar.journal, workflow="w", details=value)
        texts.add(told.last[0])
        assert told.last[1] == ("w", value)
    assert len(texts) == 1


def test_a_text_is_built_once() -> None:
    built = rows._find(sidecar.tuning, ("workflow",))
    assert rows._find(sidecar.tuning, ("workflow",)) is built

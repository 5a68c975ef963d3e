"""A request to move tables: what it may say, and that a plan, the registry and faces have the same stages."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.errors import Refused
from vreplication.schema.written import read_table
from vreplication.workflows.move_tables import run
from vreplication.workflows.move_tables.spec import MoveSpec, make_move_spec
from vreplication.workflows.move_tables.stages import STAGES
from vreplication.workflows.registry import KINDS


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no table is named"),
        ({"tables": ("a",), "all_tables": True}, "choose one"),
        ({"tables": ("a", " ")}, "tables: a name is empty"),
        ({"tables": ("a", "b", "a")}, "a is named twice"),
        ({"tables": ("a",), "exclude": ("b",)}, "exclude goes with all tables only"),
        ({"tables": ("a",), "target_schema": " "}, "target_schema"),
        ({"tables": ("a",), "on_switch": "http://example.org/switch"}, "unencrypted"),
        ({"tables": ("a",), "on_switch": "ftp://example.org/"}, "ftp"),
        ({"tables": ("a",), "on_switch": "https://me:secret@example.org/"}, "user or a password"),
        ({"tables": ("a",), "on_switch": "route 'open"}, "no command line"),
        ({"tables": ("a",), "cutover_window": "noon"}, "no window"),
        ({"tables": ("a",), "apply_parallelism": 0}, "apply_parallelism"),
        ({"tables": ("a",), "alter": "FORCE"}, "alter"),
    ],
)
def test_a_wrong_request_is_one_sentence(given: dict[str, object], said: str) -> None:
    with pytest.raises(Refused) as refused:
        make_move_spec(**given)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "hook", ["route --to new 'a b'", "https://example.org/switch", "http://127.0.0.1:8080/x", None]
)
def test_a_request_is_stored_and_read_back(hook: str | None) -> None:
    spec = make_move_spec(tables=["a", " b "], on_switch=hook, workflow="m-1", reverse=False)
    assert spec.tables == ("a", "b")
    assert MoveSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_all_kinds_are_registered_with_their_own_stages() -> None:
    assert list(KINDS) == ["online_ddl", "move_tables", "changefeed"]
    assert KINDS["move_tables"].stages is STAGES
    assert all(
        kind.help.endswith(".") and list(kind.tasks.stages) == [s.name for s in kind.stages] for kind in KINDS.values()
    )
    for kind in KINDS.values():
        names = [stage.name for stage in kind.stages]
        assert all(set(stage.after) <= set(names[:number]) for number, stage in enumerate(kind.stages))


def test_the_command_and_the_tasks_have_the_stages_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; the plan's own: tests/integration/test_move_plan.py."""
    names, ran = [stage.name for stage in STAGES], list[str]()
    assert list(run.ACTS) == list(KINDS["move_tables"].tasks.stages) == names
    monkeypatch.setattr(run, "ACTS", {name: partial(lambda name, _: ran.append(name), name) for name in names})
    monkeypatch.setattr(run, "begin", lambda _: None)
    monkeypatch.setattr(run.ending, "completed_of", lambda *_: "done")
    work: Any = SimpleNamespace(driver=SimpleNamespace(session=None, workflow="m"))
    assert run.to_the_end(work) == "done"
    assert ran == names[1:]


def test_a_definition_is_read_to_its_last_word() -> None:
    text = read_table(
        "CREATE TABLE `t` (\n"
        "  `a` int NOT NULL DEFAULT ((1 + length(_utf8mb4'),'))) /*!80023 INVISIBLE */ COMMENT 'x)',\n"
        "  `b` int GENERATED ALWAYS AS ((`a` + 1)) STORED NOT NULL,\n  PRIMARY KEY (`a`) COMMENT 'k',\n"
        "  KEY `f` (((`a` + 1))) /*!80000 INVISIBLE */,\n  CONSTRAINT `c` CHECK ((`a` > 1)) /*!80016 NOT ENFORCED */\n"
        ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='a=b)' `ENCRYPTED`='NO'\n"
        "/*!50100 PARTITION BY HASH (`a`)\nPARTITIONS 2 */"
    )
    a, b = text.columns
    assert [clause.kind for clause in a.clauses] == ["type", "null", "default", "invisible", "comment"]
    assert (a.get("default"), a.get("comment")) == ("DEFAULT ((1 + length(_utf8mb4'),')))", "COMMENT 'x)'")
    assert [clause.kind for clause in b.clauses] == ["type", "generated", "kind", "null"]
    assert [(key.kind, key.columns, key.has_expression) for key in text.keys] == [
        ("PRIMARY KEY", ("a",), False),
        ("KEY", (), True),
    ]
    assert [(check.name, check.is_enforced) for check in text.checks] == [("c", False)]
    assert [option.name for option in text.options] == ["ENGINE", "DEFAULT CHARSET", "COLLATE", "COMMENT", "ENCRYPTED"]
    assert text.option("COMMENT") == "'a=b)'"
    assert text.partitions == "PARTITION BY HASH (`a`)\nPARTITIONS 2"

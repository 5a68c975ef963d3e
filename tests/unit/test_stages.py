"""The command, Airflow's tasks and a plan go by one tuple of stages (the plan's lines: test_planning_plan.py)."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.planning.spec import make_spec
from vreplication.planning.stages import STAGES
from vreplication.workflows.online_ddl import in_place, resume, tasks
from vreplication.workflows.online_ddl import run as online_ddl
from vreplication.workflows.online_ddl.run import Work
from vreplication.workflows.registry import for_forms

NAMES = [stage.name for stage in STAGES]


@pytest.mark.parametrize("is_switched", [False, True])
def test_the_command_runs_all_of_them_in_their_order(monkeypatch: pytest.MonkeyPatch, is_switched: bool) -> None:
    ran: list[str] = []
    acts = {name: partial(lambda name, _: ran.append(name), name) for name in NAMES}
    driver: Any = SimpleNamespace(start=lambda: None, note_done=lambda: None, close=lambda: None)
    spark: Any = SimpleNamespace(stop=lambda: None, is_starting=lambda: True)
    monkeypatch.setattr(online_ddl, "ACTS", acts)
    monkeypatch.setattr(online_ddl, "SparkStart", lambda *_, **__: spark)
    monkeypatch.setattr(in_place, "is_in_place", lambda _: False)
    monkeypatch.setattr(online_ddl, "Driver", lambda *_: driver)
    monkeypatch.setattr(online_ddl, "loaded_catch_up", lambda *_: None)
    monkeypatch.setattr(online_ddl, "plan_or_resume", lambda *_, **__: None)
    monkeypatch.setattr(resume, "tell_late", lambda *_: None)
    monkeypatch.setattr(resume, "is_switched", lambda _: is_switched)
    monkeypatch.setattr(online_ddl.ending, "completed", lambda _: "done")
    url: Any = None
    spec = make_spec(table="t", alter="ENGINE=InnoDB")
    assert online_ddl.run(spec, url, stop=threading.Event(), notify=print) == "done"
    assert ran == ([NAMES[0], NAMES[-1]] if is_switched else NAMES)


@pytest.mark.parametrize("name", [stage.name for stage in STAGES if {"copy", "verify", "gate"} & {stage.name}])
def test_a_task_does_what_the_command_does_at_that_stage(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ran: list[Work] = []
    monkeypatch.setattr(tasks, "ACTS", {name: ran.append})
    monkeypatch.setattr(tasks, "SparkStart", lambda *_, **__: SimpleNamespace(is_starting=lambda: True))
    monkeypatch.setattr(in_place, "is_in_place", lambda _: False)
    monkeypatch.setattr(tasks, "drive", lambda stage, child, act, spark: act(stage))
    monkeypatch.setattr(resume, "is_switched", lambda _: False)
    spec = make_spec(table="t", alter="ENGINE=InnoDB", workflow="w")
    stage: Any = SimpleNamespace(spec=spec, url=None, workflow="w")
    tasks.TASKS[name](stage)
    assert [work.is_whole for work in ran] == [False]


def test_each_stage_has_what_it_does_and_comes_behind_what_it_waits_for() -> None:
    assert list(online_ddl.ACTS) == list(tasks.TASKS) == NAMES
    for number, stage in enumerate(STAGES):
        assert set(stage.after) <= set(NAMES[:number])
        assert stage.after or number == 0


def test_options_are_called_as_the_fields_of_forms() -> None:
    words = "--max-lag: no replica is listed. Give --lag-replicas HOST:PORT,… or --xa-wait; see --nosuch-thing."
    assert for_forms(words) == (
        '"Hold back above this lag of replicas (seconds)": no replica is listed. Give "Replicas whose lag counts" '
        'HOST:PORT,… or "Wait for XA branches (seconds)"; see --nosuch-thing.'
    )

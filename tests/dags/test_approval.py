"""The approval apart from Airflow's scheduler: when nobody is asked, what becomes of an answer, what ends a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alone import in_airflow

HEAD = """
from types import SimpleNamespace
from airflow.sdk.execution_time import task_runner
from vreplication.airflow import approval
from vreplication.errors import Refused, Transient

sent, acts, pauses = [], [], []
task_runner.SUPERVISOR_COMMS = SimpleNamespace(send=sent.append)
approval.time = SimpleNamespace(sleep=pauses.append, monotonic=lambda: float(len(pauses)))
approval.source_url = lambda conn_id: f"url of {conn_id}"

def context(cutover="manual", states=()):
    left = list(states)

    def get_task_states(dag_id, task_ids, run_ids):
        state = left.pop(0) if len(left) > 1 else left[0]
        return {} if state == "gone" else {run_ids[0]: {task_ids[0]: state}}

    params = {"source_conn_id": "shop", "table": "t", "alter": "ADD x INT", "cutover": cutover}
    params |= {"cutover_window": "02:00-04:00 UTC"} if cutover == "window" else {}
    ti = SimpleNamespace(get_task_states=get_task_states, id="1")
    dag = SimpleNamespace(dag_id="online_ddl")
    return {"params": params, "run_id": "r1", "dag": dag, "ti": ti, "task_instance": ti}

def outcome(call):
    try:
        return ["ok", call()]
    except Exception as error:
        return [type(error).__name__, str(error)]
"""
ANSWER = """
def act(name, failures):
    def run(url, workflow, by, *source):
        acts.append([name, url, workflow, by])
        if failures:
            raise {"Transient": Transient, "Refused": Refused}[failures.pop(0)]("no")
    return run

def answer(option, failures):
    acts.clear()
    pauses.clear()
    approval.operate.approve, approval.operate.reject = act("release", failures), act("reject", failures)
    event = {
        "chosen_options": [option], "params_input": {}, "responded_by_user": {"id": "7", "name": "ann"},
        "responded_at": SimpleNamespace(isoformat=lambda: "now"), "timedout": False,
    }
    found = outcome(lambda: approval.CutOverApproval(task_id="approve").execute_complete(context(), event))
    return [found, list(acts), len(pauses)]

tell([answer(*words) for words in json.loads(sys.argv[1])])
"""
END = """
for states in json.loads(sys.argv[1]):
    approval.end_approval(context(states=states), "approve")
    acts.append([[message.tasks for message in sent], len(pauses)])
    sent.clear()
    pauses.clear()
tell(acts)
"""


def test_nobody_is_asked_without_need(tmp_path: Path) -> None:
    ask = "approval.CutOverApproval(task_id='a').execute(context(cutover))"
    found = in_airflow(tmp_path, f"{HEAD}tell([outcome(lambda: {ask}) for cutover in ('auto', 'window')])")
    assert found == [["AirflowSkipException", f"No approval is needed: cutover is {c}."] for c in ("auto", "window")]


def test_an_answer_is_carried_out(tmp_path: Path) -> None:
    """A source that is away is tried again, for the person is not asked twice."""
    by = "ann (Airflow)"
    release, reject = ["release", "url of shop", "r1", by], ["reject", "url of shop", "r1", by]
    approved, rejected = ["ok", {"answer": "Approve", "by": by}], ["ok", {"answer": "Reject", "by": by}]
    cases: list[tuple[tuple[str, list[str]], list[Any]]] = [
        (("Approve", []), [approved, [release], 0]),
        (("Approve", ["Transient", "Transient"]), [approved, [release] * 3, 2]),
        (("Reject", []), [rejected, [reject], 0]),
        (("Reject", ["Refused"]), [["AirflowFailException", "refused: no"], [reject], 0]),
    ]
    assert in_airflow(tmp_path, HEAD + ANSWER, json.dumps([words for words, _ in cases])) == [end for _, end in cases]


def test_what_ends_a_request(tmp_path: Path) -> None:
    """One that is open or has not begun; never one that has ended; one that runs is waited for."""
    cases = {
        '["awaiting_input"]': [[["approve"]], 0],
        '["scheduled"]': [[["approve"]], 0],
        '["running", "running", "awaiting_input"]': [[["approve"]], 2],
        '["running", "success"]': [[], 1],
        '["success"]': [[], 0],
        '["skipped"]': [[], 0],
        '["upstream_failed"]': [[], 0],
        "[null]": [[["approve"]], 0],
        '["gone"]': [[], 0],
    }
    found = in_airflow(tmp_path, HEAD + END, f"[{','.join(cases)}]")
    assert dict(zip(cases, found, strict=True)) == cases

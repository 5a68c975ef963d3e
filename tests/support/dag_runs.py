"""Triggering DAG runs by REST and waiting for them, as an operator's script would."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sandbox.deployment import Deployment

PATIENCE_SECONDS = 240.0
_LOOKS = 6
"""So many for one at the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    airflow: Deployment
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def state(self) -> str:
        return str(self._get("")["state"])

    def note(self) -> str | None:
        """What stands beside it in Airflow's lists."""
        found: str | None = self._get("")["note"]
        return found

    def tasks(self) -> dict[str, str | None]:
        """Task id → state."""
        return {t["task_id"]: t["state"] for t in self._get("/taskInstances")["task_instances"]}

    def tries(self, task_id: str) -> int:
        return int(self._get(f"/taskInstances/{task_id}")["try_number"])

    def pid(self, task_id: str) -> int:
        return int(self._get(f"/taskInstances/{task_id}")["pid"])

    def result(self, task_id: str) -> Any:
        return self._get(f"/taskInstances/{task_id}/xcomEntries/return_value")["value"]

    def stored(self, task_id: str, key: str) -> Any:
        """What the task keeps in Airflow's task state store, or None."""
        status, found = self.airflow.call("GET", f"{self.path}/taskInstances/{task_id}/state-store/{key}")
        return found["value"] if status == 200 else None

    def answer(self, task_id: str, option: str, user: str = "admin") -> int:
        """Answer a request to a person; returns the HTTP status."""
        body = {"chosen_options": [option], "params_input": {}}
        path = f"{self.path}/taskInstances/{task_id}/-1/hitlDetails"
        return self.airflow.call("PATCH", path, body, user=user)[0]

    def mark(self, state: str) -> None:
        """As a person does in the UI."""
        status, found = self.airflow.call("PATCH", self.path, {"state": state})
        assert status == 200, found

    def mark_task(self, task_id: str, state: str) -> None:
        """As a person does in the UI; its process is ended."""
        status, found = self.airflow.call("PATCH", f"{self.path}/taskInstances/{task_id}", {"new_state": state})
        assert status == 200, found

    def clear(self, task_id: str) -> None:
        """As a person does in the UI, for this task alone."""
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": [task_id], "only_failed": False}
        status, found = self.airflow.call("POST", f"/api/v2/dags/{self.dag_id}/clearTaskInstances", body)
        assert status == 200, found
        assert [t["task_id"] for t in found["task_instances"]] == [task_id], found

    def stands(self, task_id: str, state: str, *, tries: int) -> bool:
        """Is it in that state, at that try or a later one?"""
        found = self._get(f"/taskInstances/{task_id}")
        return found["state"] == state and int(found["try_number"]) >= tries

    def log(self, task_id: str, number: int = 1) -> str:
        _, found = self.airflow.call("GET", f"{self.path}/taskInstances/{task_id}/logs/{number}?full_content=true")
        return str(found)

    def _get(self, path: str) -> Any:
        status, found = self.airflow.call("GET", self.path + path)
        assert status == 200, (path, status, found)
        return found

    def wait_for(self, what: Callable[[], bool], why: str) -> None:
        """Wait until something holds; a run that failed meanwhile fails the test with its logs."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        looks = 0
        while not what():
            looks += 1
            # A request costs Airflow more CPU than it costs us time.
            assert looks % _LOOKS or self.state() != "failed", self.story()
            assert time.monotonic() < deadline, f"{why}: {self.story()}"
            time.sleep(0.5)

    def wait_for_task(self, task_id: str, *states: str) -> None:
        self.wait_for(lambda: self.tasks().get(task_id) in states, f"{task_id} does not become {states}")

    def wait_for_question(self, task_id: str) -> None:
        """Until an answer cannot be lost any more: Airflow has seen that the process which asks has ended.

        It takes that end for the end of the answer where it sees it later (docs/airflow.md): on a busy machine it may.
        """
        self.wait_for_task(task_id, "awaiting_input")
        words = f"dag_id={self.dag_id}, task_id={task_id}, run_id={self.run_id}"
        ended = re.compile(rf"TaskInstance Finished: {words},.* state=awaiting_input")
        log = self.airflow.log("scheduler")
        self.wait_for(lambda: ended.search(log.read_text()) is not None, "Airflow does not see that it has been asked")

    def end(self) -> str:
        """The state in which it ends."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (state := self.state()) not in ("success", "failed"):
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.5)
        return state

    def story(self) -> str:
        """States and the ends of the logs of what did not go well."""
        tasks = self.tasks()
        bad = [t for t, state in tasks.items() if state in ("failed", "up_for_retry", "running")]
        return f"{tasks}\n" + "\n".join(f"--- {t}\n{self.log(t, max(1, self.tries(t)))[-3000:]}" for t in bad)


def trigger(airflow: Deployment, dag_id: str, run_id: str, conf: dict[str, Any]) -> DagRun:
    body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
    status, found = airflow.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
    assert status == 200, (status, found)
    return DagRun(airflow=airflow, dag_id=dag_id, run_id=run_id)


def unpause(airflow: Deployment, dag_id: str) -> None:
    deadline = time.monotonic() + 90
    while airflow.call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})[0] != 200:
        assert time.monotonic() < deadline, f"{dag_id} was not parsed"
        time.sleep(0.5)


def opens_soon() -> tuple[str, datetime]:
    """A maintenance window that is closed now, and when it opens: in one or two minutes."""
    opening = (datetime.now(UTC) + timedelta(minutes=2)).replace(second=0, microsecond=0)
    return f"{opening:%H:%M}-{opening + timedelta(hours=6):%H:%M} UTC", opening


def now_open() -> str:
    """A maintenance window in whose middle we are."""
    now = datetime.now(UTC)
    return f"{now - timedelta(hours=6):%H:%M}-{now + timedelta(hours=6):%H:%M} UTC"

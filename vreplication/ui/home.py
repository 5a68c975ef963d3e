"""What the page has to be told by whatever it lives in, which is Airflow.

What must stay true: nothing here is Airflow's own, so that a test can be the page's home.
"""

from __future__ import annotations

from typing import Protocol

from vreplication.ui import Run, pulse
from vreplication.ui.asking import Source
from vreplication.ui.lakes import Lake
from vreplication.ui.pending import AskedRun


class Home(Protocol):
    """What the page has to be told: where the sources are, and which workflow a DAG run is about."""

    def sources(self) -> list[Source]:
        """Every connection that is marked as ours."""

    def source(self, conn_id: str) -> Source | None:
        """One connection, marked or not; None when it is none of ours."""

    def workflows_of_run(self, run: Run) -> list[tuple[str, str]] | None:
        """Connection and workflow of each that a run has planned; None when there is no such run, or it has none."""

    def run_of_workflow(self, conn_id: str, workflow: str) -> Run | None:
        """The run that works on it; None when none does."""

    def source_of_run(self, run: Run) -> Source | None:
        """Where the tables of a run come from."""

    def sink_password(self, run: Run) -> str:
        """Of the broker that a run writes into; '' where it has none."""

    def has_failed(self, run: Run) -> bool:
        """True when that run has ended, and not well."""

    def asked_runs(self) -> list[AskedRun]:
        """Runs of our DAGs that have not begun, or run, or were refused lately."""

    def silent(self) -> list[pulse.Silence]:
        """Of Airflow's parts that act on releases, those that have no heartbeat."""

    def lakes(self, run: Run | None = None) -> list[Lake]:
        """What runs that fill lakes have told last, the newest run first; or one of them."""

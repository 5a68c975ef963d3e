"""The page: every migration, move and change feed of every source, in a browser. It reads the sidecar and keeps
nothing of its own.

What must stay true: where sources and logins come from is handed in or asked of Airflow (`access`); no answer holds a
secret (`vreplication/masking.py`); an unreachable source costs its budget and no more (`asking`).
"""

from __future__ import annotations

from typing import NamedTuple

DAG = "online_ddl"
MOVES = "move_tables"
FEEDS = "changefeed"
LAKES = "lake"
"""The DAG that fills a lake: no server has its state, its runs tell it."""
DAGS = (DAG, MOVES, FEEDS)
"""Called as the kinds of workflows, whose rights decide who may look at them and act on them; runs have a page of ours
as tab.
"""


class Run(NamedTuple):
    """Of a DAG. group: of the tasks that are one workflow, in somebody's own DAG."""

    dag_id: str
    run_id: str
    group: str = ""

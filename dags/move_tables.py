"""Move live tables to another server. The same stages as `vreplication move-tables`, each a task that can be cleared.

Behind the switch the task `reverse_stream` keeps both sides level until somebody presses Complete on the page (or calls
`vreplication complete`); Reverse switches back.
"""

from __future__ import annotations

from airflow.sdk import dag

from vreplication.airflow.operators import make_flow
from vreplication.airflow.params import params


@dag(
    dag_id="move_tables",
    schedule=None,
    catchup=False,
    params=params("move_tables"),
    tags=["vreplication"],
    doc_md=__doc__,
)
def move_tables() -> None:
    make_flow("move_tables")


move_tables()

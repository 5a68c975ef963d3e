"""Send changes of live tables into Kafka, until somebody cancels it: on the page, or by `vreplication cancel`.

The same stages as `vreplication changefeed`. Whatever ends a worker, the task `stream` is tried again and goes on where
Kafka says; paused it waits in its place. Cancelled it has succeeded.
"""

from __future__ import annotations

from airflow.sdk import dag

from vreplication.airflow.operators import make_flow
from vreplication.airflow.params import params


@dag(
    dag_id="changefeed",
    schedule=None,
    catchup=False,
    params=params("changefeed"),
    tags=["vreplication"],
    doc_md=__doc__,
)
def changefeed() -> None:
    make_flow("changefeed")


changefeed()

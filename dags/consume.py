"""Apply a topic of a change feed to a database, each change once, until somebody ends the run: mark it as success.

Each consumer is a task of its own, tried again and going on where the target says.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from vreplication.airflow.feeding import ConsumeOperator, PlanConsumersOperator, consume_params
from vreplication.airflow.operators import ENDLESS_RETRIES, FEED_POOL


@dag(
    dag_id="consume",
    schedule=None,
    catchup=False,
    params=consume_params(),
    tags=["vreplication"],
    doc_md=__doc__,
)
def consume() -> None:
    plan = PlanConsumersOperator(task_id="plan", retries=3, retry_delay=timedelta(seconds=5))
    ConsumeOperator.partial(
        task_id="consume",
        # Said here, because what an operator sets for itself does not count for a mapped task.
        pool=FEED_POOL,
        retries=ENDLESS_RETRIES,
        retry_delay=timedelta(seconds=5),
        map_index_template="{{ task.number }}",
    ).expand(number=plan.output)


consume()

"""The stages of a change feed: one tuple that the command runs, Airflow's tasks are made from, and a plan prints.

What must stay true: there is no list of stages beside this one.
"""

from __future__ import annotations

from typing import Any

from vreplication.phases import Phase
from vreplication.planning.stages import Explained, Stage


def _prepare(facts: Any) -> Explained:
    return Explained(sentence="Install our schema on the source, note the feed there.")


def _stream(facts: Any) -> Explained:
    where = {"now": "the end of the binary log", "earliest": "the oldest binary log"}.get(facts.spec.start, "the GTIDs")
    seconds = facts.spec.commit_interval / 1000
    each = ", one for each table" if facts.spec.topic_per_table else ""
    return Explained(
        sentence=f"Make topics that are missing{each}, begin at {where} with Admin(1) in every partition; send rows and"
        f" DDL, dispatched by {facts.spec.dispatch}; once all that is there is sent, and each {seconds:g} s"
        " at the latest, a Kafka transaction with Resolved in every partition and the feed's progress; until `cancel`.",
    )


STAGES: tuple[Stage[Any], ...] = (
    Stage(name="prepare", after=(), phases=(Phase.PREPARING,), explain=_prepare),
    Stage(name="stream", after=("prepare",), phases=(Phase.STREAMING,), explain=_stream),
)

"""What tests of plans share: a table, a plan of a change of it, and what the plan says of one check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from vreplication.mysql.session import Session, connect
from vreplication.planning.facts import Check, Verdict
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import make_spec

SIMPLE = "(id INT PRIMARY KEY, v INT, s VARCHAR(20) COLLATE utf8mb4_bin)"


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        yield opened


def run(database: Database, session: Session, definition: str, alter: str, **options: object) -> Plan:
    database.admin.execute_raw(f"CREATE TABLE t {definition}")
    return make_plan(session, make_spec(table="t", alter=alter, **options))


def refusal(plan: Plan, name: str) -> Check:
    found = [check for check in plan.refusals if check.name == name]
    assert found, f"{name} does not refuse: {[(c.name, c.sentence) for c in plan.refusals]}"
    assert found[0].cure
    return found[0]


def verdict(plan: Plan, name: str) -> Verdict:
    return next(check.verdict for check in plan.checks if check.name == name)

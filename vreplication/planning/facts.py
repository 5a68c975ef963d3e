"""What the checks look at, and what a check says.

What must stay true: a check reads and never writes; one that refuses names the cause and the cure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vreplication.errors import Ambiguous, Refused, VReplicationError
from vreplication.mysql.server import Server
from vreplication.mysql.session import ConnectionLost, Session
from vreplication.planning.request import Request
from vreplication.planning.spec import Spec
from vreplication.schema.alter import AlterClauses
from vreplication.schema.model import Table, TableMapping


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It goes on; the sentence says what to expect."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    sentence: str
    cure: str = ""


def ok(name: str, sentence: str) -> Check:
    return Check(name=name, verdict=Verdict.OK, sentence=sentence)


def warn(name: str, sentence: str, cure: str = "") -> Check:
    return Check(name=name, verdict=Verdict.WARN, sentence=sentence, cure=cure)


def refuse(name: str, sentence: str, cure: str) -> Check:
    return Check(name=name, verdict=Verdict.REFUSE, sentence=sentence, cure=cure)


def looked(name: str, check: Callable[[], Check]) -> Check:
    """What a check says; one that cannot be made refuses. Raises ConnectionLost: that says nothing of the table."""
    try:
        return check()
    except Refused as error:
        return refuse(name, error.message, error.cure)
    # A server that was killed while the plan was made became four refusals and exit 2, where the same command again is
    # all that it takes.
    except (ConnectionLost, Ambiguous):
        raise
    except VReplicationError as error:
        # A refused command shows the sentence alone, without the name of its check.
        why = str(error).rstrip(".")
        return refuse(name, f"What the check of {name} looks at could not be read: {why}.", "Fix this and plan again.")


class OfServer(Protocol):
    """What a check of a server reads."""

    @property
    def session(self) -> Session: ...
    @property
    def server(self) -> Server: ...
    @property
    def spec(self) -> Request: ...


class OfTable(OfServer, Protocol):
    """What a check of a table reads."""

    @property
    def source(self) -> Table: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a check may read. `target` and `mapping` are None where the definition is only known at prepare."""

    session: Session
    server: Server
    spec: Spec
    source: Table
    clauses: AlterClauses
    target: Table | None
    mapping: TableMapping | None
    copy_path: str

    @property
    def name(self) -> str:
        return f"{self.source.schema}.{self.source.name}"

"""On which of the servers that a person names a workflow's state is.

An online DDL's is on the server of its table. That of tables that move is on the server that they move to; on the one
that they leave there are marks, which say that much.

What must stay true: it reads and never writes; where both servers know the id, the target's is meant.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER
from vreplication.state import groups, source_marks, workflows
from vreplication.state.groups import Group
from vreplication.state.workflows import WorkflowRow

MOVE = "move_tables"
"""The kind of workflow that has two servers."""
FEED = "changefeed"
"""The kind that goes on until it is told to end, and writes into Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """As a person has named them: one of them, or both."""

    source: SourceUrl | None = None
    target: SourceUrl | None = None

    @property
    def given(self) -> tuple[SourceUrl, ...]:
        """Where to look, in this order."""
        return tuple(url for url in (self.target, self.source) if url is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """home: where the state is. source: the other server, of tables that move, where it is given. kind '': none."""

    home: SourceUrl
    source: SourceUrl | None = None
    kind: str = ""
    group: Group | None = None

    @property
    def is_move(self) -> bool:
        return self.kind == MOVE

    @property
    def is_feed(self) -> bool:
        return self.kind == FEED


def find(servers: Servers, workflow: str) -> Found:
    """Of an id that nobody knows, the first server is its home: whoever loads it there refuses.

    Raises Refused where the source knows that the state is elsewhere, and nobody has said where.
    """
    for url in servers.given:
        # An id is looked for on the server: a schema of the URL that was dropped stands in the log of a feed.
        with connect(url, use_database=False) as session:
            if found := _find(session, servers, url, workflow):
                return found
            # Where a target is given it has been looked at by now: then the id is known nowhere, and whoever loads it
            # says so.
            if servers.target is None and workflow in leaving(session):
                raise Refused(
                    f"Workflow {workflow} moves tables away from this server; its state is on the one they move to.",
                    cure="Pass --target URL, too, or set VREPLICATION_TARGET.",
                )
    return Found(home=servers.given[0])


def _find(session: Session, servers: Servers, url: SourceUrl, workflow: str) -> Found | None:
    # First: the tables of a group have workflows of their own, and none is called as the group.
    if group := groups.find(session, workflow):
        return Found(home=url, group=group)
    row = workflows.find(session, workflow)
    if row is None:
        return None
    return Found(home=url, source=servers.source if url is servers.target else None, kind=row.kind)


def live(session: Session, workflow: str, act: str) -> WorkflowRow:
    """A workflow that goes on, or may. Raises Refused."""
    row = workflows.load(session, workflow)
    if row.phase in OVER:
        raise Refused(f"Workflow {workflow} has ended ({row.phase}) and cannot be {act}.")
    return row


def leaving(session: Session) -> tuple[str, ...]:
    """Ids of workflows whose tables leave this server, or have left it and may come back, and whose state is elsewhere.

    Later streams of a workflow are called as it is, with `.s2`, `.s3`, … behind; that of a way back is marked at home.
    """
    found = source_marks.streams(session)
    ids = dict.fromkeys((*found, *map(_workflow_of, found)))
    here = set(workflows.existing(session, list(ids)))
    later = {each for each in found if _workflow_of(each) != each and _workflow_of(each) in {*found, *here}}
    return tuple(each for each in found if each not in here | later)


def _workflow_of(stream: str) -> str:
    return names.split_stream(stream)[0]

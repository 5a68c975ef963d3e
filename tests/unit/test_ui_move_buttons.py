"""Which buttons the page of a move has, without a server."""

from __future__ import annotations

import pytest

from tests.support.rows import workflow_row
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress.moved import Moved
from vreplication.progress.snapshot import Snapshot
from vreplication.state.moves import Side
from vreplication.ui import MOVES, Run, detail
from vreplication.ui.asking import Answer, Source
from vreplication.ui.reading import About, Detail, Item

URL = SourceUrl(host="h", port=1, user="u", password="secret-long", database="d")
MOVED = Moved(tables=(), source_at="old", target_at="new", serving=Side.SOURCE, switches=0, asked=None, asked_by=None)
RUN = Run(dag_id=MOVES, run_id="r")


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FAILED])
@pytest.mark.parametrize(
    ("is_driven", "run", "is_there"), [(False, None, False), (True, None, True), (False, RUN, True)]
)
def test_cancel_is_there_where_it_can_be_done(phase: Phase, is_driven: bool, run: Run | None, is_there: bool) -> None:
    """It was refused, for without a process to ask it takes the source, which only a run names."""
    snapshot = Snapshot(workflow="m", phase=phase, source_table="s.t")
    about = About(alter="", cutover="manual", kind=MOVES, moved=MOVED)
    found = Detail(
        item=Item(snapshot=snapshot, about=about),
        row=workflow_row("m", phase=phase),
        journal=[],
        verdict=None,
        effort=None,
        is_driven=is_driven,
    )
    made = detail.detail(Answer(source=Source(conn_id="main", url=URL), value=found), run)["buttons"]
    assert ("cancel" in [each["act"] for each in made]) is is_there

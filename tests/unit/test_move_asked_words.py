"""What the page and the commands say of a way back, or its end, that cannot be asked for now."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vreplication.errors import Refused
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.state import lease, moves, workflows
from vreplication.state.moves import Decision, Side
from vreplication.ui import acts
from vreplication.workflows.lookup import MOVE
from vreplication.workflows.move_tables import ending, operate

URL = SourceUrl(host="h", port=1, user="u", password="", database="s")


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that no process works on; what a test changes of it is found."""
    found = SimpleNamespace(
        row=SimpleNamespace(id="m", kind=MOVE, phase=Phase.SWITCHED, spec={}),
        move=SimpleNamespace(serving=Side.TARGET, decision=Decision.RUNNING, number=2, asked=None, asked_by=None),
    )
    for place, name in ((acts, "quick"), (operate, "connect")):
        monkeypatch.setattr(place, name, lambda url: contextlib.nullcontext(None))
    monkeypatch.setattr(workflows, "load", lambda session, workflow: found.row)
    monkeypatch.setattr(moves, "load", lambda session, workflow: found.move)
    monkeypatch.setattr(lease, "is_alive", lambda *given: False)
    monkeypatch.setattr(operate, "_check_alone", lambda *given: None)
    return found


def refused(what: str) -> str:
    with pytest.raises(Refused) as told:
        acts.ACTS[what](URL, "m", "ann")
    return str(told.value)


@pytest.mark.parametrize("what", ["reverse", "complete"])
def test_the_page_sends_to_a_task_only_where_one_would_do_it(move: Any, what: str) -> None:
    assert "Clear its task reverse_stream" in refused(what)
    move.move.serving, move.move.number = Side.SOURCE, 1
    assert "have not been switched yet" in refused(what)
    move.row.phase = Phase.COMPLETE
    assert "has ended (complete)" in refused(what)


def test_a_switch_whose_process_is_gone_is_resumed(move: Any) -> None:
    move.move.decision = Decision.OPENED
    assert refused("complete").endswith("`vreplication resume m` brings the switch to its end.")


def test_a_command_without_the_source_says_why_it_needs_it(move: Any) -> None:
    """One that Airflow works on asks for it while its task is tried again."""
    operator = operate.Operator(home=URL, source=None, workflow="m", by="ann")
    with pytest.raises(Refused, match=r"No process works on workflow m, .* needs both servers.* reverse_stream"):
        operate.ask(operator, cast(str, moves.REVERSE))


def test_a_switch_that_is_decided_is_not_released(move: Any) -> None:
    """While the hook was called it was said that the cut-over would follow, and the release was forgotten."""
    move.move.serving = Side.SOURCE
    operate.refuse_release(cast(Session, None), "m")
    move.move.decision = Decision.OPENED
    with pytest.raises(Refused, match="being switched"):
        operate.refuse_release(cast(Session, None), "m")


@pytest.mark.parametrize(("side", "end"), [(Side.SOURCE, "cancel"), (Side.TARGET, "complete")])
def test_what_opens_a_side_that_is_denied_is_not_refused(move: Any, side: Side, end: str) -> None:
    move.move.serving, move.move.decision = side, Decision.DENYING
    assert ending.who_serves(move.move, "m").endswith(f"resume or {end} opens it")

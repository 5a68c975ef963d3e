"""Catch-up of several workflows in one process: what ends a workflow, and what only says that it is another's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.engine import following
from vreplication.errors import LeaseHeld, Superseded, Terminal, VReplicationError
from vreplication.phases import Phase
from vreplication.state.lease import Lease

SUPERSEDED = Superseded("Another driver has taken this workflow over; it starts its own catch-up.")
HELD = LeaseHeld("Workflow w is being worked on by other:42 (last sign of life 0.3 s ago).")
BROKEN = Terminal("It broke.")
LONG = 3 * following._TRIES


def driver(token: int) -> Lease:
    return Lease(workflow="w", role="driver", token=token)


@dataclass
class _Sidecar:
    """What it has of the workflow, and what was written to it."""

    token: int = 1
    reasons: list[str] = field(default_factory=list)
    is_cut: bool = False
    phase: Phase = Phase.COPYING

    @property
    def has_ended(self) -> bool:
        return bool(self.reasons)

    def move(self, _: object, workflow: str, phase: Phase, reason: str, *, our_lease: Lease) -> None:
        assert (workflow, phase) == ("w", Phase.FAILED)
        if our_lease.token != self.token:
            raise Superseded("Workflow w has been taken over by another process.")
        self.reasons.append(reason)


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> _Sidecar:
    found = _Sidecar()
    here = SimpleNamespace(find=lambda *_: found, load=lambda *_: found, move=found.move)
    leases = SimpleNamespace(current=lambda *_: driver(found.token), DRIVER="driver", me=lambda: "me")
    monkeypatch.setattr(following, "connect", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(following, "workflows", here)
    monkeypatch.setattr(following, "lease", leases)
    monkeypatch.setattr(following, "journal", SimpleNamespace(write=lambda *_, **__: None))
    monkeypatch.setattr(following, "_AGAIN_SECONDS", 0.0)
    return found


def follow(monkeypatch: pytest.MonkeyPatch, *errors: VReplicationError, on: Callable[[int], None] | None = None) -> int:
    """How often catch-up began; behind the errors it ends as it should. on: is told how many have been before."""
    begun = 0

    def replicate(*_: Any, **__: Any) -> None:
        nonlocal begun
        if on:
            on(begun)
        begun += 1
        if begun <= len(errors):
            raise errors[begun - 1]

    monkeypatch.setattr(following, "replicate", replicate)
    url: Any = None
    followers = following.Followers(url, 2)
    followers.follow("w")
    # A thread of its own, which the log calls by the workflow.
    thread, _ = followers._running["w"]
    thread.join(60)
    assert not thread.is_alive()
    return begun


def test_one_that_another_driver_has_taken_over_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, sidecar: _Sidecar
) -> None:
    """A command that was stopped (Ctrl-Z): its catch-up goes on by itself, and ended what another one drove by then."""

    def take_over(begun: int) -> None:
        sidecar.token = 2

    assert follow(monkeypatch, SUPERSEDED, *[HELD] * LONG, on=take_over) == 1
    assert sidecar.reasons == []


def test_what_breaks_behind_a_takeover_ends_nothing(monkeypatch: pytest.MonkeyPatch, sidecar: _Sidecar) -> None:
    """Also where the takeover comes between the last look and the note."""
    monkeypatch.setattr(following.Followers, "_is_taken_over", lambda *_: False)

    def take_over(begun: int) -> None:
        if begun == following._TRIES:
            sidecar.token = 2

    assert follow(monkeypatch, *[BROKEN] * LONG, on=take_over) == LONG + 1
    assert sidecar.reasons == []


def test_a_lease_that_a_cut_over_has_taken_is_taken_again(monkeypatch: pytest.MonkeyPatch, sidecar: _Sidecar) -> None:
    assert follow(monkeypatch, *[SUPERSEDED] * LONG) == LONG + 1
    assert sidecar.reasons == []


def test_what_breaks_again_and_again_ends_it(monkeypatch: pytest.MonkeyPatch, sidecar: _Sidecar) -> None:
    """However often others have been at work meanwhile."""
    assert follow(monkeypatch, BROKEN, HELD, *[BROKEN] * LONG) == following._TRIES + 2
    assert sidecar.reasons == ["It broke."]

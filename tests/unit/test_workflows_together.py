"""Tables that are switched together: one acts when all are there, each hears what is its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from vreplication.engine.result import Result
from vreplication.errors import Cancelled, Terminal, Transient
from vreplication.workflows.online_ddl.together import Together

TABLES = {"g.1": "orders", "g.2": "items", "g.3": "stock"}


def company() -> Together[str, str]:
    return Together(TABLES, "g")


def always() -> bool:
    return True


def test_the_last_who_comes_acts_for_all_in_the_order_of_the_locks() -> None:
    found, seen = company(), []
    found.lock_first("g.3")

    def act(members: Sequence[str]) -> dict[str, str | Exception]:
        seen.append((list(members), threading.get_ident()))
        return {"g.1": "one", "g.2": Transient("not this one"), "g.3": "three"}

    with ThreadPoolExecutor(3) as pool:
        met = {each: pool.submit(found.meet, each, each.upper(), act, always) for each in TABLES}
        assert (met["g.1"].result(20), met["g.3"].result(20)) == ("one", "three")
        with pytest.raises(Transient, match="not this one"):
            met["g.2"].result(20)
    ((members, _),) = seen
    assert members == ["G.3", "G.1", "G.2"]


def test_who_may_not_stay_goes_without_an_attempt() -> None:
    found = company()
    assert found.meet("g.1", "G.1", lambda _: {}, lambda: False) is None


def test_a_table_alone_is_never_waited_for() -> None:
    alone: Together[str, str] = Together.alone("t")
    assert alone.missing("t") == ()
    assert alone.meet("t", "T", lambda members: {"t": members[0]}, always) == "T"


def test_who_is_not_ready_is_named() -> None:
    found = company()
    found.tell("g.1", is_ready=True)
    found.tell("g.2", is_ready=True)
    found.tell("g.2", is_ready=False)
    assert found.missing("g.1") == ("items", "stock")
    assert found.missing("g.2") == ("stock",)


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        (
            "failed",
            Terminal,
            "The migration of items failed, so none of the tables of workflow g is switched: It broke.",
        ),
        (
            "refused",
            Terminal,
            "The migration of items failed, so none of the tables of workflow g is switched: It broke.",
        ),
        ("cancelled", Cancelled, "items was cancelled, so none of the tables of workflow g is switched."),
    ],
)
def test_one_that_ends_ends_the_others(event: str, kind: type[Terminal], words: str) -> None:
    found = company()
    found.check()
    found.note_end(Result(event=event, workflow="g.2", reason="It broke."))
    found.note_end(Result(event="failed", workflow="g.1", reason="Because of that."))
    with pytest.raises(kind) as raised:
        found.check()
    assert str(raised.value) == words


@pytest.mark.parametrize("event", ["complete", "interrupted"])
def test_one_that_is_done_or_interrupted_ends_nobody(event: str) -> None:
    found = company()
    found.note_end(Result(event=event, workflow="g.2"))
    found.check()


def test_behind_the_switch_one_that_fails_is_its_own_affair() -> None:
    found = company()
    found.note_switched()
    found.note_end(Result(event="failed", workflow="g.2", reason="Cleaning up did not end."))
    found.check()

"""What the page says, without a server: words, steps, buttons, masking."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from vreplication.cutover.blockers import METADATA_LOCK, Blocker
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot
from vreplication.ui import acts, asking, view
from vreplication.ui.asking import Answer, Asker, Source
from vreplication.ui.masking import masked
from vreplication.ui.reading import About, Item

URL = SourceUrl(host="h", port=1, user="u", password="s3cr&t-long", database="d")
ASKED = About(alter="ENGINE=InnoDB", cutover="auto")
MANUAL = About(alter="ENGINE=InnoDB", cutover="manual")


def seen(phase: Phase = Phase.COPYING, **more: Any) -> Snapshot:
    return Snapshot(workflow="w", phase=phase, source_table="s.t", **more)


def item(found: Snapshot, about: About = ASKED) -> dict[str, Any]:
    return view.item(Item(snapshot=found, about=about), "main")


@pytest.mark.parametrize("phase", list(Phase))
def test_an_unknown_figure_says_why_in_every_phase(phase: Phase) -> None:
    found = item(seen(phase))
    for name in ("rows_per_second", "lag_seconds", "backlog", "applied_per_second"):
        assert found[name] is None
        assert found["unknown"][name]
    assert found["words"]["rate"] is None
    assert found["words"]["safety"]
    assert found["words"]["expected"]
    assert found["words"]["throttle"]


def test_hundred_means_done() -> None:
    assert numbers.percent(99.99) == "99.9 %"


@pytest.mark.parametrize(
    ("number", "text"), [(0.4, "0.4"), (310, "310"), (9_999, "9,999"), (48_213, "48.2k"), (29.3e6, "29.3M")]
)
def test_numbers_are_short_and_grouped(number: float, text: str) -> None:
    assert numbers.fine(number) == text


def test_who_waits_for_a_person_is_amber_and_first() -> None:
    waiting, running, done = seen(Phase.WAITING), seen(), seen(Phase.COMPLETE)
    assert item(waiting, MANUAL)["words"]["phase"] == "waiting for you"
    assert item(waiting, MANUAL)["words"]["tone"] == "held"
    assert item(waiting)["state"] == "running"
    pairs = [(done, ASKED), (running, ASKED), (waiting, MANUAL)]
    answer = Answer(source=Source(conn_id="main", url=URL), value=[Item(snapshot=s, about=a) for s, a in pairs])
    listed = view.listing([answer])
    assert [w["state"] for w in listed["workflows"]] == ["waiting", "running", "done"]


@pytest.mark.parametrize(
    ("found", "about", "labels"),
    [
        (seen(), ASKED, ["Pause", "Cancel"]),
        (seen(), MANUAL, ["Pause", "Release", "Cancel"]),
        (seen(is_paused=True), ASKED, ["Resume", "Cancel"]),
        (seen(), About(alter="", cutover="manual", released_by="x"), ["Pause", "Cancel"]),
        (seen(is_cancel_requested=True), ASKED, ["Pause"]),
        (seen(is_cancel_requested=True, updated_seconds_ago=60.0), ASKED, ["Pause", "Cancel"]),
        (seen(Phase.FAILED), MANUAL, ["Cancel"]),
        (seen(Phase.CUTTING_OVER), About(alter="", cutover="auto", is_cut=True), []),
        (seen(Phase.COMPLETE), ASKED, []),
        (seen(Phase.CANCELLED), ASKED, []),
    ],
)
def test_only_buttons_that_make_sense(found: Snapshot, about: About, labels: list[str]) -> None:
    made = acts.buttons(found, about)
    assert [b.label for b in made] == labels
    assert all(b.will.endswith(".") and b.wont.endswith(".") and "s.t" in b.question for b in made)


def test_silence_is_said_and_no_figure_stands_for_it() -> None:
    found = item(seen(updated_seconds_ago=12.0))
    assert found["unknown"]["lag_seconds"] == "no sign of life for 12 s"
    assert found["words"]["expected"].startswith("Clear its task")


def test_a_blocker_without_a_connection_has_no_age() -> None:
    branch = Blocker(
        kind=METADATA_LOCK, connection_id=None, user="", host="", age_seconds=0.0, statement="x", table="t"
    )
    assert view._blocker(branch)["age_seconds"] is None


def test_an_address_is_quoted() -> None:
    assert view.workflow_url("a/b", "c d&e") == "workflows/a%2Fb?conn_id=c%20d%26e"


@pytest.mark.parametrize(
    "text",
    [
        "at mysql://u:s3cr&t-long@h/d",
        "at mysql://other:else@h/d",
        "password s3cr&t-long and s3cr%26t-long",
        "CREATE USER x IDENTIFIED BY 'else'",
        "SET PASSWORD FOR x = PASSWORD('else')",
        "ssl_key_password=else",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    found = masked({"a": [{"b": text}], "n": 1}, (URL,))
    assert "s3cr" not in found["a"][0]["b"]
    assert "else" not in found["a"][0]["b"]
    assert "***" in found["a"][0]["b"]
    assert found["n"] == 1


def test_ordinary_text_is_left_alone() -> None:
    text = "ADD COLUMN password_hash VARCHAR(64), MODIFY email VARCHAR(320) DEFAULT 'x'"
    assert masked(text, (URL,)) == text


def test_one_question_at_a_time_and_the_answer_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, go = [], threading.Event()

    class Closing:
        def __enter__(self) -> None:
            calls.append(1)
            go.wait(10)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(asking, "quick", lambda url: Closing())
    asker, source = Asker(), Source(conn_id="main", url=URL)
    threading.Timer(0.2, go.set).start()
    threads = [threading.Thread(target=asker.ask, args=([source], "list", lambda s: 7)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert asker.ask([source], "list", lambda s: 8)[0].value == 7
    assert len(calls) == 1
    asker.forget()
    assert asker.ask([source], "list", lambda s: 8)[0].value == 8


def test_a_source_that_hangs_costs_the_budget_and_its_neighbour_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    class Hanging:
        def __init__(self, url: SourceUrl) -> None:
            if url.host == "hangs":
                end.wait(30)

        def __enter__(self) -> int:
            return 7

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(asking, "quick", Hanging)
    hangs = SourceUrl(host="hangs", port=1, user="u", password="p", database="d")
    sources = [Source(conn_id=f"h{n}", url=hangs) for n in range(20)] + [Source(conn_id="main", url=URL)]
    started = time.monotonic()
    answers = Asker().ask(sources, "list", lambda session: session)
    end.set()
    assert time.monotonic() - started < 2
    assert answers[-1].value == 7
    assert all(a.problem and "did not answer" in a.problem for a in answers[:-1])

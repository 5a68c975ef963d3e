"""What the page says, without a server: words, steps, buttons, masking."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.support.rows import workflow_row
from vreplication.cutover.blockers import METADATA_LOCK, Blocker
from vreplication.engine.effort import Effort
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.planning.request import HELD_BY
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import Limits, Tuning
from vreplication.state.history import Point
from vreplication.state.workflows import Request
from vreplication.ui import DAGS, Run, asking, detail, reading, view, words
from vreplication.ui.asking import Answer, Asker, Source
from vreplication.ui.buttons import buttons
from vreplication.ui.reading import About, Detail, Item, Overview

URL = SourceUrl(host="h", port=1, user="u", password="s3cr&t-long", database="d")
ASKED = About(alter="ENGINE=InnoDB", cutover="auto")
MANUAL = About(alter="ENGINE=InnoDB", cutover="manual")
FEED = About(alter="", cutover="auto", kind="changefeed", spec={"tables": ["s.t"]})
WINDOWED = About(alter="ENGINE=InnoDB", cutover="manual", window="Sat 02:00-04:00 Europe/Berlin")


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


@pytest.mark.parametrize("phase", list(Phase))
def test_where_no_eta_is_to_be_expected_it_says_what_comes_next(phase: Phase) -> None:
    found = seen(phase)
    assert bool(words.eta_unknown(found, ASKED)) == (not found.has_ended)


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
    items = [Item(snapshot=s, about=a) for s, a in pairs]
    answer = Answer(source=Source(conn_id="main", url=URL), value=Overview(items=items, consumers=[]))
    listed = view.listing([answer], kinds=DAGS)
    assert [w["state"] for w in listed["workflows"]] == ["waiting", "running", "done"]


def test_who_waits_for_a_window_waits_for_nobody() -> None:
    waiting = seen(Phase.WAITING)
    found = item(waiting, WINDOWED)
    assert (found["state"], found["words"]["tone"]) == ("running", "moving")
    assert (found["words"]["phase"], found["cutover"]) == ("waiting for its window", "window")
    assert "switched in the window Sat 02:00-04:00 Europe/Berlin, or when it is released" in found["words"]["notes"]
    assert found["words"]["expected"].startswith("Nothing: it is switched in the window Sat 02:00-04:00")
    assert [b["label"] for b in found["buttons"]] == ["Pause", "Release", "Cancel"]
    paused = item(seen(Phase.WAITING, is_paused=True), WINDOWED)
    assert paused["words"]["phase"] == "waiting at the gate, paused"


def test_when_it_is_switched_is_in_the_plan() -> None:
    def told(about: About) -> str:
        row = workflow_row("w", phase=Phase.WAITING)
        found = Detail(item=Item(snapshot=seen(Phase.WAITING), about=about), row=row, journal=[], verdict=None,
                       effort=None, is_driven=True)  # fmt: skip
        plan = detail.detail(Answer(source=Source(conn_id="main", url=URL), value=found))["plan"]
        return next(str(fact["value"]) for fact in plan if fact["name"] == "Cut-over")

    window = "in the window Sat 02:00-04:00 Europe/Berlin, or when it is released"
    assert [told(about) for about in (ASKED, MANUAL, WINDOWED)] == ["by itself", "when it is released", window]
    assert told(replace(WINDOWED, released_by="ann")) == f"{window}, released by ann"


def test_the_window_comes_from_the_request() -> None:
    spec = {"alter": "x", "cutover": "manual", "cutover_window": "Sat 02:00-04:00 UTC"}
    asked = Request(kind="online_ddl", spec=spec, is_cut=False, released_by=None)
    about = reading._about_of(asked, None)
    assert (about.window, about.is_held, about.needs_release) == ("Sat 02:00-04:00 UTC", True, False)
    older = reading._about_of(replace(asked, spec={"alter": "x", "cutover": "manual"}), None)
    assert (older.window, older.is_held, older.needs_release) == (None, True, True)
    assert not replace(about, released_by="ann").is_held


@pytest.mark.parametrize(
    ("found", "about", "labels"),
    [
        (seen(), ASKED, ["Pause", "Cancel"]),
        (seen(), MANUAL, ["Pause", "Release", "Cancel"]),
        (seen(is_paused=True), ASKED, ["Resume", "Cancel"]),
        (seen(), About(alter="", cutover="manual", released_by="x"), ["Pause", "Cancel"]),
        (seen(is_cancel_requested=True), ASKED, ["Pause"]),
        (seen(Phase.STREAMING, is_cancel_requested=True), FEED, ["Pause", "Cancel without Kafka"]),
        (seen(is_cancel_requested=True, updated_seconds_ago=60.0), ASKED, ["Pause", "Cancel"]),
        (seen(Phase.FAILED), MANUAL, ["Cancel"]),
        (seen(Phase.CUTTING_OVER), About(alter="", cutover="auto", is_cut=True), []),
        (seen(Phase.COMPLETE), ASKED, []),
        (seen(Phase.CANCELLED), ASKED, []),
    ],
)
def test_only_buttons_that_make_sense(found: Snapshot, about: About, labels: list[str]) -> None:
    made = buttons(found, about)
    assert [b.label for b in made] == labels
    assert all(b.will.endswith(".") and b.wont.endswith(".") and about.title(found) in b.question for b in made)


@pytest.mark.parametrize(
    ("found", "about", "expected"),
    [
        (seen(), MANUAL, []),
        (seen(Phase.WAITING), MANUAL, ["release"]),
        (seen(Phase.WAITING), WINDOWED, []),
        (seen(Phase.WAITING), replace(MANUAL, released_by="x"), []),
        (seen(Phase.WAITING), replace(MANUAL, reverts="w"), []),
        (seen(Phase.WAITING, updated_seconds_ago=60.0), MANUAL, []),
        (seen(Phase.WAITING, is_cancel_requested=True), MANUAL, []),
        (seen(Phase.WAITING, is_paused=True), MANUAL, ["resume"]),
        (seen(is_paused=True), ASKED, ["resume"]),
        (seen(Phase.FAILED), MANUAL, []),
    ],
)
def test_a_button_stands_out_exactly_where_it_is_asked_for(found: Snapshot, about: About, expected: list[str]) -> None:
    assert [b.act for b in buttons(found, about) if b.is_expected] == expected
    assert words.expected(found, about).startswith(("Release the", "Resume it")) == bool(expected)


EFFORT = Effort(limits=Limits(), asked=Tuning())


def test_what_can_be_tuned_is_asked_for_with_its_value() -> None:
    made = next(b for b in buttons(seen(), ASKED, EFFORT) if b.act == "tune")
    assert [(f.name, f.value, f.least, f.most) for f in made.fields if not f.shape] == [
        ("copy_parallelism", 2, 1, 64),
        ("chunk_millis", 500, 10, 60_000),
    ]
    # Every limit that `tune` takes, empty where nothing is asked for.
    assert {f.name: f.value for f in made.fields if f.shape} == dict.fromkeys(HELD_BY, "")
    now = {"max_load": "Threads_running=25", "max_lag": 2.5, "nice_ratio": 0.0, "latency_factor": 0.0}
    held = next(b for b in buttons(seen(Phase.VERIFYING), ASKED, EFFORT, now) if b.act == "tune")
    assert {f.name: f.value for f in held.fields if f.shape and f.value} == {
        "max_load": "Threads_running=25", "max_lag": "2.5",
    }  # fmt: skip
    fixed = Effort(limits=Limits(chunk_rows=700), asked=Tuning())
    made = next(b for b in buttons(seen(), ASKED, fixed) if b.act == "tune")
    assert [f.name for f in made.fields if not f.shape] == ["copy_parallelism"]
    for phase in (Phase.WAITING, Phase.FAILED, Phase.COMPLETE):
        assert "tune" not in [b.act for b in buttons(seen(phase), ASKED, EFFORT)]


@pytest.mark.parametrize(
    ("effort", "tasks", "text"),
    [
        (EFFORT, 2, ""),
        (
            Effort(limits=Limits(copy_parallelism=8), asked=Tuning(copy_parallelism=8), slots=4),
            4,
            "Spark has slots for 4",
        ),
        (Effort(limits=Limits(copy_parallelism=3), asked=Tuning(copy_parallelism=3), slots=4), 3, ""),
        (
            Effort(
                limits=Limits(most_chunk_millis=100).tuned(Tuning(chunk_millis=200)),
                asked=Tuning(chunk_millis=200),
            ),
            2,
            "locks the counter",
        ),
    ],
)
def test_what_cannot_be_had_is_said(effort: Effort, tasks: int, text: str) -> None:
    assert effort.tasks == tasks
    assert text in effort.shortfall
    assert bool(text) == bool(effort.shortfall)
    assert effort.shortfall in words.effort(seen(), effort)


def test_an_eta_has_its_range_and_what_was_said_before() -> None:
    points = tuple(
        Point(slot=n, phase="copying", rows_copied=n, eta_at=datetime(2026, 1, 1, 12, n // 12)) for n in range(145)
    )
    now = seen(foretold_seconds=400.0, eta_low_seconds=300.0, eta_high_seconds=600.0, eta_of=Phase.WAITING)
    eta = view.item(Item(snapshot=now, about=ASKED, points=points), "main")["words"]["eta"]
    assert eta["low_at"] < eta["at"] < eta["high_at"]
    assert (eta["in"], eta["of"]) == ("5–10 min", "to the gate")
    assert (eta["said_at"], eta["said_ago"]) == ("2026-01-01T12:02:00Z", "10 min")
    alone = view.item(Item(snapshot=seen(foretold_seconds=400.0), about=ASKED), "main")["words"]["eta"]
    assert (alone["low_at"], alone["said_at"], alone["in"], alone["of"]) == (None, None, "7 min", "")


def test_at_the_gate_there_is_nothing_to_foretell() -> None:
    waiting = seen(phase=Phase.WAITING, eta_of=Phase.WAITING)
    eta = view.item(Item(snapshot=waiting, about=ASKED), "main")["words"]["eta"]
    assert (eta["at"], eta["why"]) == (None, "verified; switched when the gate opens")
    losing = "writes come faster than they are applied"
    assert words.eta_unknown(seen(eta_reason=losing), ASKED) == f"no ETA: {losing}"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(720, 900, "12–15 min"), (720, 725, "12 min"), (30, 45, "30–45 s"), (100, 600, "100 s to 10 min"),
     (0.2, 64, "up to 64 s"), (7_200, 9_000, "2 h 00 min to 2 h 30 min")],
)  # fmt: skip
def test_ranges(low: float, high: float, text: str) -> None:
    assert numbers.between(low, high) == text


def test_one_at_the_gate_says_what_is_proven() -> None:
    found = item(seen(Phase.WAITING, verdict="clean", lag_seconds=0.1, backlog=3), MANUAL)
    assert found["checks"] == [{"name": "verified", "is_so": True}, {"name": "caught up", "is_so": True}]
    assert [c["is_so"] for c in item(seen(Phase.WAITING), MANUAL)["checks"]] == [False, False]
    assert item(seen())["checks"] == []


def test_the_run_and_the_log_of_the_task_at_work() -> None:
    assert detail._run(Run("online_ddl", "manual__1/x+y"), Phase.VERIFYING, ASKED) == {
        "run_id": "manual__1/x+y",
        "url": "dags/online_ddl/runs/manual__1%2Fx%2By",
        "log_url": "dags/online_ddl/runs/manual__1%2Fx%2By/tasks/verify",
    }
    assert detail._run(Run("online_ddl", "r"), Phase.FAILED, ASKED) == {
        "run_id": "r",
        "url": "dags/online_ddl/runs/r",
        "log_url": None,
    }
    assert detail._run(None, Phase.COPYING, ASKED) is None


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


def test_a_question_that_is_under_way_is_asked_once_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that comes is told soon that the answer is late; the next look gets it."""
    go, calls = threading.Event(), []

    class Late:
        def __init__(self, url: SourceUrl) -> None:
            calls.append(url)
            go.wait(10)

        def __enter__(self) -> int:
            return 7

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(asking, "quick", Late)
    asker, sources = Asker(), [Source(conn_id="main", url=URL)]
    late = asker.ask(sources, "list", lambda session: [], seconds=0.05)
    assert late[0].is_late
    listed = view.listing(late, kinds=DAGS, is_final=False)
    assert (listed["asking"], listed["sources"]) == (["main"], [])
    assert view.listing(late, kinds=DAGS)["sources"][0]["problem"]
    go.set()
    assert asker.ask(sources, "list", lambda session: [])[0].value == []
    assert len(calls) == 1


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
    assert time.monotonic() - started < 10 * asking.BUDGET_SECONDS, "one after another"
    assert asking.BUDGET_SECONDS < 2, "what the page promises"
    assert answers[-1].value == 7
    assert all(a.problem and "did not answer" in a.problem for a in answers[:-1])

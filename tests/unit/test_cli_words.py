"""Numbers, secrets, lines and bars: what a person reads."""

from __future__ import annotations

import io
import itertools
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vreplication import masking
from vreplication.cli import bars, figures, logs, outcome, say, show, status
from vreplication.engine.result import Leftover, Result
from vreplication.errors import Transient
from vreplication.mysql.url import parse
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.moved import Moved, MovedTable
from vreplication.progress.snapshot import Snapshot
from vreplication.state.moves import Side

SECRET = "s3cret-pa/ss"


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    masking.forget()


def snapshot(phase: Phase = Phase.COPYING, **fields: Any) -> Snapshot:
    return Snapshot(workflow="orders-1", phase=phase, **({"source_table": "shop.orders"} | fields))


COPYING = snapshot(
    percent=61.03,
    rows_copied=29_300_000,
    rows_total=48_100_000,
    rows_per_second=48_213.0,
    copy_eta_seconds=90.0,
    lag_seconds=0.4,
    backlog=310,
    applied_per_second=1204.0,
    apply_eta_seconds=0.0,
    converging=True,
    foretold_seconds=90.0,
    eta_low_seconds=81.2,
    eta_high_seconds=104.9,
    eta_of=Phase.COMPLETE,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (119.9, "120 s"),
        (120, "2 min"),
        (7170, "2 h 00 min"),
        (9000, "2 h 30 min"),
        (180_000, "2 days 2 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (9999, "9,999"), (48_213, "48.2k"), (29_300_000, "29.3M"), (5e9, "5.0G")]
)
def test_short_numbers(number: float, text: str) -> None:
    assert numbers.short(number) == text


@given(st.floats(0, 99.99999))
def test_percent_is_never_rounded_up_to_100(value: float) -> None:
    assert not figures.percent(value).startswith("100")


def test_eta_is_a_time_or_a_reason() -> None:
    assert figures.eta(COPYING) == "ETA 90 s (81–105 s)"
    assert figures.eta(snapshot(foretold_seconds=9.0, eta_of=Phase.WAITING)) == "ETA 9 s to the gate"
    assert figures.eta(snapshot(Phase.VERIFYING, foretold_seconds=9.0, eta_of=Phase.COMPLETE)) == "ETA 9 s"
    assert figures.eta(snapshot(copy_eta_seconds=9.0)) == "ETA not known yet"
    assert figures.eta(snapshot(is_paused=True, foretold_seconds=9.0)) == "ETA when it is resumed"
    losing = "writes come faster than they are applied"
    assert figures.eta(snapshot(eta_reason=losing)) == f"ETA none: {losing}"
    assert figures.eta(snapshot(eta_reason="waiting: a lock", waiting_for="a lock")) == "ETA none"
    assert figures.eta(snapshot(Phase.WAITING, eta_of=Phase.WAITING)) == ""
    far = snapshot(foretold_seconds=600.0, eta_low_seconds=540.0, eta_high_seconds=720.0, eta_of=Phase.WAITING)
    assert figures.eta(far, now=0).endswith("(in 9–12 min) to the gate")


def test_a_line_holds_the_figures() -> None:
    assert show.line(COPYING) == (
        "copying · 61.0 % · 29.3M of ~48.1M rows · 48.2k rows/s · 1,204 changes/s · lag 0.4 s · backlog 310 · "
        "ETA 90 s (81–105 s)"
    )
    assert show.line(snapshot(Phase.PLANNING)) == "planning"


def test_a_line_says_what_holds_it_up() -> None:
    held = snapshot(throttled="apply lag 9.0 s", waiting_for="connection 8", updated_seconds_ago=60.0)
    line = show.line(held)
    assert "no sign of life for 60 s" in line
    assert "throttled: apply lag 9.0 s" in line
    assert "waiting for: connection 8" in line


def _drawn(thing: Any, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(thing)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def _view(found: Snapshot, **more: Any) -> bars.View:
    view = bars.View()
    view.update(found, **more)
    return view


@pytest.mark.parametrize("width", [80, 120])
def test_bars_fit_the_terminal_with_every_figure(width: int) -> None:
    lines = _drawn(_view(COPYING), width)
    assert all(len(line) <= width for line in lines)
    assert "◉ copy" in lines[1]
    assert "61.0 % 29.3M of ~48.1M rows · 48.2k rows/s" in lines[2]
    assert "level 1,204 changes/s · lag 0.4 s · backlog 310" in lines[3]


@pytest.mark.parametrize("width", [40, 60])
def test_where_a_terminal_is_narrow_only_figures_are_cut(width: int) -> None:
    lines = _drawn(_view(COPYING), width)
    assert all(len(line) <= width for line in lines)
    copy, catch_up, verify = (line for line in lines if line.startswith(("Copy ", "Catch-up ", "Verify ")))
    assert "  61.0 % 29.3M" in copy
    assert "level 1,204" in catch_up
    assert verify.rstrip().endswith("–")


def test_catch_up_bar_begins_at_the_greatest_lag() -> None:
    view = _view(snapshot(lag_seconds=100.0, backlog=5000))
    view.update(snapshot(lag_seconds=25.0, backlog=5000, converging=True))
    assert view._catch_up(view.snapshot)[1:3] == (0.75, "gaining")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (snapshot(is_paused=True), "paused"),
        (snapshot(Phase.FAILED, reason="the value 'x' is too long"), "the value 'x' is too long"),
        (snapshot(lag_seconds=9.0, backlog=1, converging=False), "losing"),
        (snapshot(Phase.WAITING, verdict="clean", verify_rows=10), "clean 10 rows compared"),
        (snapshot(Phase.COMPLETE, events_applied=77), "77 changes applied"),
        (snapshot(Phase.VERIFYING, verify_rows=10, verify_total=40), "25.0 % 10 of ~40 rows"),
    ],
)
def test_bars_say_in_words_what_colors_say(found: Snapshot, words: str) -> None:
    assert any(words in line for line in _drawn(_view(found), 80))


def test_stopping_is_said_at_once() -> None:
    assert any(line.startswith("stopping") for line in _drawn(_view(COPYING, is_stopping=True), 80))


def test_status_table_fits_80_columns() -> None:
    found = [COPYING, snapshot(Phase.FAILED, reason="duplicate values under the new unique key email\nmore")]
    lines = _drawn(status.table(found), 80)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "duplicate values" in text
    assert "more" not in text


class _Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_json_lines_come_at_least_every_second(capsys: pytest.CaptureFixture[str]) -> None:
    time, stamps = _Time(), []
    display = show.JsonLines(monotonic=time)
    for _ in range(41):
        display.tick(COPYING, is_stopping=False)
        stamps += [time.now] * len(capsys.readouterr().out.splitlines())
        time.now += 0.25
    assert len(stamps) > 9
    assert max(b - a for a, b in itertools.pairwise(stamps)) <= 1.0


def test_lines_come_every_few_seconds_and_when_the_phase_changes(capsys: pytest.CaptureFixture[str]) -> None:
    time = _Time()
    display = show.Lines(monotonic=time)
    for _ in range(40):
        display.tick(COPYING, is_stopping=False)
        time.now += 0.25
    assert len(capsys.readouterr().out.splitlines()) == 4
    display.tick(snapshot(Phase.VERIFYING), is_stopping=False)
    assert "verifying" in capsys.readouterr().out


def test_notes_do_not_get_into_json(capsys: pytest.CaptureFixture[str]) -> None:
    show.JsonLines().note("waiting for connection 8")
    assert capsys.readouterr().out == ""


def test_secrets_are_masked_wherever_they_get(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    masking.remember(*parse(f"mysql://u:{quote(SECRET, safe='')}@h/db?ssl_key_password=tls-passphrase").secrets)
    words = f"login with {SECRET} or {quote(SECRET, safe='')} or tls-passphrase failed"
    say.say(words)
    say.warn(words)
    say.error(words)
    say.json_line({"reason": words, "more": [{"what": words}]})
    path = logs.start("t-1")
    try:
        raise ValueError(words)
    except ValueError:
        logging.getLogger("vreplication.x").exception("it went wrong: %s", words)
    logs.stop()
    assert path is not None
    captured = capsys.readouterr()
    everything = captured.out + captured.err + path.read_text()
    assert everything.count("login with *** or *** or *** failed") >= 6
    assert SECRET not in everything


def test_the_same_command_again_without_its_password() -> None:
    args = ["online-ddl", "--source", "mysql://joe:p/w@h/db", "--table", "t", "--alter", "ADD x INT", "--yes"]
    again = outcome.same_command(args, "t-1")
    assert again == (
        "vreplication online-ddl --source mysql://joe@h/db --table t --alter 'ADD x INT' --yes --workflow t-1"
    )
    assert outcome.same_command([*args, "--workflow", "w"], "w").count("--workflow") == 1
    glued = outcome.same_command(["online-ddl", "--source=mysql://joe:pw@h/db?ssl_key_password=x&ssl_ca=y"], "w")
    assert glued == "vreplication online-ddl '--source=mysql://joe@h/db?ssl_ca=y' --workflow w"


_RESULTS = {
    "complete": Result(
        event="complete", workflow="t-1", retired_table="t__vr_old_abcdef", rows_copied=1000, events_applied=2000,
        cutover_millis=500.0, write_stall_millis=300.0,
    ),
    "failed": Result(
        event="failed", workflow="t-1", reason="Data too long.", resume_command="vreplication resume t-1", exit_code=1,
        leftovers=(Leftover(what="shadow table shop.t__vr_new", command="vreplication cancel t-1"),),
    ),
    "refused": Result(event="refused", workflow="t-1", reason="The table has triggers.", exit_code=2),
    "cancelled": Result(event="cancelled", workflow="t-1", reason="Cancelled by the operator.", exit_code=3),
    "interrupted": Result(event="interrupted", workflow="t-1", resume_command="x", exit_code=130),
}  # fmt: skip
_KEYS = [
    "event", "workflow", "reason", "shadow_table", "retired_table", "side_table", "side_rows", "rows_copied",
    "events_applied", "cutover_millis", "write_stall_millis", "strategy", "strategy_reason", "resume_command",
    "leftovers",
]  # fmt: skip


@pytest.mark.parametrize("event", _RESULTS)
def test_the_last_json_line(event: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = _RESULTS[event]
    assert outcome.finish(result, is_json=True, again="the same") == result.exit_code
    line = json.loads(capsys.readouterr().out)
    assert list(line) == _KEYS
    assert line["event"] == event
    assert line["resume_command"] == ("the same" if result.resume_command else None)


def test_the_last_words_to_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    for result in _RESULTS.values():
        assert outcome.finish(result, is_json=False, again="the same command") == result.exit_code
    captured = capsys.readouterr()
    assert "1,000 rows copied, 2,000 changes applied" in captured.out
    assert "Writers waited at most 300 ms" in captured.out
    assert "vreplication cleanup t-1" in captured.out
    assert "vreplication: failed: Data too long.\nThe source table is untouched.\nLeft behind:\n" in captured.err
    assert "  shadow table shop.t__vr_new; remove it with: vreplication cancel t-1" in captured.err
    assert "vreplication: refused: The table has triggers.\n" in captured.err
    assert "vreplication: Cancelled by the operator.\nThe source table is untouched." in captured.err
    assert "vreplication: interrupted\nResume with: the same command" in captured.err


def test_an_error_before_a_result_has_the_same_keys() -> None:
    fields = outcome.error_fields(ValueError("x"), "x")
    assert list(fields) == _KEYS
    assert (fields["event"], fields["reason"]) == ("failed", "x")


def test_bars_are_drawn_in_place_with_notes_above() -> None:
    screen = io.StringIO()
    with show.Bars(Console(file=screen, width=80, force_terminal=True, color_system=None)) as display:
        display.tick(snapshot(Phase.PREPARING), is_stopping=False)
        display.note("waiting for connection 8 [bold]")
        display.tick(COPYING, is_stopping=True)
    text = screen.getvalue()
    assert "waiting for connection 8 [bold]\n" in text
    assert text.index("◉ prepare") < text.index("◉ copy") < text.index("stopping")
    assert "\x1b[1A" in text
    assert text.endswith("\x1b[?25h")


MOVED = Moved(
    tables=(
        MovedTable(source="shop.orders", target="store.orders", rows_copied=12_345, rows_total=12_000, is_copied=True),
        MovedTable(source="shop.items", target="store.items", rows_copied=10, rows_total=400, is_copied=False),
    ),
    source_at="old:3306",
    target_at="new:3306",
    serving=Side.TARGET,
    switches=1,
    asked="reverse",
    asked_by="eve@h",
)


def test_status_of_tables_that_have_moved_says_who_serves_and_what_comes_next() -> None:
    seen = status.Seen(snapshot=snapshot(Phase.SWITCHED, lag_seconds=0.1, backlog=1), moved=MOVED)
    lines = _drawn(status._page(status.Overview(each=(seen,)), bars.View(), is_one=True), 100)
    text = "\n".join(lines)
    assert all(len(line) <= 100 for line in lines)
    assert "◉ way back" in lines[1]
    assert "shop.orders → store.orders: 12.3k rows copied" in text
    assert "shop.items → store.items: 10 of about 400 rows" in text
    assert "the target, new:3306" in text
    assert "reverse, by eve@h" in text
    assert "vreplication reverse orders-1 goes back, vreplication complete orders-1 ends the way back" in text
    assert figures.eta(seen.snapshot) == ""


def test_what_is_watched_grows_old_while_its_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, in whatever steps: an ETA that came to 0 would else be said until the server is back."""
    clock, shown = itertools.count(step=2), list[status.Overview]()
    answers = iter([status.Overview(each=(status.Seen(snapshot=replace(COPYING, updated_seconds_ago=0.2)),))])

    def look() -> status.Overview:
        if len(shown) == 5:
            raise KeyboardInterrupt
        for answer in answers:
            return answer
        raise Transient("It is away.")

    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    with pytest.raises(KeyboardInterrupt):
        status._repeat(look, shown.append, status._Until(is_watched=True, is_named=True))
    seen = [each.snapshot for (each,) in (found.each for found in shown)]
    assert [each.eta_seconds for each in seen] == [90.0, 88.0, 86.0, None, None]
    assert [each.lag_seconds for each in seen] == [0.4, 0.4, 0.4, None, None]
    assert figures.notes(seen[-1]) == ["no sign of life for 8.2 s"]


def test_what_is_watched_shows_the_newest_of_its_journal() -> None:
    told = [{"at": datetime(2026, 1, 1), "event": f"event {n}", "details": "", "actor": "ann"} for n in range(30)]
    found = status.Overview(each=(status.Seen(snapshot=COPYING, journal=told),))
    console = Console(width=80, height=20, file=io.StringIO())
    page = status._fitted(console, status._page(found, _view(COPYING), is_one=True), found)
    lines = ["".join(part.text for part in line) for line in console.render_lines(page)]
    assert len(lines) == 20
    assert lines[0].startswith("shop.orders")
    assert "Journal" in "".join(lines)
    assert "event 29" in lines[-1]


def test_an_online_ddl_has_no_way_back() -> None:
    assert all("way back" not in line for line in _drawn(_view(COPYING), 80))


def test_the_source_says_where_the_state_of_tables_that_leave_it_is() -> None:
    found = status.Overview(each=(), leaving=("shop-1",))
    assert "vreplication status shop-1 --target URL" in _drawn(status._page(found, bars.View(), is_one=False), 120)[0]


@pytest.mark.parametrize(
    ("resume_command", "words"),
    [
        (None, "Its process goes on, and keeps the target level."),
        ("vreplication resume w", "The target is not kept level now; resume with: vreplication resume w"),
    ],
)
def test_the_end_of_a_reverse_says_who_goes_on(
    capsys: pytest.CaptureFixture[str], resume_command: str | None, words: str
) -> None:
    result = Result(event="reversed", workflow="w", write_stall_millis=250, resume_command=resume_command)
    assert outcome.finish(result, is_json=False, is_move=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Switched back: the source serves the tables of workflow w."
    assert words in lines


def test_a_failed_move_does_not_say_that_the_source_is_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    """After a switch that would be a lie, and where the target cannot be asked nobody knows."""
    result = Result(event="failed", workflow="w", reason="The server is away.", exit_code=1)
    outcome.finish(result, is_json=False, is_move=True)
    assert "untouched" not in capsys.readouterr().err

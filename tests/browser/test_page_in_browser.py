"""The page in a browser, over rows that nobody works on: its states, sizes and colors, the keyboard, and what it names.

What must stay true: each test begins with an empty sidecar on a server of its own, whose connection is called archive.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from airflow_ui import complaints, open_migrations
from page_rows import (
    GONE,
    LIST,
    ONE,
    REASONS,
    SCRIPT,
    alive,
    figures,
    make,
    make_all,
    make_queue,
    make_shop,
    make_stream,
)
from playwright.sync_api import Frame, Page, expect
from tabs import OpenTab, tab_to

from sandbox.databases import Database
from sandbox.deployment import Deployment
from tests.support.flow import wait_until
from tests.support.rows import make_move
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import (
    gate,
    history,
    journal,
    lease,
    moves,
    progress,
    queue,
    throttling,
    tuning,
    workflows,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]
ASKED = {
    "done": "Clean up",
    "open": "Revert",
    "open.revert": "End the way back",
    "copies": "Cancel",
    "moved": "Reverse",
}
"""A button whose dialog is looked at, by the workflow whose page has it."""
WIDTHS = (360, 1_000)
# What is said just before another page comes is not there any more when that one has come.
REMEMBER = """state => new MutationObserver(() => state.hidden || sessionStorage.setItem('said', state.textContent))
    .observe(state, {attributes: true, childList: true})"""
DRAWN = """const draw = CanvasRenderingContext2D.prototype.fillText, drawn = window.drawn = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, ...more) {
        if (x > 0 && x < this.canvas.width) drawn.push(text);
        return draw.call(this, text, x, ...more);
    };"""
TIMES_DRAWN = "drawn.filter(text => /\\d\\d:\\d\\d/.test(text)).length"


# -- the list


def test_the_list_shows_first_what_waits_and_finds_the_rest(session: Session, open_tab: OpenTab) -> None:
    make_shop(session)
    tab = open_tab(LIST)
    rows = tab.page.get_by_role("list", name="Migrations").get_by_role("listitem")
    expect(rows.get_by_role("link")).to_have_text(["shop.users", "shop.orders", "shop.coupons", "shop.items"])
    expect(tab.page.get_by_role("group", name="Show only").get_by_role("button")).to_have_text(
        ["running 1", "waiting for you 1", "failed 1", "done 1"]
    )
    expect(tab.page.locator(".strong:visible")).to_have_text(["Release"])
    tab.page.get_by_role("button", name="failed 1").click()
    expect(rows.get_by_role("link")).to_have_text(["shop.coupons"])
    expect(rows).to_contain_text(REASONS[Phase.FAILED])
    tab.page.get_by_role("button", name="failed 1").click()
    tab.page.get_by_role("searchbox").fill("email")
    expect(rows.get_by_role("link")).to_have_text(["shop.users"])
    tab.page.get_by_role("searchbox").fill("nothing like it")
    expect(tab.page.get_by_text("No migration matches the filter.")).to_be_visible()
    tab.page.get_by_role("button", name="failed 1").click()
    tab.page.get_by_role("searchbox").focus()
    # What comes above it with the next version takes away neither the words nor the keyboard, nor does its end.
    for version in (MORE_ABOVE, "look()"):
        tab.page.evaluate(version)
        expect(tab.page.get_by_role("searchbox")).to_have_value("nothing like it")
        expect(tab.page.get_by_role("searchbox")).to_be_focused()
        expect(tab.page.get_by_role("button", name="failed 1")).to_have_attribute("aria-pressed", "true")
    expect(open_migrations(tab.page).get_by_role("link", name="shop.users")).to_be_visible()
    tab.picture("migrations", 480)


MORE_ABOVE = """async () => {
    const html = await (await fetch(location.href, { headers: { Accept: "text/html" } })).text();
    take(200, html.replace('<header class="top"', '<p>A word.</p><header class="top"'));
}"""


def test_the_queue_is_moved_and_changed_with_the_keyboard(session: Session, open_tab: OpenTab) -> None:
    """Who has moved one moves it on with the same key; what cannot be taken back is asked about.

    Of a button that is gone the place is the row, of a row the next one; a choice whose last one is gone is none.
    """
    make_queue(session)
    page = open_tab(LIST).page
    rows = page.get_by_role("list", name="Migrations").get_by_role("listitem")
    expect(rows.locator("strong")).to_have_text(["shop.t_1", "shop.t_2", f"shop.{SCRIPT}", "shop.t_4"])
    earlier = rows.filter(has_text="q-3").get_by_role("button", name="Earlier")
    earlier.focus()
    page.keyboard.press("Enter")
    expect(rows.locator("strong")).to_have_text(["shop.t_1", f"shop.{SCRIPT}", "shop.t_2", "shop.t_4"])
    expect(earlier).to_be_focused()
    page.keyboard.press("Enter")
    expect(rows.locator("strong")).to_have_text([f"shop.{SCRIPT}", "shop.t_1", "shop.t_2", "shop.t_4"])
    expect(rows.filter(has_text="q-3")).to_be_focused()
    for _ in range(2):
        tab_to(page, "Remove")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Take shop.t_1 out of the queue?")
    tab_to(page, "Remove it")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Removed from the queue.")).to_be_visible()
    expect(rows.locator("strong")).to_have_text([f"shop.{SCRIPT}", "shop.t_2", "shop.t_4"])
    expect(rows.filter(has_text="q-2")).to_be_focused()
    page.reload()
    tab_to(page, "refused 1")
    page.keyboard.press("Space")
    expect(rows.locator("strong")).to_have_text(["shop.t_4"])
    expect(rows).to_contain_text("the table has no primary key")
    queue.put_back(session, "q-4")
    expect(rows.locator("strong")).to_have_text([f"shop.{SCRIPT}", "shop.t_2", "shop.t_4"])
    entry = queue.find(session, "q-1")
    assert entry is not None
    assert (entry.state, entry.reason) == (queue.REMOVED, "removed by admin (Airflow)")


# -- states


def test_nothing_yet_says_how_to_begin(session: Session, open_tab: OpenTab) -> None:
    page = open_tab(LIST).page
    expect(page.get_by_role("heading", name="No migration yet")).to_be_visible()
    expect(page.get_by_text("vreplication online-ddl --table")).to_be_visible()
    expect(page.locator(".strong:visible")).to_have_text(["New migration"])


def test_it_says_that_it_loads(session: Session, open_tab: OpenTab) -> None:
    """The frame in Airflow has no other sign of it."""
    make(session, "copies", Phase.COPYING)
    page = open_tab(LIST).page
    page.get_by_role("status", include_hidden=True).evaluate(REMEMBER)
    page.get_by_role("listitem").get_by_role("link").click()
    expect(page.locator("#phase")).to_have_text("copying")
    assert page.evaluate("sessionStorage.getItem('said')") == "Loading …"
    expect(page.get_by_role("status")).to_be_hidden()


def test_the_past_is_drawn_and_can_be_read(session: Session, open_tab: OpenTab) -> None:
    """It is the sidecar's: a browser that has never seen the page draws it, too."""
    path = make(session, "copies", Phase.COPYING)
    figures(session, "copies")
    tab = open_tab(path)
    page = tab.page
    for name in ("Copied, applied, ", "Watermark lag, backlog, ", "Chunks, "):
        expect(page.get_by_role("img", name=name).locator("canvas")).to_be_visible()
    page.get_by_text("Watermark lag, backlog as a table").click()
    table = page.get_by_role("table", name="Watermark lag, backlog")
    expect(table.get_by_role("row")).not_to_have_count(0)
    assert table.get_by_text("apply backlog").count() > 0
    hour = table.get_by_role("row").count()
    page.get_by_role("button", name="Whole run").click()
    expect(page.get_by_role("button", name="Whole run")).to_have_attribute("aria-pressed", "true")
    expect(table.get_by_role("row")).not_to_have_count(hour)


def test_a_run_that_has_ended_has_times_below_its_charts(session: Session, open_tab: OpenTab) -> None:
    """However long it was: between two full five minutes, too. Of 24 hours, as on all of the page, where a browser's
    language has 12 of them.
    """
    page = open_tab(locale="en-US", timezone_id="America/New_York").page
    page.add_init_script(DRAWN)
    for seconds in (200, 20, 3_000, 200_000):
        path = make(session, f"done-{seconds}", Phase.COMPLETE)
        journal.write(session, f"done-{seconds}", "released", "", actor="ann")
        begin = history.slot_now(session) // 60 * 60 - 60 - seconds // 300 * 60 + 1
        slots = {begin + seconds // 5 * part // 8 for part in range(9)}
        values = ", ".join(f"('done-{seconds}', {slot}, 'copying', 5, 5, 5)" for slot in sorted(slots))
        columns = "workflow, slot, phase, rows_copied, rows_per_second, applied_per_second"
        session.execute_raw(f"INSERT INTO {SIDECAR}.history ({columns}) VALUES {values}")
        page.goto(path)
        page.get_by_role("button", name="Whole run").click()
        expect(page.locator("#charts")).not_to_have_attribute("aria-busy", "true")
        wait_until(lambda: page.evaluate(TIMES_DRAWN) >= 3, f"no times below the charts of {seconds} s")
        expect(page.locator("time").first).to_have_text(re.compile(r"\d\d:\d\d(:\d\d)? E[DS]T$"))
        times = [*page.evaluate("drawn"), *page.locator("time").all_text_contents()]
        assert [text for text in times if re.search(r"\b[AP]\.?M\b", text, re.IGNORECASE)] == []


def test_tuning_asks_first_and_says_what_is_wrong(session: Session, open_tab: OpenTab) -> None:
    tab = open_tab(make(session, "copies", Phase.COPYING))
    dialog = tab.page.get_by_role("dialog")
    tab.page.get_by_role("button", name="Tune").click()
    expect(dialog.get_by_label("Copying tasks at a time")).to_have_value("2")
    dialog.get_by_label("Copying tasks at a time").fill("99")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog.get_by_role("alert")).to_have_text("Copying tasks at a time: it has to be at most 64.")
    assert tuning.read(session, "copies") == Tuning()
    tab.problems.clear()
    dialog.get_by_label("Copying tasks at a time").fill("4")
    dialog.get_by_role("button", name="Set").click()
    expect(tab.page.get_by_text("Set: 4 copying tasks at a time.")).to_be_visible()
    expect(tab.page.get_by_text("It may work with 4 tasks at a time, 500 ms a chunk")).to_be_visible()
    assert tuning.read(session, "copies") == Tuning(copy_parallelism=4)
    for value in ("Threads_running=60", ""):
        button = tab.page.get_by_role("button", name="Tune")
        expect(button).to_have_attribute(
            "data-fields", re.compile('"value": "Threads_running=60"' if not value else "max_load")
        )
        button.click()
        if value:
            dialog.get_by_text("What holds it back").click()
        dialog.get_by_label("Copy nothing while one of these status").fill(value)
        dialog.get_by_role("button", name="Set").click()
        expect(tab.page.get_by_text(f"Set: max-load {value or 'off'}. It holds at once.")).to_be_visible()
    assert throttling.read(session, "copies") == {"max_load": None}
    told = [entry["details"] for entry in journal.read(session, "copies")][1:]
    assert told == ["max-load: Threads_running=60 (was off)", "max-load: off (was Threads_running=60)"]
    assert {entry["actor"] for entry in journal.read(session, "copies")} == {"admin (Airflow)"}


def test_a_switched_move_is_completed_from_its_page(session: Session, open_tab: OpenTab) -> None:
    make_move(session, "shop-to-new", "shop", number=2)
    progress.write_driver(session, "shop-to-new", percent=100.0, rows_copied=45_000, rows_total=45_000)
    progress.write_replicate(session, "shop-to-new", lag_seconds=0.2, backlog=0)
    alive(session, "shop-to-new")
    lease.acquire(session, "shop-to-new", lease.DRIVER)
    tab = open_tab(ONE.format("shop-to-new"))
    expect(tab.page.locator("#serves")).to_have_text("the target, new.example:3307")
    expect(tab.page.locator("#tables tbody tr")).to_have_count(2)
    expect(tab.page.locator(".steps [aria-current=step]")).to_contain_text("way back")
    tab.picture("move", 900)
    tab.page.get_by_role("button", name="Complete").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("there is no Reverse any more")
    dialog.get_by_role("button", name="Complete it").click()
    expect(tab.page.get_by_text("Nothing: complete was asked for by admin (Airflow).")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Reverse")).to_have_count(0)
    assert moves.load(session, "shop-to-new").asked == moves.COMPLETE


def test_a_feed_is_shown_with_its_partitions_watermark_and_consumers(session: Session, open_tab: OpenTab) -> None:
    tab = open_tab(make_stream(session))
    page = tab.page
    expect(page.locator("#phase")).to_have_text("streaming")
    expect(page.locator("#feed")).to_contain_text("answers: last commit 0.1 s ago")
    expect(page.locator("#partitions tbody tr")).to_have_count(4)
    expect(page.locator("#partitions")).to_contain_text("12,030,200")
    groups = page.locator("#consumers tbody tr")
    expect(groups).to_have_count(2)
    expect(groups.filter(has_text="copies")).to_contain_text("26 messages")
    expect(groups.filter(has_text="copies")).to_contain_text("1 process")
    gone = page.locator("#gone-groups tbody tr")
    expect(gone).to_be_hidden()
    page.get_by_text("1 group of which no process has been heard for an hour").click()
    expect(gone).to_contain_text("old-copies")
    page.locator("#gone summary").press("Enter")
    expect(page.get_by_role("img", name="Partition 3, ").locator("canvas")).to_be_visible()
    page.get_by_text("Sent by partition as a table").click()
    expect(page.get_by_role("table", name="Sent by partition")).to_contain_text("not known")
    page.get_by_text("Sent by partition as a table").click()
    for name in ("Sent, lag, ", "Resolved watermark, "):
        expect(page.get_by_role("img", name=name).locator("canvas")).to_be_visible()
    page.get_by_text("Resolved watermark as a table").click()
    expect(page.get_by_role("table", name="Resolved watermark")).to_contain_text("the brokers do not answer")
    page.get_by_text("Resolved watermark as a table").click()
    page.evaluate("scrollTo(0, 0)")
    tab.picture("feed", 1_320)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("the topic and what it holds stay")
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_text("being cancelled")).to_be_visible()
    assert workflows.load(session, "shop-feed").is_cancel_requested


def test_consumers_are_listed_where_they_write(session: Session, open_tab: OpenTab) -> None:
    make_stream(session)
    page = open_tab(LIST).page
    expect(page.get_by_role("list", name="Migrations")).to_contain_text("48.1M rows sent")
    expect(page.locator("#consumers tbody tr").filter(has_text="copies")).to_contain_text("26 messages")


def test_an_unreachable_source_is_named_and_the_others_are_shown(
    airflow: Deployment, session: Session, open_tab: OpenTab
) -> None:
    make(session, "copies", Phase.COPYING)
    with unreachable(airflow):
        tab = open_tab("/vreplication/")
        expect(tab.page.get_by_text(f"{GONE} is unreachable.")).to_be_visible()
        expect(tab.page.get_by_role("listitem").filter(has_text="copies")).to_be_visible()
        tab.page.goto(f"/vreplication/workflows/copies?conn_id={GONE}")
        expect(tab.page.get_by_text(f"{GONE} is unreachable.")).to_be_visible()
    assert all("503" in problem for problem in tab.problems)
    tab.problems.clear()


@contextlib.contextmanager
def unreachable(airflow: Deployment) -> Iterator[None]:
    """A source on a port where nobody listens."""
    body = {"connection_id": GONE, "conn_type": "mysql", "host": "127.0.0.1", "port": 1, "login": "u", "schema": "d"}
    status, told = airflow.call("POST", "/api/v2/connections", {**body, "extra": '{"vreplication": true}'})
    assert status == 201, told
    try:
        yield
    finally:
        airflow.call("DELETE", f"/api/v2/connections/{GONE}")


def test_a_table_named_like_a_script_is_text(session: Session, open_tab: OpenTab) -> None:
    """A dialog of the script's, or the refusal to run it, would be a problem of the tab."""
    tab = open_tab()
    for path in make_all(session):
        tab.page.goto(path)
        expect(tab.page.get_by_text(SCRIPT).first).to_be_visible()
        assert tab.page.locator("main script").count() == 0


# -- sizes and colors


@pytest.mark.parametrize("width", WIDTHS)
def test_no_horizontal_scroll_bar(session: Session, blocked: str, open_tab: OpenTab, width: int) -> None:
    page = open_tab(width=width, height=800).page
    for path in [*make_all(session), blocked]:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
    expect(page.get_by_text("may: its open transaction may have used")).to_be_visible()
    page.get_by_role("button", name="Release").click()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= box["x"] + box["width"] <= width


@pytest.fixture
def blocked(archive: Database, session: Session) -> Iterator[str]:
    """The path of a workflow whose cut-over an open transaction would block."""
    path = make(session, "blocked", Phase.WAITING, source_table="busy")
    archive.admin.execute_raw("CREATE TABLE IF NOT EXISTS busy (id INT PRIMARY KEY, v VARCHAR(200))")
    with connect(archive.app_url) as app:
        app.execute_raw("BEGIN")
        app.rows("SELECT * FROM busy")
        yield path


@pytest.mark.seldom
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.seldom), "dark"])
def test_the_color_scheme_is_the_persons_and_can_be_read(
    session: Session, blocked: str, open_tab: OpenTab, scheme: str
) -> None:
    """axe finds what has too little contrast, and each control without a name."""
    page = open_tab(color_scheme=scheme).page
    for path in [*make_all(session), blocked]:
        page.goto(path)
        assert _is_dark(page) == (scheme == "dark")
        assert page.locator("progress:not([aria-label])").count() == 0
        assert complaints(page) == []
    for workflow, name in ASKED.items():
        page.goto(ONE.format(workflow))
        page.get_by_role("button", name=name).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert complaints(page) == []
    page.goto(ONE.format("copies"))
    expect(page.get_by_role("img", name="Chunks, ")).to_be_visible()
    for each in page.locator("summary").all():
        each.click()
    assert complaints(page) == []
    page.get_by_role("button", name="Tune").click()
    assert complaints(page) == []


def _is_dark(page: Page | Frame) -> bool:
    red = page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])")
    return bool(red < 128)


def test_airflows_own_appearance_reaches_the_page(session: Session, open_tab: OpenTab) -> None:
    page = open_tab(color_scheme="null").page
    make_all(session)
    frame = open_migrations(page)
    expect(frame.get_by_role("list", name="Migrations")).to_be_visible()
    assert not _is_dark(frame)
    assert complaints(frame) == []
    page.get_by_role("button", name="User").click()
    page.get_by_role("menuitem", name="Appearance").click()
    page.get_by_role("menuitemradio", name="Dark Mode").click()
    frame.wait_for_function("getComputedStyle(document.documentElement).colorScheme === 'dark'")
    assert _is_dark(frame)
    assert complaints(frame) == []
    page.get_by_role("button", name="User").click()
    page.get_by_role("menuitem", name="Appearance").click()
    page.get_by_role("menuitemradio", name="Light Mode").click()
    frame.wait_for_function("getComputedStyle(document.documentElement).colorScheme === 'light'")
    assert not _is_dark(frame)


# -- the keyboard


@pytest.mark.parametrize("place", ["list", "detail"])
def test_a_release_with_the_keyboard_alone(session: Session, open_tab: OpenTab, place: str) -> None:
    path = make(session, "waits", Phase.WAITING)
    page = open_tab(LIST if place == "list" else path).page
    dialog = page.get_by_role("dialog")
    tab_to(page, "Release")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Leave it as it is")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Release", exact=False)).to_be_focused()
    assert gate.released_by(session, "waits") is None
    page.keyboard.press("Enter")
    tab_to(page, "Release it")
    page.keyboard.press("Enter")
    expect(page.locator(".tag").first).to_have_text("waiting at the gate")
    assert gate.released_by(session, "waits") == "admin (Airflow)"


def test_a_new_migration_is_planned_with_the_keyboard_alone(
    archive: Database, session: Session, open_tab: OpenTab
) -> None:
    """On a narrow screen, in both colors; what is wrong is said at the field that it is about."""
    archive.admin.execute_raw("CREATE TABLE IF NOT EXISTS busy (id INT PRIMARY KEY, v VARCHAR(200))")
    tab = open_tab(LIST, width=400, color_scheme="dark")
    page = tab.page
    tab_to(page, "New migration")
    page.keyboard.press("Enter")
    page.get_by_label("Server").press("a")
    for text in ("nothing", "ADD COLUMN w INT"):
        page.keyboard.press("Tab")
        page.keyboard.type(text)
    wrong = page.get_by_role("alert").filter(has_text="There is no table archive.nothing, or the user may not see it.")
    expect(wrong).to_be_visible()
    expect(page.get_by_label("Table", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Table", exact=True).fill("busy")
    page.keyboard.press("Enter")
    expect(page.locator("#plan-verdict")).to_be_focused()
    expect(page.locator(".diff ins")).to_have_text("+ comes:   `w` int(11) DEFAULT NULL,")
    for each in page.locator("summary").all():
        each.press("Enter")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert complaints(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    expect(page.locator("button.strong:visible")).to_have_text(["Start"])
    page.get_by_label("ALTER TABLE").press_sequentially(" NOT NULL")
    expect(page.locator("button.strong:visible")).to_have_text(["Show the plan"])
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    assert all("409" in problem for problem in tab.problems)
    tab.problems.clear()


# -- sent as it changes


@pytest.mark.parametrize("cut", ["fetch", "eventsource"])
def test_what_changes_comes_by_a_stream_or_else_by_asking(session: Session, open_tab: OpenTab, cut: str) -> None:
    """Each alone, the other never answered: a page that asks has no need of the stream, nor the other way round."""
    path = make(session, "copies", Phase.COPYING)
    tab = open_tab()
    tab.page.route(
        "**/vreplication/workflows/**", lambda route: route.fallback() if route.request.resource_type != cut else None
    )
    tab.page.goto(path)
    expect(tab.page.locator("#phase")).to_have_text("copying")
    for paused, words in ((1, "copying, paused"), (0, "copying")):
        workflows.set_fields(session, "copies", paused=paused)
        expect(tab.page.locator("#phase")).to_have_text(words)
    tab.page.unroute_all(behavior="ignoreErrors")

"""A whole online_ddl as a person does it: login, form, progress, release, all in a browser, under live writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow_ui import complaints, fill, framed, open_form, open_migrations, run_path, trigger
from playwright.sync_api import Frame, Page, expect
from tabs import OpenTab, Tab

from sandbox import orders
from tests.support.dag_runs import DagRun
from tests.support.flow import let_go, wait_reached
from tests.support.shop import Shop
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import journal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("airflow"),
    # Both flavors' whole runs are in tests/dags; what is looked at here is the same for both.
    pytest.mark.parametrize("server", ["mariadb"], indirect=True, scope="session"),
]
SECOND = 1_000
LANDED, OPENED = "copy.after_land", "copy.after_open"


@pytest.mark.seldom
def test_a_wrong_value_is_refused_with_a_sentence(shop: Shop, open_tab: OpenTab) -> None:
    """What the form can know at once, and what only the first task can."""
    tab = open_tab()
    page = tab.page
    form = open_form(page)
    fill(form, source_conn_id=shop.conn_id, alter="ADD x INT", workflow="refused")
    expect(form.get_by_text("This field is required")).to_have_count(1)
    expect(form.get_by_role("button", name="Trigger", exact=True)).to_be_disabled()
    fill(form, chunk_rows="300", table="orders", cutover="window")
    tab.picture("form", 900)
    fill(form, cutover_window="Someday")
    page.goto(f"{run_path(trigger(form))}/tasks/plan")
    sentence = page.get_by_text("cutover_window: 'Someday' is no window. Write it as Sat 02:00-04:00 Europe/Berlin.")
    expect(sentence).to_be_visible(timeout=90 * SECOND)
    assert shop.phase("refused") is None


def test_from_the_plan_to_the_new_table(shop: Shop, pauses: Path, open_tab: OpenTab) -> None:
    tab = open_tab()
    page = tab.page
    (pauses / LANDED).touch()
    workflow = _start_on_our_page(tab, shop)
    run = DagRun(airflow=shop.airflow, dag_id="online_ddl", run_id=workflow)
    wait_reached(pauses, LANDED)
    page.goto(run_path(workflow))
    _the_bar_moves(_tab_of_run(page), pauses)
    tab.picture("run", 800)
    let_go(pauses, LANDED)
    _the_link_of_a_task_leads_there(page, run)
    run.wait_for(lambda: shop.phase(workflow) is Phase.WAITING, "it does not come to the gate")
    frame = _out_of_the_list(page, workflow)
    expect(frame.locator("canvas")).to_have_count(3, timeout=180 * SECOND)
    tab.picture("migration", 1_600)
    frame.get_by_text("Definition, before and after").click()
    expect(frame.locator(".diff ins").filter(has_text="`region` varchar(16)")).to_be_visible()
    assert complaints(frame) == []
    _release(frame)
    expect(frame.locator("#phase")).to_have_text("complete", timeout=180 * SECOND)
    assert complaints(frame) == []
    assert run.end() == "success", run.story()
    with connect(shop.database.url) as session:
        written = journal.read(session, workflow)
    assert [e["actor"] for e in written if e["event"] == "released"] == ["admin (Airflow)"]
    shop.prove(workflow)


def _start_on_our_page(tab: Tab, shop: Shop) -> str:
    """From the list; returns the workflow, whose page it then is, inside of Airflow's frame."""
    frame = open_migrations(tab.page)
    frame.get_by_role("link", name="New migration").click()
    frame.get_by_label("Server").select_option(shop.conn_id)
    frame.get_by_label("Table", exact=True).fill("orders")
    frame.get_by_label("ALTER TABLE").fill(orders.ALTER)
    frame.get_by_label("Cut-over").select_option("manual")
    frame.get_by_text("How hard to work").click()
    frame.get_by_label("Size of a chunk (rows)").fill("300")
    frame.get_by_role("button", name="Show the plan").click()
    expect(frame.get_by_role("heading", name="It can be done online.")).to_be_visible()
    tab.picture("new", 1_400)
    assert complaints(frame) == []
    frame.get_by_role("button", name="Start").click()
    expect(frame.locator("#phase")).to_have_text("copying", timeout=180 * SECOND)
    found: str = frame.evaluate("decodeURIComponent(location.pathname.split('/').pop())")
    return found


def _tab_of_run(page: Page) -> Frame:
    page.get_by_role("link", name="Migration", exact=True).click()
    frame = framed(page, "Migration")
    expect(frame.locator("#phase")).to_have_text("copying")
    return frame


def _the_bar_moves(frame: Frame, pauses: Path) -> None:
    """Held behind its first chunks it stands above 0; a chunk further it stands higher, and not yet at the end."""
    first = _copied_more_than(frame, 0)
    _one_chunk_more(pauses)
    second = _copied_more_than(frame, first)
    assert 0 < first < second < 100
    expect(frame.locator(".bars .figure").first).to_have_text(re.compile(r"^\d\d?\.\d %$"))


def _copied_more_than(frame: Frame, least: float) -> float:
    found = frame.wait_for_function(
        "least => { const bar = document.querySelector('progress[aria-label=Copy]');"
        " return bar && bar.value > least ? bar.value : null; }",
        arg=least,
    )
    return float(found.json_value())


def _one_chunk_more(pauses: Path) -> None:
    """Each copying task lands one more chunk, and is held again."""
    for here, there in ((LANDED, OPENED), (OPENED, LANDED)):
        (pauses / f"{there}.reached").unlink(missing_ok=True)
        (pauses / there).touch()
        let_go(pauses, here)
        wait_reached(pauses, there)


def _the_link_of_a_task_leads_there(page: Page, run: DagRun) -> None:
    page.goto(f"{run_path(run.run_id)}/tasks/plan/details")
    page.get_by_role("link", name="Migration", exact=True).click()
    expect(framed(page, "Migration").locator("h1")).to_contain_text("orders ADD COLUMN region")


def _out_of_the_list(page: Page, workflow: str) -> Frame:
    """The list, and from there to the one that waits."""
    frame = open_migrations(page)
    row = frame.get_by_role("listitem").filter(has_text=workflow)
    expect(row).to_contain_text("waiting for you")
    row.get_by_role("link").click()
    expect(frame.locator("#phase")).to_have_text("waiting for you")
    return frame


def _release(frame: Frame) -> None:
    """It asks first; the answer that changes nothing changes nothing."""
    frame.get_by_role("button", name="Release").click()
    dialog = frame.get_by_role("dialog")
    expect(dialog).to_contain_text("The tables are switched as soon as")
    dialog.get_by_role("button", name="Leave it as it is").click()
    expect(dialog).to_be_hidden()
    expect(frame.locator("#phase")).to_have_text("waiting for you")
    frame.get_by_role("button", name="Release").click()
    dialog.get_by_role("button", name="Release it").click()

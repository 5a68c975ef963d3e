"""Each dialog of a workflow's page with the keyboard alone: opened, gone round, left, opened again and agreed to.

What must stay true: the server is a real one, and so is what it answers; nothing is clicked, and no script moves the
place of the keyboard.
"""

from __future__ import annotations

import pytest
from airflow_ui import complaints
from page_rows import ONE, make_all
from playwright.sync_api import Page, expect
from tabs import OpenTab, Tab, tab_to

from sandbox.databases import Database
from vreplication.cutover.identity import table_identity
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import lease, workflows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]
LEAVE, LIMITS = "Leave it as it is", "What holds it back (an empty field: nothing)"
DIALOGS = [
    ("copies", "Pause", "Pause it", "Paused: no new chunk"),
    ("copies", "Resume", "Resume it", "Resumed. If no task"),
    ("copies", "Cancel", "Cancel it", "Cancelled: what it made is removed"),
    ("waits", "Release", "Release it", "Released: the cut-over follows"),
    ("done", "Clean up", "Drop it", "Dropped: archive.t__vr_old."),
    ("moved", "Complete", "Complete it", "Asked: the reverse stream ends"),
]
"""A workflow, the button on its page, what agrees, and what is answered. The button is gone then."""
OF_WAY_BACK = [
    ("Revert", "Revert it", "Asked: the original takes"),
    ("End the way back", "End it", "Asked: its process"),
]
"""Their buttons stay until somebody has done it."""
PLACE = """() => {
    const it = document.activeElement, box = it.getBoundingClientRect();
    const isSeen = document.elementFromPoint(box.left + box.width / 2, box.bottom - 4) === it;
    const isIn = document.getElementById('ask').contains(it) && getComputedStyle(it).outlineStyle === 'solid';
    return [it.name || it.textContent.trim().slice(0, 60), isIn && isSeen];
}"""


def test_each_is_gone_round_left_and_agreed_to(archive: Database, session: Session, open_tab: OpenTab) -> None:
    """Who has agreed is where they were, or at the page's heading where their button is gone."""
    make_all(session)
    found = table_identity(session, "archive", "t__vr_old", True)
    workflows.set_fields(session, "done", source_identity=found)
    for driven in ("moved", "open.revert"):
        lease.acquire(session, driven, lease.DRIVER)
    session.execute_raw(f"UPDATE {SIDECAR}.heartbeat SET at=NOW(6) + INTERVAL 1 HOUR")
    tab = open_tab()
    for name, yes, told in OF_WAY_BACK:
        _agree(tab.page, "open", name, yes, told)
        expect(tab.page.get_by_role("button", name=name)).to_be_focused()
    for workflow, name, yes, told in DIALOGS:
        _agree(tab.page, workflow, name, yes, told)
        expect(tab.page.get_by_role("heading", level=1)).to_be_focused()


def _agree(page: Page, workflow: str, name: str, yes: str, told: str) -> None:
    page.goto(ONE.format(workflow))
    expect(page.get_by_role("button", name=f"{name} ")).to_be_visible()
    tab_to(page, name)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name=LEAVE)).to_be_focused()
    assert _round(page) == [yes, LEAVE]
    assert complaints(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name=f"{name} ")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, yes)
    page.keyboard.press("Enter")
    expect(page.locator("#done")).to_contain_text(told)


def _round(page: Page) -> list[str]:
    """Where Tab leads until it is back, always to be seen inside of the dialog; Shift+Tab is the same way back."""
    there, back = (_way(page, key) for key in ("Tab", "Shift+Tab"))
    assert [*back[-2::-1], back[-1]] == there
    return there


def _way(page: Page, key: str) -> list[str]:
    begin = page.evaluate(PLACE)[0]
    names: list[str] = []
    while names[-1:] != [begin]:
        page.keyboard.press(key)
        name, is_seen = page.evaluate(PLACE)
        assert is_seen, f"{key} leads to {name!r} behind {names}"
        names.append(name)
    return names


def test_tuning_is_filled_in_and_set_by_enter(session: Session, open_tab: OpenTab) -> None:
    """On a small screen no field is behind the buttons; what is wrong is said beside them, and the place stays."""
    make_all(session)
    tab = open_tab(ONE.format("copies"), width=400, height=600)
    page = tab.page
    expect(page.get_by_role("button", name="Tune")).to_be_visible()
    tab_to(page, "Tune")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Copying tasks at a time")).to_be_focused()
    tab_to(page, LIMITS)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Copy nothing while a replica is further behind")).to_be_visible()
    assert _round(page)[-6:] == [
        "critical_load", LEAVE, "Set", "copy_parallelism", "chunk_millis", LIMITS,
    ]  # fmt: skip
    page.keyboard.press("Tab")
    _set(tab, "Threads_running=many")
    expect(page.get_by_role("alert").filter(has_text="above its limit: 'Threads_running=many'")).to_be_in_viewport()
    assert page.evaluate(PLACE) == ["max_load", True]
    assert complaints(page) == []
    tab.problems.clear()
    _set(tab, "Threads_running=60")
    expect(page.locator("#done")).to_contain_text("max-load Threads_running=60")
    expect(page.get_by_role("button", name="Tune")).to_be_focused()


def _set(tab: Tab, text: str) -> None:
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.type(text)
    tab.page.keyboard.press("Enter")

"""Airflow's own pages, as a person uses them: the login, the form that triggers a DAG, a run's tabs and tasks.

What must stay true: all is found by the words and roles that a person sees, or by the names of the form's fields.
"""

from __future__ import annotations

from urllib.parse import quote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Frame, Locator, Page, expect

from sandbox.deployment import Deployment

OPEN = "Run Parameters"
SECTIONS = {"chunk_rows": "How hard to work"}
"""Of the fields that are folded at first."""
_NUMBERS, _CHOICES = {"chunk_rows": "Size of a chunk (rows)"}, {"cutover": "Cut-over"}
_WORDS = {"manual": "when somebody releases it", "window": "in the maintenance window"}


def log_in(page: Page, airflow: Deployment, user: str) -> None:
    """Whoever comes without a login is sent to the form, and from there to where they wanted."""
    page.goto(f"{airflow.url}/dags")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(airflow.password(user))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{airflow.url}/dags")


def open_form(page: Page) -> Locator:
    page.goto("/dags/online_ddl")
    page.get_by_role("button", name="Trigger Dag").click()
    return page.get_by_role("dialog").filter(has_text="Trigger Dag")


def fill(form: Locator, **fields: str) -> None:
    for name, value in fields.items():
        _unfold(form, SECTIONS.get(name, OPEN))
        if name in _CHOICES:
            form.get_by_role("combobox", name=_CHOICES[name], exact=True).click()
            form.get_by_role("option", name=_WORDS[value], exact=True).click()
        elif name in _NUMBERS:
            form.get_by_role("spinbutton", name=_NUMBERS[name]).fill(value)
        else:
            form.locator(f"[name=element_{name}]").fill(value)


def _unfold(form: Locator, section: str) -> None:
    button = form.get_by_role("button", name=section)
    if button.get_attribute("aria-expanded") != "true":
        button.click()
        expect(button).to_have_attribute("aria-expanded", "true")


def trigger(form: Locator) -> str:
    """Press it; Airflow then shows the run, whose id this is."""
    form.get_by_role("button", name="Trigger", exact=True).click()
    form.page.wait_for_url("**/dags/online_ddl/runs/*")
    run_id: str = form.page.evaluate("decodeURIComponent(location.pathname.split('/').pop())")
    return run_id


def run_path(run_id: str) -> str:
    return f"/dags/online_ddl/runs/{quote(run_id, safe='')}"


def framed(page: Page, title: str) -> Frame:
    """Our page inside of Airflow's."""
    element = page.locator(f"iframe[title={title}]").element_handle()
    frame = element.content_frame()
    assert frame is not None
    frame.wait_for_url("**/vreplication/**")  # and until its style is there
    return frame


def open_migrations(page: Page) -> Frame:
    """Browse, Migrations."""
    page.goto("/")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Migrations").click()
    return framed(page, "Migrations")


def complaints(page: Page | Frame) -> list[str]:
    """What axe finds: too little contrast, a control without a name, and the like."""
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = Axe().run(page, options={"runOnly": rules}).response["violations"]
    return [f"{each['id']}: {node['html']} ({node['failureSummary']})" for each in found for node in each["nodes"]]

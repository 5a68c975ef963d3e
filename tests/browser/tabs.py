"""A browser's tab, with what its console said about our pages.

What must stay true: what Airflow's own pages say there is theirs; a request that the browser itself reports as failed
counts, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Error, Frame, Page, expect

OURS = "/vreplication/"
PICTURES = "VREPLICATION_PICTURES"


class Tab:
    """`problems`: what must not have been said; a test that asks for an error takes it out."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.problems: list[str] = []
        context.on("console", self._said)
        context.on("weberror", lambda thrown: self._threw(thrown.error))
        context.on("dialog", self._asked)
        self.page = context.new_page()

    def _said(self, message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        if message.type == "error" and OURS in where:
            self.problems.append(f"{message.text} ({where})")

    def _threw(self, error: Error) -> None:
        self.problems.append(f"thrown: {error}")

    def _asked(self, dialog: Dialog) -> None:
        self.problems.append(f"a script says: {dialog.message}")
        dialog.dismiss()

    def picture(self, name: str, height: int) -> None:
        """For the documentation, where VREPLICATION_PICTURES names a folder."""
        if PICTURES in os.environ:
            self.page.set_viewport_size({"width": 1200, "height": height})
            self.page.emulate_media(reduced_motion="reduce")
            self.page.screenshot(path=Path(os.environ[PICTURES]) / f"{name}.png")

    def story(self) -> str:
        """What each of its frames shows, for the message of a failure."""
        return "\n".join(f"--- {frame.url}\n{_shown(frame)}" for frame in self.page.frames)

    def close(self) -> None:
        self.context.close()


def _shown(frame: Frame) -> str:
    try:
        return frame.locator("body").aria_snapshot(timeout=1_000)
    except Error as error:
        return error.message


def tab_to(page: Page, text: str) -> None:
    """By the Tab key, seeing where it is; once the page has what it asks for."""
    expect(page.locator("#asking")).to_have_count(0)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            break
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.textContent")
    assert style.strip() == f"solid{text}"


OpenTab = Callable[..., Tab]
"""A path, and keywords of a browser's context."""

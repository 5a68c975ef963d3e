"""A headless browser for the tests of the page: the distribution's Chromium or Chrome, else playwright's own.

What must stay true: a program that only stands for a snap is none; `python -m sandbox.browser` succeeds exactly when a
browser really starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Error, sync_playwright

from sandbox.install import BROWSERS

PROGRAM_VARIABLE = "VREPLICATION_CHROMIUM"


class BrowserMissing(Exception):
    """No browser starts here; the text says how to get one."""


def program() -> str | None:
    """The browser's program; None: playwright's own."""
    if os.environ.get(PROGRAM_VARIABLE):
        return os.environ[PROGRAM_VARIABLE]
    found = [place for name in BROWSERS if (place := shutil.which(name)) and not _is_snap(Path(place))]
    return found[0] if found else None


def _is_snap(place: Path) -> bool:
    """Ubuntu's package is a script that calls the snap: containers have none, and it reads no profile in /tmp."""
    if "/snap/" in str(place) or place.resolve().name == "snap":
        return True
    with place.resolve().open("rb") as file:
        head = file.read(8192)
    return head.startswith(b"#!") and b"/snap/" in head


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """Started, and ended afterwards. Raises BrowserMissing."""
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program())
        except Error as error:
            raise BrowserMissing(f"No browser starts here. Run: make install-browser ({_first_line(error)})") from None
        try:
            yield browser
        finally:
            browser.close()


def _first_line(error: Error) -> str:
    return error.message.strip().splitlines()[0]


def main() -> int:
    try:
        with opened() as browser:
            print(browser.version)
    except BrowserMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

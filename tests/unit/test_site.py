"""The documentation builds without a warning: each page, file and heading that a link names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_BESIDE = ("README.md", "bench/README.md")
"""Pages that are not of the site, with links into it."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the site is, and the manual page that is made of the same pages."""
    folder = tmp_path_factory.mktemp("site")
    for builder in ("html", "man"):
        words = ["-q", "-W", "--keep-going", "-b", builder, "-d", str(folder / "trees"), "docs", str(folder / builder)]
        command = [sys.executable, "-m", "sphinx", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_manual_page_has_what_the_program_shows(built: Path) -> None:
    page = (built / "man/vreplication.1").read_text().replace("\\-", "-")
    assert "--force-cutover-max-age SECONDS" in page
    assert re.search(r"^\.SH PLAN MOVE-TABLES$", page, re.MULTILINE)
    assert not re.search(r"^\.SH REPLICATE$", page, re.MULTILINE), "a hidden command is shown"


@pytest.mark.parametrize("name", _BESIDE)
def test_links_into_the_repository_lead_somewhere(built: Path, name: str) -> None:
    page = ROOT / name
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert links
    assert [link for link in links if not _is_there(page.parent, link, built)] == []


def _is_there(folder: Path, link: str, built: Path) -> bool:
    path, _, heading = link.partition("#")
    target = folder / path
    if not heading or ROOT / "docs" not in target.resolve().parents:
        return target.exists()
    made = built / "html" / target.resolve().relative_to(ROOT / "docs").with_suffix(".html")
    return f'id="{heading}"' in made.read_text()

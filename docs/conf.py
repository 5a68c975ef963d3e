"""The site (`make site`) and the manual page (`make man`): Sphinx, over the Markdown files of this folder.

What must stay true: every warning fails the build, so a page, a file or a heading that a link names is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))

from sphinx.addnodes import pending_xref  # noqa: E402

from sandbox import manual  # noqa: E402
from vreplication import __version__  # noqa: E402

project = "vreplication"
release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["images/**"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"vreplication {__version__}"
html_copy_source = False
man_pages = [("manual", "vreplication", "change and move live MySQL and MariaDB tables", "", 1)]
man_show_urls = False


def _fill(_app: Any, name: str, source: list[str]) -> None:
    """The manual page is made of the program's own parser."""
    if name == "manual":
        source[0] += "\n" + manual.text() + "\n"


def _unlink(app: Any, tree: Any) -> None:
    """A folder or a file of the repository that is no page of this site: its name without a link, if it is there."""
    page = Path(app.env.doc2path(app.env.docname)).resolve()
    for node in [node for node in tree.findall(pending_xref) if node["reftype"] == "myst"]:
        target = (page.parent / str(node["reftarget"])).resolve()
        if target.exists() and _HERE not in target.parents:
            node.replace_self(node.children)


def setup(app: Any) -> None:
    app.connect("source-read", _fill)
    app.connect("doctree-read", _unlink)

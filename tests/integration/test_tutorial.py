"""docs/tutorial.md, typed as it stands: a private server, a migration under the hand, and back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.install import ROOT
from tests.support.private_server import missing

_PAGE = ROOT / "docs" / "tutorial.md"
_FOLDER = ".sandbox/server"
_BEFORE = f"""
set -euo pipefail
# What is missing is installed before the tests; and no JVM, which would take half of the time.
make() {{ command make -o install "$@"; }}
vreplication() {{ {sys.executable} -m tests.support.without_spark "$@"; }}
"""


def typed(folder: Path) -> str:
    """All commands of the page, in its order, on a server in a folder of its own."""
    commands = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return _BEFORE + "".join(commands).replace(_FOLDER, str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.seldom)])
def test_every_command_of_the_tutorial(tmp_path: Path, flavor: str) -> None:
    try:
        binaries.version(flavor)
    except binaries.ServerMissing as error:
        missing(str(error))
    around = {name: value for name, value in os.environ.items() if name != "VREPLICATION_AUTO_STRATEGY"}
    around |= {"VREPLICATION_SERVER_FOLDER": str(tmp_path / "server"), "XDG_STATE_HOME": str(tmp_path / "state")}
    around["VREPLICATION_DEMO_FLAVOR"] = flavor
    try:
        done = subprocess.run(
            ["bash", "-c", typed(tmp_path / "server")],
            cwd=ROOT, env=around, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    finally:
        subprocess.run([sys.executable, "-m", "sandbox.own_server", "stop"], cwd=ROOT, env=around, check=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = re.sub(" +", " ", done.stdout)
    assert "| 1024 | while it waited | 7.00 | eu |\n" in said
    assert "| 1025 | after the switch | 8.00 |\n| 1024 | while it waited | 7.00 |\n" in said
    assert not (tmp_path / "server").exists()

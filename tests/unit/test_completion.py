"""Bash's own completion, set up as a person does it: what Tab offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vreplication.cli import main

_PRESS_TAB = """
source <(printf '%s' "$1")
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
[[ $(complete -p vreplication) =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}" vreplication
printf '%s\\n' "${COMPREPLY[@]}"
"""
_PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert main.run(["completion", "bash"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("plan mo", ["move-tables"]),
        ("online-ddl --table orders --force-cutover-m", ["--force-cutover-max-age", "--force-cutover-max-rows"]),
        ("online-ddl --strategy in", ["instant", "inplace"]),
        ("submit online-ddl --cutover ", ["auto", "manual", "window"]),
        ("--version blo", ["blockers"]),
    ],
)
def test_tab_offers_what_the_program_takes(script: str, words: str, offered: list[str]) -> None:
    """For the last of the words; after a space, for what may come next."""
    around = os.environ | {"PATH": f"{_PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
    # A server that does not answer: a Tab that asked it would take its time.
    around["VREPLICATION_SOURCE"] = "mysql+pymysql://nobody@192.0.2.1/none"
    command = ["bash", "--norc", "-c", _PRESS_TAB, "bash", script, "vreplication", *words.split(" ")]
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["completion", "tcsh"], ["completion"]):
        assert main.run(words) == 2
    wrong, none = capsys.readouterr().err.splitlines()
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'." in wrong
    assert none.startswith("vreplication: Missing argument")

"""The shells' own completion, set up as a person does it: what Tab offers."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.private_server import missing
from vreplication.cli import main

_PRESS_TAB = """
source <(printf '%s' "$1")
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
[[ $(complete -p vreplication) =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}" vreplication
printf '%s\\n' "${COMPREPLY[@]}"
"""
_READY = b"ready>"
_ZSHRC = """
autoload -Uz compinit && compinit -u -D
source $ZDOTDIR/script
# What is offered goes into a file; what only sorts it first, into an array of zsh's.
compadd() {
  [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]] && { builtin compadd "$@"; return }
  local -a offered
  builtin compadd -A offered "$@"
  print -rl -- $offered >> $ZDOTDIR/offered
}
comppostfuncs=(exit)
PROMPT='ready>'
"""
_PROGRAMS = Path(sys.executable).parent
Script = Callable[[str], str]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> Script:
    """What the program prints for a shell."""

    def made(shell: str) -> str:
        assert main.run(["completion", shell]) == 0
        return capsys.readouterr().out

    return made


@pytest.fixture
def around(tmp_path: Path) -> dict[str, str]:
    """A server that does not answer: a Tab that asked it would take its time."""
    homes = {name: str(tmp_path) for name in ("HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    path = f"{_PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    return os.environ | homes | {"PATH": path, "VREPLICATION_SOURCE": "mysql+pymysql://nobody@192.0.2.1/none"}


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
def test_tab_offers_what_the_program_takes(
    around: dict[str, str], script: Script, words: str, offered: list[str]
) -> None:
    """For the last of the words; after a space, for what may come next."""
    command = ["bash", "--norc", "-c", _PRESS_TAB, "bash", script("bash"), "vreplication", *words.split(" ")]
    assert printed(command, around).split() == offered


def printed(command: list[str], around: dict[str, str]) -> str:
    """And nothing beside it."""
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


def in_zsh(line: str, around: dict[str, str], home: Path, script: str) -> list[str]:
    """Typed at its prompt; the Tab ends it."""
    (home / "script").write_text(script)
    (home / ".zshrc").write_text(_ZSHRC)
    terminal, its_end = pty.openpty()
    zsh = subprocess.Popen(["zsh", "-d", "-i"], stdin=its_end, stdout=its_end, stderr=its_end, env=around)
    os.close(its_end)
    try:
        shown = b""
        while _READY not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, f"{line}\t".encode())
        zsh.wait(60)
    finally:
        zsh.kill()
        os.close(terminal)
    return (home / "offered").read_text().split()


def in_fish(line: str, around: dict[str, str], home: Path, script: str) -> list[str]:
    folder = home / "fish" / "completions"
    folder.mkdir(parents=True)
    (folder / "vreplication.fish").write_text(script)
    told = printed(["fish", "-c", 'complete -C "$argv[1]"', line], around)
    return [each.partition("\t")[0] for each in told.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("plan mo", ["move-tables"]),
        # The first is explained in several lines.
        ("online-ddl --so", ["--source", "--source-file"]),
        ("submit online-ddl --cutover ", ["auto", "manual", "window"]),
    ],
)
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_so_it_does_in_other_shells(
    around: dict[str, str], tmp_path: Path, script: Script, shell: str, words: str, offered: list[str]
) -> None:
    if shutil.which(shell) is None:
        missing(f"{shell} is not here. Run: python3 -m sandbox.install shells")
    pressed = in_zsh if shell == "zsh" else in_fish
    assert sorted(pressed(f"vreplication {words}", around, tmp_path, script(shell))) == offered


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["completion", "tcsh"], ["completion"]):
        assert main.run(words) == 2
    wrong, none = capsys.readouterr().err.splitlines()
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'." in wrong
    assert none.startswith("vreplication: Missing argument")

"""Every option with a value that it cannot have: one sentence, exit 2, and no server is asked.

Which values those are follows from what the help calls the value (its metavar). Of commands that share a request's
fields one is gone through, and of the others what is their own.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from vreplication.cli import main
from vreplication.mysql import session

SOURCE = ("--source", "mysql+pymysql://u@127.0.0.1:1/d")
TARGET = ("--target", "mysql+pymysql://u@127.0.0.1:1/e")
TOPIC = "kafka://127.0.0.1:1/topic"
COMMANDS: dict[str, tuple[str, ...]] = {
    "online-ddl": (*SOURCE, "--table", "t", "--alter", "ADD x INT", "--yes"),
    "move-tables": (*SOURCE, *TARGET, "--table", "t", "--yes"),
    "changefeed": (*SOURCE, "--sink", TOPIC, "--yes"),
    "submit online-ddl": (*SOURCE, "--table", "t", "--alter", "ADD x INT"),
    "scale": (*SOURCE, "w", "--partitions", "3"),
    "consume": (*TARGET, "--from", TOPIC),
    "lake": ("--from", TOPIC, "--to", "lake"),
    "lake-read": ("--from", "no-lake"),
    "lake-compact": ("--of", "no-lake"),
    "metrics": SOURCE,
    "status": SOURCE,
    "tune": (*SOURCE, "w", "--nice-ratio", "1"),
    "verify": (*SOURCE, "w"),
    "housekeeping": SOURCE,
}
WRONG = {
    "N": ("x", "-1", "9" * 25),
    "SECONDS": ("x", "-1", "inf"),
    "MS": ("x", "-1"),
    "MINUTES": ("-1", "inf"),
    "R": ("x", "-1", "inf"),
    "X": ("x", "-1", "inf"),
    "SHARE": ("-1", "2", "nan"),
    "SIZE": ("x", "0"),
    "TIME": ("soon", "2026-13-01T00:00:00Z"),
    "DAYS": ("x", "-1", "9" * 25),
    "HOST:PORT": ("x:0",),
    "HOST:PORT,…": ("", "x:0", "-1", "/no/such/path"),
    "URL": ("", "ftp://x", "::"),
    "NAME=N,…": ("", "x", "a=-1"),
    "ID": ("", "no good"),
    "SQL": ("", "DELETE FROM t"),
    "WINDOW": ("", "Someday", "02:00-04:00 Nowhere/X"),
    "CLAUSES": ("", " "),
    "DIRECTORY": ("", "/proc/nowhere/x"),
    "FILE": ("/nowhere/x",),
    "TABLE:COLUMNS": ("t", "t:"),
    "PATTERN": ("", "a.b.c"),
    "RULE": ("", "maybe"),
    "POLICY": ("maybe",),
    "GTIDS": ("", "maybe"),
    "MASTER": ("", "ftp://x"),
}
FREE = {("submit online-ddl", "--priority"), ("lake", "--to")}
"""A priority may be below 0, and a lake comes to be where it is asked for."""


class _StillThere(BaseException):
    """It went on to a server."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No process is started, no server asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def none(*_: Any, **__: Any) -> None:
        raise _StillThere

    def late(_: int, __: FrameType | None) -> None:
        raise _StillThere

    monkeypatch.setattr(subprocess.Popen, "__init__", none)
    monkeypatch.setattr(session.Connection, "__init__", none)
    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, each in group.commands.items():
        whole = f"{name} {word}".strip()
        yield from _commands(each, whole) if isinstance(each, TyperGroup) else [(whole, each)]


def _tried(command: str) -> Iterator[tuple[str, str]]:
    found = dict(_commands(typer.main.get_command(main.app)))[command]
    for option in found.params:
        flag = next((each for each in option.opts if each.startswith("--")), None)
        if flag is None or getattr(option, "is_flag", False) or (command, flag) in FREE:
            continue
        kind = str(option.metavar or "").removesuffix("|off").removesuffix("|auto").removeprefix("now|earliest|")
        yield from ((flag, value) for value in WRONG.get(kind, ()))


def _with(words: list[str], flag: str, value: str) -> list[str]:
    if flag not in words:
        return [*words, flag, value]
    at = words.index(flag) + 1
    return [*words[:at], value, *words[at + 1 :]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_value_is_one_sentence_and_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, words = [], [*command.split(), *COMMANDS[command]]
    for flag, value in _tried(command):
        try:
            signal.alarm(30)
            code: object = main.run(_with(words, flag, value))
        except _StillThere:
            code = "went on"
        said = [line for line in capsys.readouterr().err.splitlines() if "warning:" not in line]
        if code != 2 or len(said) != 1:
            wrong.append((flag, value, code, said))
    assert wrong == []


@pytest.mark.parametrize("command", ["online-ddl", "move-tables", "submit online-ddl"])
def test_replicas_whose_lag_counts_for_nothing_are_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*command.split(), *COMMANDS[command], "--lag-replicas", "r1:3306"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "warning:" not in line]
    assert said == [
        "vreplication: --lag-replicas says whose lag counts, but no lag is too much. Give --max-lag SECONDS with it."
    ]


def test_an_empty_name_is_not_the_directory_that_the_command_stands_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lake-read", "--from", ""]) == 2
    assert "Invalid value for '--from': it is empty." in capsys.readouterr().err


def test_bytes_that_are_no_text_are_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """As where a terminal in another encoding hands them over; a value, which may hold a password, is not shown."""
    assert main.run(["move-tables", *SOURCE, *TARGET, "--table", "caf\udce9"]) == 2
    assert capsys.readouterr().err.startswith("vreplication: Argument 7 is no text in UTF-8.")

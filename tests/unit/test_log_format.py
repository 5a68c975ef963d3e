"""The log as JSON lines: one object a line whatever is in it, and nothing else on standard error."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vreplication import about, masking
from vreplication.cli import logs, show
from vreplication.cli.main import run
from vreplication.cli.say import warn
from vreplication.engine.child import LOG_FORMAT, ReplicateProcess
from vreplication.errors import Refused
from vreplication.mysql.url import parse

NOBODY = ("--source", "mysql://u@127.0.0.1:1/d")


@pytest.fixture(autouse=True)
def text_again() -> Iterator[None]:
    yield
    logs.choose(logs.TEXT)
    logs.stop()
    about.enter("")
    masking.forget()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize("words", [("--log-format", "yaml", "status"), ("status", "--log-format=JSON"), ()])
def test_a_bad_format_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LOG_FORMAT, "" if words else "xml")
    assert run([*words, *NOBODY] if words else ["status", *NOBODY]) == 2
    assert "is no format of the log. Use text or json.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", *NOBODY, "--log-format", "json"), 1),
        (("--log-format=json", "status"), 2),
        (("statu", "--log-format", "json"), 2),
        (("status", "--source", "mysql://u:hidden-1@127.0.0.1:1/d", "--log-format", "json"), 1),
    ],
)
def test_what_ends_a_command_is_an_object(
    words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VREPLICATION_SOURCE", raising=False)
    assert run(words) == code
    told = lines(capsys)
    assert told[-1]["level"] == "error"
    assert "hidden-1" not in str(told)


def test_a_traceback_and_a_line_feed_are_one_line_and_masked(capsys: pytest.CaptureFixture[str]) -> None:
    masking.remember("hidden-secret")
    logs.choose(logs.JSON)
    try:
        raise ValueError("first\nIDENTIFIED BY 'abc' hidden-secret")
    except ValueError:
        logging.getLogger("vreplication.x").exception("it\nfailed: %s", "hidden-secret")
    logging.getLogger("py4j").warning("not %s", object)
    warnings.warn("an old way", stacklevel=1)
    warn("a word of ours")
    thread = threading.Thread(target=lambda: 1 // 0)
    thread.start()
    thread.join()
    failed, foreign, old, ours, ended = lines(capsys)
    assert (failed["message"], failed["level"]) == ("it\nfailed: ***", "error")
    assert "ValueError" in failed["error"]
    assert "hidden-secret" not in str(failed)
    assert "'abc'" not in failed["error"]
    assert (foreign["logger"], ours["level"], ours["message"]) == ("py4j", "warning", "a word of ours")
    assert "an old way" in old["message"]
    assert "ZeroDivisionError" in ended["error"]


def test_a_line_tells_of_its_threads_workflow_and_phase(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    logs.choose(logs.JSON)
    file = logs.start("all")
    about.stands("all.1", "copying")

    def work() -> None:
        about.this_thread("all.1")
        logging.getLogger("vreplication.x").info("one")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    show.Lines().note("all of them")
    told = lines(capsys)
    assert [(each["workflow"], each["phase"], each["message"]) for each in told] == [
        ("all.1", "copying", "one"), ("all", None, "all of them"),
    ]  # fmt: skip
    assert file
    assert [json.loads(line) for line in file.read_text().splitlines()] == told
    assert logs.of_children() == tmp_path / "vreplication" / "all.cli.children.log"


def test_catch_up_is_told_to_write_json_where_we_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[dict[str, Any]] = []

    class Started:
        def __init__(self, words: list[str], **how: Any) -> None:
            started.append(how)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("vreplication.engine.child.subprocess.Popen", Started)
    monkeypatch.setattr(logs, "_descriptor", lambda: 7)
    logs.choose(logs.JSON)
    ReplicateProcess(parse(NOBODY[1]), "w").load()
    logs.choose(logs.TEXT)
    ReplicateProcess(parse(NOBODY[1]), "w").load()
    as_json, as_text = started
    assert (as_json["stderr"], as_json["env"][LOG_FORMAT]) == (7, "json")
    assert (as_text["stderr"], as_text["env"]) == (as_text["stdout"], None)
    with pytest.raises(Refused):
        logs.choose("both")

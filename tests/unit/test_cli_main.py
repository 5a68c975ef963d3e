"""The program from the outside: options, exit codes, one sentence for every error. The flow below is a stand-in."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vreplication.planning
import vreplication.workflows.online_ddl
from vreplication import __version__, masking
from vreplication.cli import invocation, logs, main, online_ddl, operate, options, outcome
from vreplication.engine.result import Result
from vreplication.errors import Refused, Transient, VReplicationError
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot
from vreplication.state.verdicts import Verdict
from vreplication.workflows import lookup
from vreplication.workflows.lookup import Found

PASSWORD = "correct-horse"
SOURCE = "mysql+pymysql://joe@127.0.0.1:1/shop"
MOVE = ["move-tables", "--table", "orders"]
DDL = ["online-ddl", "--table", "orders", "--alter", "ADD x INT"]
COMPLETE = Result(event="complete", workflow="w", rows_copied=10, events_applied=3, write_stall_millis=5.0)


class Calls(list[tuple[str, dict[str, Any]]]):
    """What was called with what; `answers` by name: a value, or something to raise."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Any] = {}

    def __call__(self, name: str, **given: Any) -> Any:
        self.append((name, given))
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer(**given) if callable(answer) else answer


class _Watcher:
    """Knows nothing of a server."""

    def __init__(self, url: SourceUrl, workflow: str, *_: Any) -> None:
        self.latest = Snapshot(workflow=workflow, phase=Phase.PLANNING)

    def __enter__(self) -> _Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def settle(self) -> None:
        return None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Calls]:
    """The commands with the flow below them replaced; source and password in the environment."""
    made = Calls()
    for package, name, functions in _flow(made):
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", module)
        monkeypatch.setattr(package, name, module, raising=False)
    for room in (online_ddl, operate):
        monkeypatch.setattr(room, "watch", _Watcher)
    monkeypatch.setattr(lookup, "find", lambda servers, workflow: Found(home=servers.given[0]))
    monkeypatch.setattr(lookup, "leaving", lambda session: ())
    monkeypatch.setattr("vreplication.state.layout.check_readable", lambda session: None)
    monkeypatch.setattr("vreplication.progress.moved.find", lambda session, workflow: None)
    monkeypatch.setattr("vreplication.state.feeds.find", lambda session, workflow: None)
    monkeypatch.setattr("vreplication.state.journal.read", lambda session, workflow: [])
    monkeypatch.setattr("vreplication.progress.fed.read", lambda session, workflow=None: {})
    for path in ("online_ddl", "status"):
        monkeypatch.setattr(
            f"vreplication.cli.{path}.connect", lambda url, **_: made("connect", url=url) or _NoSession()
        )
    monkeypatch.setattr("vreplication.cli.status.read", lambda session, workflow: made("status", workflow=workflow))
    monkeypatch.setattr("vreplication.cli.status.find", lambda session, workflow: None)
    monkeypatch.setattr("vreplication.cli.status.journal.read", lambda session, workflow: [])
    monkeypatch.setattr("vreplication.cli.status.read_all", lambda session: made("statuses"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(options.SOURCE, SOURCE)
    monkeypatch.setenv(options.PASSWORD, PASSWORD)
    for name in (main.DEBUG, options.TARGET, options.TARGET_PASSWORD):
        monkeypatch.delenv(name, raising=False)
    yield made
    logs.stop()
    masking.forget()


class _NoSession:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _flow(calls: Calls) -> list[tuple[ModuleType, str, dict[str, Callable[..., Any]]]]:
    def act(name: str) -> Callable[..., Any]:
        return lambda url, workflow, by, source=None: calls(name, url=url, workflow=workflow, by=by)

    workflows = {name: act(name) for name in ("pause", "release", "cancel", "cleanup")}
    workflows |= {
        "resume": lambda url, workflow, by, stop, notify, source, replica: calls(
            "resume", url=url, workflow=workflow, stop=stop
        ),
        "verify": lambda url, workflow, master, stop, source: calls("verify", workflow=workflow, master=master),
    }
    run = {"run": lambda spec, url, *, stop, notify, by: calls("run", spec=spec, url=url, stop=stop, notify=notify)}
    return [
        (vreplication.workflows, "operate", workflows),
        (vreplication.workflows.online_ddl, "run", run),
        (
            vreplication.workflows.online_ddl,
            "ending",
            {"note_told": lambda url, result: calls("note_told", result=result)},
        ),
        (vreplication.planning, "plan", {"make_plan": lambda session, spec, **_: calls("make_plan", spec=spec)}),
        (
            vreplication.planning,
            "explain",
            {"explain": lambda plan: "the plan in words", "plan_json": lambda plan: {"copy_path": "rows"}},
        ),
    ]


Capture = pytest.CaptureFixture[str]


def test_a_run_ends_with_its_words_and_0(calls: Calls, capsys: Capture) -> None:
    calls.answers["run"] = COMPLETE
    assert main.run([*DDL, "--yes"]) == 0
    captured = capsys.readouterr()
    assert "planning" in captured.out
    assert "Complete: workflow w, 10 rows copied, 3 changes applied." in captured.out
    assert captured.err == ""


def test_the_request_reaches_the_flow(calls: Calls) -> None:
    calls.answers["run"] = COMPLETE
    given = ["--workflow", "w-1", "--cutover", "manual", "--copy-parallelism", "3", "--chunk-rows", "1000"]
    given += ["--chunk-millis", "250", "--copy-path", "rows", "--spark-master", "local[2]", "--retired", "drop"]
    given += ["--xa-wait", "5", "--ignore-old-snapshots", "--allow-nullable-key", "--on-duplicate", "keep-last"]
    assert main.run([*DDL, *given, "--yes", "--json"]) == 0
    spec, url = calls[0][1]["spec"], calls[0][1]["url"]
    assert (spec.table, spec.alter, spec.workflow) == ("orders", "ADD x INT", "w-1")
    assert (str(spec.cutover), spec.copy_parallelism, spec.chunk_rows) == ("manual", 3, 1000)
    assert (spec.chunk_millis, str(spec.copy_path), spec.spark_master) == (250, "rows", "local[2]")
    assert (str(spec.retired), spec.xa_wait_seconds, spec.ignore_old_snapshots) == ("drop", 5, True)
    assert spec.allow_nullable_key
    assert spec.on_duplicate == "keep-last"
    assert (url.user, url.password, url.database) == ("joe", PASSWORD, "shop")


def test_a_workflow_id_is_made_when_none_is_given(calls: Calls) -> None:
    calls.answers["run"] = COMPLETE
    main.run([*DDL, "--yes"])
    assert calls[0][1]["spec"].workflow.startswith("orders-")


def test_json_output_is_json_lines_and_nothing_else(calls: Calls, capsys: Capture) -> None:
    def run(notify: Callable[[str], None], **_: Any) -> Result:
        notify("waiting for connection 8")
        return COMPLETE

    calls.answers["run"] = run
    assert main.run([*DDL, "--yes", "--json"]) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["event"] for line in lines] == ["progress", "complete"]
    assert captured.err == ""


@pytest.mark.parametrize(
    ("event", "code"), [("refused", 2), ("failed", 1), ("cancelled", 3), ("interrupted", 130), ("complete", 0)]
)
def test_exit_codes(calls: Calls, capsys: Capture, event: str, code: int) -> None:
    calls.answers["run"] = Result(event=event, workflow="w", reason="why", exit_code=code)
    assert main.run([*DDL, "--yes", "--json"]) == code
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["event"] == event


def test_a_signal_interrupts_with_the_command_that_goes_on(calls: Calls, capsys: Capture) -> None:
    import os
    import signal

    def run(stop: threading.Event, spec: Any, **_: Any) -> Result:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(10)
        return Result(event="interrupted", workflow=spec.workflow, resume_command="other", exit_code=130)

    calls.answers["run"] = run
    assert main.run([*DDL, "--yes", "--json"]) == 130
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["resume_command"] == (
        f"vreplication online-ddl --table orders --alter 'ADD x INT' --yes --json --workflow {line['workflow']}"
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_without_a_terminal_the_command_is_the_agreement(calls: Calls, more: list[str]) -> None:
    calls.answers["run"] = COMPLETE
    assert main.run([*DDL, *more]) == 0
    assert [name for name, _ in calls] == ["run", "note_told"]


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 2)])
def test_in_a_terminal_it_asks(calls: Calls, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int) -> None:
    asked: list[str] = []
    calls.answers["run"] = COMPLETE
    monkeypatch.setattr(invocation, "is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text) or answer)
    assert main.run(DDL) == code
    assert "ALTER TABLE orders ADD x INT" in asked[0]
    assert PASSWORD not in asked[0]
    assert [name for name, _ in calls] == (["run", "note_told"] if answer else [])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["online-ddl", "--table", "t", "--yes"], "No ALTER is given."),
        ([*DDL, "--chunk-rows", "many", "--yes"], "Invalid value for '--chunk-rows': it has to be a whole number"),
        ([*DDL, "--chunk-rows", "0", "--yes"], "chunk"),
        ([*DDL, "--cutover", "soon", "--yes"], "cutover"),
        ([*DDL, "--workflow", "no good", "--yes"], "Workflow id 'no good' is not valid."),
        ([*DDL, "--source", "postgresql://joe@h/db", "--yes"], "not MySQL or MariaDB"),
        ([*DDL, "--source-file", "/nowhere/at-all", "--yes"], "cannot be read"),
        (["frobnicate"], "No such command 'frobnicate'."),
        (
            [*DDL, "--execute"],
            "--execute. Leave it out: the command runs, and `vreplication plan` before it is the dry run.",
        ),
        ([*DDL, "--postpone-cut-over-flag-file=/x"], "Take --cutover manual, and `vreplication release ID`"),
        (["status", "--execute"], "No such option: --execute. See `vreplication status --help`."),
        (["pause"], "Missing argument 'ID'."),
        (["pause", "w", "x"], "unexpected extra argument"),
        (["pause", "../etc"], "Workflow id '../etc' is not valid."),
        ([*MOVE, "--source", SOURCE], "No target is given."),
        ([*MOVE, "--target", "postgresql://h/db"], "The target's URL is of kind 'postgresql'"),
        ([*MOVE, "--target-file", "/nowhere/at-all"], "The target file '/nowhere/at-all' cannot be read"),
        (["move-tables", "--target", SOURCE], "no table is named"),
        ([*MOVE, "--target", SOURCE, "--all-tables"], "choose one"),
        ([*MOVE, "--target", SOURCE, "--exclude", "x"], "exclude goes with all tables only"),
        ([*MOVE, "--target", SOURCE, "--workflow", "no good"], "Workflow id 'no good' is not valid."),
        ([*DDL, "--allow-nullable-key=maybe"], "'--allow-nullable-key' does not take a value"),
        (["reverse"], "Missing argument 'ID'."),
        (["complete", "../etc"], "Workflow id '../etc' is not valid."),
    ],
)
def test_bad_input_is_one_sentence_and_2(calls: Calls, capsys: Capture, args: list[str], sentence: str) -> None:
    assert main.run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert sentence.lower() in captured.err.lower()
    assert calls == []


def test_no_source_is_said(calls: Calls, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.SOURCE)
    assert main.run(["status"]) == 2
    assert "No source is given." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code", "event"),
    [(Refused("There is none."), 2, "refused"), (Transient("The server is away."), 1, "failed")],
)
def test_errors_of_ours_are_a_sentence(
    calls: Calls, capsys: Capture, failure: VReplicationError, code: int, event: str
) -> None:
    calls.answers["pause"] = failure
    assert main.run(["pause", "w", "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"vreplication: {failure}\n"
    assert json.loads(captured.out)["event"] == event


@pytest.mark.parametrize("is_debug", [False, True])
def test_an_unexpected_error_is_a_sentence_with_the_log(
    calls: Calls, capsys: Capture, monkeypatch: pytest.MonkeyPatch, is_debug: bool
) -> None:
    monkeypatch.setenv(main.DEBUG, "1" if is_debug else "0")
    calls.answers["run"] = KeyError(f"something with {PASSWORD}")
    assert main.run([*DDL, "--workflow", "w-1", "--yes", "--json"]) == 1
    captured = capsys.readouterr()
    path = logs.current()
    assert path is not None
    assert captured.err.startswith("vreplication: Unexpected error: KeyError: 'something with ***'. The log is ")
    assert str(path) in captured.err
    assert ("Traceback" in captured.err) is is_debug
    log = path.read_text()
    assert "Traceback" in log
    assert json.loads(captured.out.splitlines()[-1])["event"] == "failed"
    assert PASSWORD not in captured.out + captured.err + log


def test_a_password_in_argv_is_warned_about(calls: Calls, capsys: Capture) -> None:
    calls.answers["statuses"] = []
    assert main.run(["status", "--source", f"mysql://joe:{PASSWORD}@h/db"]) == 0
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert "warning: A password in --source" in captured.err
    assert PASSWORD not in captured.err + captured.out


@pytest.mark.parametrize("content", [PASSWORD, f"mysql://joe:{PASSWORD}@h/db\n"])
def test_a_source_file_holds_a_password_or_an_url(
    calls: Calls, capsys: Capture, tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(options.PASSWORD, "another")
    calls.answers["statuses"] = []
    path = tmp_path / "source"
    path.write_text(content)
    path.chmod(0o600)
    assert main.run(["status", "--source-file", str(path)]) == 0
    assert calls[0][1]["url"].password == PASSWORD
    assert capsys.readouterr().err == ""
    path.chmod(0o644)
    monkeypatch.setenv(options.SOURCE, SOURCE)
    assert main.run(["status", "--source-file", str(path)]) == 0
    assert "can be read by other users" in capsys.readouterr().err


def test_no_secret_stays_in_the_environment(calls: Calls) -> None:
    import os

    calls.answers["statuses"] = []
    main.run(["status"])
    assert options.PASSWORD not in os.environ
    assert options.SOURCE not in os.environ


def test_the_plan_is_shown_and_refusals_exit_with_2(calls: Calls, capsys: Capture) -> None:
    class Plan:
        refusals: tuple[str, ...] = ()

    calls.answers["make_plan"] = Plan()
    assert main.run(["plan", *DDL]) == 0
    assert capsys.readouterr().out == "the plan in words\n"
    Plan.refusals = ("triggers",)
    assert main.run(["plan", *DDL, "--source", SOURCE, "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {"event": "plan", "copy_path": "rows"}


@pytest.mark.parametrize(
    ("given", "looked_at"),
    [([], ["shop"]), (["--target", "mysql://eve@g/store"], ["store", "shop"])],
)
def test_of_two_servers_the_target_is_looked_at_first(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, given: list[str], looked_at: list[str]
) -> None:
    seen: list[str] = []

    def find(servers: lookup.Servers, workflow: str) -> Found:
        seen.extend(url.database for url in servers.given)
        return Found(home=servers.given[0])

    monkeypatch.setattr(lookup, "find", find)
    assert main.run(["pause", "w-1", *given]) == 0
    assert seen == looked_at
    assert calls[0][1]["url"].database == looked_at[0]


def test_a_target_alone_is_enough_for_an_act(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in (options.SOURCE, options.PASSWORD):
        monkeypatch.delenv(name)
    monkeypatch.setenv(options.TARGET, "mysql://eve@g/store")
    monkeypatch.setenv(options.TARGET_PASSWORD, PASSWORD)
    assert main.run(["release", "w-1"]) == 0
    assert (calls[0][1]["url"].database, calls[0][1]["url"].password) == ("store", PASSWORD)
    assert not {options.TARGET, options.TARGET_PASSWORD} & set(os.environ)


def test_no_password_is_in_the_command_that_goes_on() -> None:
    given = ["move-tables", "--target", f"mysql://eve:{PASSWORD}@g/store", f"--source=mysql://joe:{PASSWORD}@h/shop"]
    words = outcome.same_command([*given, "--on-switch", f"https://u:{PASSWORD}@h/x"], "w-1")
    assert PASSWORD not in words
    assert words.endswith("--on-switch https://u@h/x --workflow w-1")


@pytest.mark.parametrize("act", ["pause", "release"])
def test_acts_reach_the_flow(calls: Calls, capsys: Capture, act: str) -> None:
    assert main.run([act, "w-1"]) == 0
    assert calls[0][0] == act
    assert calls[0][1]["workflow"] == "w-1"
    assert "@" in calls[0][1]["by"]
    assert capsys.readouterr().out


def test_cancel_succeeds_when_the_workflow_is_cancelled(calls: Calls) -> None:
    calls.answers["cancel"] = Result(event="cancelled", workflow="w", exit_code=3)
    assert main.run(["cancel", "w"]) == 0


def test_cancel_tells_what_could_not_be_removed(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.answers["cancel"] = Result(event="failed", workflow="w", reason="no", exit_code=1)
    assert main.run(["cancel", "w"]) == 1


@pytest.mark.parametrize("act", ["cancel", "cleanup", "reverse", "complete"])
def test_what_removes_asks_in_a_terminal(calls: Calls, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    monkeypatch.setattr(invocation, "is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: False)
    assert main.run([act, "w"]) == 2
    assert calls == []


def test_cleanup_names_what_is_gone(calls: Calls, capsys: Capture) -> None:
    calls.answers["cleanup"] = ["shop.t__vr_old_abcdef"]
    assert main.run(["cleanup", "w"]) == 0
    assert capsys.readouterr().out == "Removed shop.t__vr_old_abcdef.\n"


def test_resume_of_a_living_workflow_and_of_a_dead_one(calls: Calls, capsys: Capture) -> None:
    assert main.run(["resume", "w"]) == 0
    assert "Resumed" in capsys.readouterr().out
    calls.answers["resume"] = Result(event="interrupted", workflow="w", resume_command="x", exit_code=130)
    assert main.run(["resume", "w", "--source", SOURCE, "--json"]) == 130
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["resume_command"] == f"vreplication resume w --source {SOURCE} --json"


@pytest.mark.parametrize(("verdict", "code"), [("clean", 0), ("bad", 1)])
def test_verify_tells_the_verdict(calls: Calls, capsys: Capture, verdict: str, code: int) -> None:
    calls.answers["verify"] = Verdict(
        verdict=verdict, rows_compared=1000, mismatches=code, repaired=0, hot_keys=(("1",),), details="key 7"
    )
    assert main.run(["verify", "w", "--json"]) == code
    assert calls[0][1] == {"workflow": "w", "master": "local[*]"}
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["verdict"], line["rows_compared"], line["mismatches"], line["hot_keys"]) == (verdict, 1000, code, 1)


def comes_to_its_end(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """In three looks."""
    phases = iter([Phase.COPYING, Phase.VERIFYING, Phase.COMPLETE])
    calls.answers["status"] = lambda **_: Snapshot(workflow="w", phase=next(phases))
    monkeypatch.setattr("vreplication.cli.status.WATCH_SECONDS", 0.0)


def test_status_of_one_and_its_watch_until_it_has_ended(
    calls: Calls, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes_to_its_end(calls, monkeypatch)
    assert main.run(["status", "w", "--watch", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["phase"] for line in lines] == ["copying", "verifying", "complete"]


def test_a_terminal_that_draws_nothing_in_place_shows_each_look(
    calls: Calls, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn in place, only the last one would be shown there."""
    comes_to_its_end(calls, monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert main.run(["status", "w", "--watch"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("w  ")] == [
        "w  copying",
        "w  verifying",
        "w  complete",
    ]


def test_ctrl_c_ends_a_watch_with_130(calls: Calls, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.answers["statuses"] = [Snapshot(workflow="w", phase=Phase.COPYING)]

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vreplication.cli.status.time.sleep", interrupted)
    assert main.run(["status", "--watch"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_help_and_version(calls: Calls, capsys: Capture) -> None:
    for args in (["--help"], ["online-ddl", "--help"], ["plan", "online-ddl", "--help"]):
        assert main.run(args) == 0
        assert "vreplication" in capsys.readouterr().out
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"vreplication {__version__}\n"
    assert main.run(["--help"]) == 0
    assert "replicate " not in capsys.readouterr().out

"""Words of the command line, each with what it becomes: of options that other tests know as a field alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from vreplication import masking
from vreplication.cli import backfill, changefeed, hooks, lake, logs, main, move_tables, online_ddl, options, submit
from vreplication.feed.lake import manifest, spark_reading
from vreplication.mysql.url import parse, parse_replicas
from vreplication.scheduler import queueing

DDL, MOVE = "online-ddl --table t --alter 'ADD x INT'", "move-tables --table t"
FEED, SUBMIT = "changefeed --sink kafka://h:9092/t", "submit move-tables --table t --source-conn-id old"
BACKFILL, READ = "backfill nightly --from 2026-01-01 --to 2026-01-02", "lake-read --from /lake --table shop.t"
HOOK = "pause w --webhook https://h/x"
JOBS = "jobs: [{name: nightly, source: a, target: b, table: t, time_column: at, mirror: true}]"
PASSWORD, SECRET = "pw-of-a-server", "0123456789abcdef-secret"
LOGIN = f"mysql://u:{PASSWORD}@r1:3307"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """What commands have made of their words; nothing of what they are to do is done."""
    found: list[Any] = []
    stands_for: dict[tuple[Any, str], Callable[..., Any]] = {
        (queueing, "submit"): lambda session, entry, by: found.append(SimpleNamespace(**entry.spec)),
        (submit, "connect"): nullcontext,
        (backfill, "_run"): lambda job, *_, **__: found.append(job) or 0,
        (lake, "_spark"): lambda *_: nullcontext(lambda: None),
        (lake, "_hand_out"): lambda rows, format, to, stop: found.append(SimpleNamespace(format=format, to=str(to))),
        (manifest.Store, "open"): lambda self: None,
        (spark_reading, "find"): lambda *_: SimpleNamespace(alters=()),
        (spark_reading, "state"): lambda *_: None,
        (hooks, "Deliverer"): lambda hook, url: found.append(hook) or SimpleNamespace(start=int, end=int),
    }
    for (room, name), function in stands_for.items():
        monkeypatch.setattr(room, name, function)
    for name, value in {options.SOURCE: "mysql://u@127.0.0.1:1/d", options.TARGET: "mysql://u@127.0.0.1:1/e"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield found
    logs.stop()
    masking.forget()


def call(seen: list[Any], words: list[str]) -> None:
    """A command of the program; of those that are made from a spec what is handed to the work."""
    kinds = {"online-ddl": online_ddl.command, "move-tables": move_tables.command, "changefeed": changefeed.command}
    if words[0] not in kinds:
        main.run(words)
        return
    app = typer.Typer()
    app.command()(kinds[words[0]](lambda request: seen.append(request) or 0))
    app(words[1:], standalone_mode=False)


@pytest.mark.parametrize(
    ("command", "words", "content", "field", "value"),
    [
        (DDL, "--verify-every 30", "", "spec.verify_every_minutes", 30.0),
        (DDL, "--max-history-list 5000", "", "spec.max_history_list", 5000),
        (DDL, "--lag-replicas-file FILE", LOGIN, "spec.lag_replicas", "r1:3307"),
        (DDL, "--lag-replicas-file FILE", LOGIN, "url.replicas", parse_replicas(LOGIN)),
        (MOVE, "--target-file FILE", f"{LOGIN}/e", "route.target", parse(f"{LOGIN}/e")),
        (FEED, "--commit-interval 900", "", "spec.commit_interval", 900),
        (FEED, "--commit-gap 50", "", "spec.commit_gap", 50),
        (FEED, "--sink-file FILE", PASSWORD, "password", PASSWORD),
        (BACKFILL, "--file FILE", JOBS, "mirror", True),
        (BACKFILL, "--file FILE --no-mirror", JOBS, "mirror", False),
        (SUBMIT, "--replica-conn-id near", "", "replica_conn_id", "near"),
        (HOOK, "--webhook-secret-file FILE", SECRET, "url", "https://h/x"),
        (HOOK, "--webhook-secret-file FILE", SECRET, "secret", SECRET.encode()),
        (READ, "", "", "format", "json"),
        (READ, "--format csv --to /new", "", "format", "csv"),
    ],
)
def test_a_word_becomes_a_value(
    seen: list[Any], tmp_path: Path, command: str, words: str, content: str, field: str, value: object
) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    file.chmod(0o600)
    call(seen, shlex.split(f"{command} {words.replace('FILE', str(file))}"))
    (made,) = seen
    assert attrgetter(field)(made) == value


TWO = "mysql://u@a:1/d mysql://u@b:1/e"


def test_a_feed_that_was_begun_with_several_sources_of_the_environment_is_taken_on_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(PASSWORD)
    file.chmod(0o600)
    monkeypatch.setenv(options.SOURCE, TWO)
    servers, further = options.with_further(None, [file], None, None)
    assert [(each and each.host, each and each.password) for each in (servers.source, *further)] == [
        ("a", PASSWORD),
        ("b", PASSWORD),
    ]
    monkeypatch.setenv(options.SOURCE, TWO)
    servers, further = options.with_further(["mysql://u@c:1/d"], None, None, None)
    assert (servers.source and servers.source.host, further) == ("c", ())
    masking.forget()


def test_several_servers_are_not_taken_for_a_database_of_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(options.SOURCE, TWO)
    assert main.run(["status"]) == 2
    assert f"{options.SOURCE} names several servers. Give the one that is meant" in capsys.readouterr().err

"""Catch-up's process, loaded before it is needed: told nothing, it leaves nothing; when it dies, another is started."""

from __future__ import annotations

import dataclasses
import stat
import sys
from pathlib import Path

import pytest

from tests.support.flow import wait_until
from vreplication.engine import child
from vreplication.engine.child import ReplicateProcess, log_path
from vreplication.mysql.url import SourceUrl

URL = SourceUrl(host="127.0.0.1", port=1, user="u", password="secret", database="d")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ReplicateProcess:
    """In the place of the program one that says what it was told, and goes when its input ends."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nread line && echo told && cat\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return ReplicateProcess(URL, "w")


def told() -> int:
    return log_path("w", "replicate").read_text().count("told")


def test_loaded_and_not_needed(process: ReplicateProcess) -> None:
    process.load()
    process.keep_alive()
    assert process.pid
    process.end()
    assert process.pid is None
    assert not log_path("w", "replicate").exists()


def test_loaded_it_is_the_one_that_starts(process: ReplicateProcess) -> None:
    process.load()
    loaded = process.pid
    process.start()
    process.start()
    assert process.pid == loaded
    wait_until(lambda: told() == 1, "it is not told")
    process.end()
    assert told() == 1


@pytest.mark.parametrize("is_seen", [True, False])
def test_killed_while_it_was_loading(process: ReplicateProcess, is_seen: bool) -> None:
    process.load()
    loaded = process._process
    assert loaded
    loaded.kill()
    if is_seen:
        loaded.wait()
        # It is not needed yet.
        process.keep_alive()
        assert process.pid == loaded.pid
    process.start()
    wait_until(lambda: (process.keep_alive(), told())[1] == 1, "no other one is told")
    assert process.pid != loaded.pid
    process.end()


def test_the_url_is_in_no_argument(process: ReplicateProcess) -> None:
    process.load()
    process.start()
    assert process._process
    assert URL.password not in str(process._process.args)
    with_replica = dataclasses.replace(URL, replicas=(dataclasses.replace(URL, port=1, tls=(("ssl_ca", "/x"),)),))
    assert child.from_line(child.to_line(with_replica)) == with_replica
    process.end()

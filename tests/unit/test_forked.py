"""A forked command (tests/support/forked.py) is to a test what a started one is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.flow import wait_until
from tests.support.forked import Forked, fork
from tests.support.forked_catch_up import AHEAD
from tests.support.run_ddl import ROOT, children, is_gone

WORDS = ("online-ddl", "--table", "t", "--alter", "ENGINE=InnoDB", "--yes", "--json")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[list[Forked]]:
    """Two commands that wait for a server which takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://u:p@127.0.0.1:{silent.getsockname()[1]}/d"
        commands = [fork(WORDS, {"VREPLICATION_SOURCE": url, "XDG_STATE_HOME": str(tmp_path)}, ROOT) for _ in range(2)]
        yield commands
        for command in commands:
            command.kill()


def test_it_tells_what_it_wrote_and_how_it_ended() -> None:
    command = fork(["--version"], os.environ, ROOT)
    out, err = command.communicate(30)
    assert (command.returncode, err) == (0, "")
    assert out.startswith("vreplication ")


def test_its_environment_is_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VREPLICATION_SOURCE", "mysql://u:p@127.0.0.1:1/d")
    out, _ = (command := fork(["status", "--json"], {}, ROOT)).communicate(30)
    assert command.returncode == 2
    assert json.loads(out)["reason"].startswith("No source is given.")


def test_a_killed_one_takes_what_waits_for_it_along(waiting: list[Forked]) -> None:
    command = waiting[0]
    wait_until(lambda: len(children(command.pid)) == AHEAD, "nothing waits to be its catch-up")
    beside = children(command.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        command.communicate(0.05)
    command.kill()
    command.communicate(30)
    assert (command.poll(), is_gone(command.pid)) == (-signal.SIGKILL, True)
    wait_until(lambda: all(map(is_gone, beside)), "it waits for a command that has gone")
    assert waiting[1].poll() is None


def test_it_holds_nothing_of_another(waiting: list[Forked]) -> None:
    """What ends a catch-up is the end of a pipe: what waits to be one has its streams and one socket, and no more."""
    command = waiting[1]
    wait_until(lambda: len(children(command.pid)) == AHEAD, "too few wait to be its catch-up")
    for beside in children(command.pid):
        wait_until(lambda pid=beside: len(os.listdir(f"/proc/{pid}/fd")) == 4, "it holds what is another's")  # type: ignore[misc]

"""What is left of an Airflow whose owner was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.deployment import Deployment, began, descendants, is_there

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, which both wait for ever."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_it_is_ended_with_its_tasks(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    where = Deployment(home=tmp_path)
    where.var.mkdir()
    tree = [left.pid, *descendants(left.pid)]
    assert len(tree) == 2
    where.noted.write_text(json.dumps({"scheduler": [left.pid, began(left.pid)]}))
    where.end_left_over()
    assert [pid for pid in tree if is_there(pid)] == []
    assert not where.noted.exists()


def test_a_number_that_is_somebody_elses_now_is_left_alone(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    where = Deployment(home=tmp_path)
    where.var.mkdir()
    where.noted.write_text(json.dumps({"scheduler": [left.pid, (began(left.pid) or 0) - 1], "triggerer": [0, None]}))
    where.end_left_over()
    assert is_there(left.pid)
    assert is_there(os.getpid())


def test_nothing_was_left(tmp_path: Path) -> None:
    Deployment(home=tmp_path).end_left_over()

"""What is left of an Airflow whose owner was killed; what is asked of one whose database is locked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.parametrize(
    ("answers", "end"),
    [
        ([(500, {"detail": {"reason": "Database error"}}), (200, {"id": 1})], (200, {"id": 1})),
        ([(500, {"detail": "something else"}), (200, {})], (500, {"detail": "something else"})),
        ([(409, {"detail": "is there"})], (409, {"detail": "is there"})),
    ],
)
def test_what_a_locked_database_refused_is_asked_again(
    tmp_path: Path, answers: list[tuple[int, object]], end: tuple[int, object]
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, found = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_words: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert Deployment(home=tmp_path, port=server.server_port).call("POST", "/x", user=None) == end
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""Events at a receiver that fails, hangs and lies, with senders that are killed: each at least once, in good order."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, wait_until
from vreplication.engine import webhooks
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout
from vreplication.state import webhooks as table

pytestmark = pytest.mark.either

SECRET = "a secret of at least sixteen"


class Receiver(ThreadingHTTPServer):
    """answer: a status, or what finds one for what is told; None: it hangs."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answer: Any = 200
        self.taken: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        told = json.loads(body)
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
        assert self.headers["webhook-signature"] == f"v1,{expected}"
        assert self.headers["webhook-id"] == told["id"]
        answer = self.server.answer(told) if callable(self.server.answer) else self.server.answer
        if answer is None:
            self.server.is_over.wait(30)
            return
        (self.server.taken if answer == 200 else self.server.refused).append(told)
        self.send_response(answer)
        self.send_header("location", self.server.url)
        self.end_headers()

    def do_GET(self) -> None:
        """Where a redirect that is followed would end, as if all were well."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhooks, "_PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(webhooks, "_LONGEST_PAUSE_SECONDS", 0.2)
    with Receiver() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.is_over.set()
        found.shutdown()


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        layout.install(opened)
        yield opened


def sender(database: Database, receiver: Receiver) -> webhooks.Deliverer:
    made = webhooks.Deliverer(webhooks.make(receiver.url, SECRET), database.url)
    made.start()
    return made


def told(receiver: Receiver, workflow: str) -> list[str]:
    """Each once, as a receiver that keeps the ids sees them."""
    each = {entry["id"]: entry["event"] for entry in receiver.taken if entry["workflow"] == workflow}
    return list(each.values())


@pytest.mark.usefixtures("quick")
def test_a_run_is_told_to_its_end_by_whoever_comes_next(database: Database, receiver: Receiver) -> None:
    """The receiver is away from the start on, and the run ends all the same; what was left comes with the next one."""
    app = connect(database.app_url)
    app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    receiver.answer = 503
    first = sender(database, receiver)
    run = begin(database, "t", "ADD COLUMN z INT")
    assert run.result().event == "complete"
    wait_until(lambda: bool(receiver.refused), "nothing is sent")
    first.end(0.1)
    assert receiver.taken == []
    receiver.answer = 200
    second = sender(database, receiver)
    with connect(database.url) as session:
        expected = [entry["event"] for entry in journal.read(session, run.workflow)]
        assert {"prepared", "copy begun", "copied", "gate reached", "switched", "complete"} <= set(expected)
        wait_until(lambda: told(receiver, run.workflow) == expected, f"not all are told: {receiver.taken}")
        second.end()
        third = sender(database, receiver)
        journal.write(session, run.workflow, "one more", "IDENTIFIED BY 'hidden'", actor="ann")
        wait_until(lambda: told(receiver, run.workflow)[-1] == "one more", "the next is not told")
    third.end()
    last = receiver.taken[-1]
    assert (last["actor"], last["details"], last["at"][-1]) == ("ann", "IDENTIFIED BY '***'", "Z")
    assert len(receiver.taken) == len({entry["id"] for entry in receiver.taken}), "told twice without a crash"


def test_an_entry_that_is_committed_late_is_not_lost(session: Session, database: Database, receiver: Receiver) -> None:
    """Its id is smaller than one that is delivered already."""
    sending = sender(database, receiver)
    with connect(database.url) as late:
        late.execute_raw("BEGIN")
        journal.write(late, "w", "late", actor="ann")
        journal.write(session, "w", "early", actor="ann")
        wait_until(lambda: told(receiver, "w") == ["early"], "it is not told")
        table.put_together(session, webhooks.make(receiver.url, SECRET).key)
        late.execute_raw("COMMIT")
        wait_until(lambda: told(receiver, "w") == ["early", "late"], "it is lost")
    session.execute_raw(f"UPDATE {SIDECAR}.journal SET at = at - INTERVAL 1 HOUR")
    sending.end()
    table.put_together(session, webhooks.make(receiver.url, SECRET).key)
    assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.webhook_delivered") == 0
    journal.write(session, "w", "last", actor="ann")
    sender(database, receiver).end()
    assert told(receiver, "w") == ["early", "late", "last"]


def test_what_is_not_taken_holds_nothing_up(
    session: Session, database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that the receiver will not have; a redirect, which is not followed; one that never answers."""
    receiver.answer = lambda entry: 422 if entry["event"] == "bad" else 200
    sending = sender(database, receiver)
    # More than are read at a time.
    monkeypatch.setattr(webhooks, "_AT_ONCE", 2)
    for event in ("bad", "bad", "bad", "good"):
        journal.write(session, "w", event, actor="ann")
    wait_until(lambda: told(receiver, "w") == ["good"], "it waits behind the bad ones")
    receiver.answer = 302
    seen = len(receiver.refused)
    wait_until(lambda: len(receiver.refused) > seen + 1, "nothing is sent any more")
    receiver.answer = lambda entry: None
    sending.end(0.5)
    receiver.is_over.set()
    assert told(receiver, "w") == ["good"]
    receiver.answer = 200
    sender(database, receiver).end()
    assert told(receiver, "w") == ["good", "bad", "bad", "bad"]

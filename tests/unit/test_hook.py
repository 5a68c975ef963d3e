"""The hook of a switch: called until it says yes, always with the same words, and ended when nobody waits for it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.certificates import make_certificates
from vreplication import masking
from vreplication.cutover.hook import SECRET_VARIABLE, Place, SwitchEvent, call, check_target, signature
from vreplication.errors import Interrupted, Refused, Transient

SECRET = "a secret of the hook"
EVENT = SwitchEvent(
    workflow="shop-1",
    direction="switch",
    tables=("orders", "größe"),
    source=Place(host="db-old", port=3306, schema="shop"),
    to=Place(host="db-new", port=3307, schema="shop2"),
    number=7,
)
BODY = {
    "workflow": "shop-1",
    "direction": "switch",
    "tables": ["orders", "größe"],
    "from": {"host": "db-old", "port": 3306, "schema": "shop"},
    "to": {"host": "db-new", "port": 3307, "schema": "shop2"},
    "key": "shop-1:7:switch",
}


@pytest.fixture(autouse=True)
def _no_secrets() -> Iterator[None]:
    yield
    masking.forget()


@dataclass(kw_only=True)
class Calls:
    """What was said in between, and how to call."""

    said: list[str] = field(default_factory=list)

    def __call__(
        self,
        target: str,
        *,
        check: Callable[[], None] = lambda: None,
        timeout: float = 20.0,
        deadline: float | None = None,
        secret: str | None = SECRET,
    ) -> None:
        call(
            target,
            EVENT,
            secret=secret,
            deadline_seconds=deadline,
            timeout_seconds=timeout,
            check=check,
            say=self.said.append,
            pauses=(0.0,),
        )


@pytest.fixture
def calls() -> Calls:
    return Calls()


def script(folder: Path, text: str) -> Path:
    """Its calls add a line to the file `calls`."""
    path = folder / "a hook.sh"
    path.write_text(f"#!/bin/sh\ncat >> {folder}/calls; echo >> {folder}/calls\n{text}\n")
    path.chmod(stat.S_IRWXU)
    return path


def told(folder: Path) -> list[object]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_the_keys_tell_switches_apart() -> None:
    def key(number: int, direction: str = "switch", workflow: str = "shop-1") -> str:
        places = {"tables": (), "source": EVENT.source, "to": EVENT.to}
        return SwitchEvent(workflow=workflow, direction=direction, number=number, **places).key  # type: ignore[arg-type]

    assert key(7) == EVENT.key
    assert len({key(7), key(8), key(7, "reverse"), key(7, workflow="shop-2")}) == 4


def test_a_command_that_says_yes(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    path = script(tmp_path, f'echo "$1 {SECRET} password=xyz12345 [${SECRET_VARIABLE}]"; echo wrong >&2')
    with caplog.at_level(logging.INFO):
        calls(f"'{path}' 'a b;'")
    assert told(tmp_path) == [BODY]
    assert calls.said == []
    words = caplog.text
    assert "a b; *** password=*** []" in words
    assert "wrong" in words
    assert SECRET not in words


def test_a_command_that_fails_twice(tmp_path: Path, calls: Calls) -> None:
    path = script(tmp_path, f'[ "$(grep -c key {tmp_path}/calls)" -gt 2 ] || exit 9')
    calls(f"'{path}' --token=s3cr3t")
    assert told(tmp_path) == [BODY] * 3
    assert len(calls.said) == 2
    assert "exit code 9" in calls.said[0]
    assert "s3cr3t" not in "".join(calls.said)


def test_a_command_that_times_out_after_its_work(tmp_path: Path, calls: Calls) -> None:
    """Also one that would not end, with a child of its own: the next call finds neither."""
    path = script(
        tmp_path,
        f"""
        [ "$(grep -c key {tmp_path}/calls)" -eq 1 ] || exit 0
        trap '' TERM
        (trap '' TERM; echo $$ > {tmp_path}/child; sleep 300) &
        sleep 300
        """,
    )
    calls(f"'{path}'", timeout=0.5)
    assert told(tmp_path) == [BODY] * 2
    assert "0.5 s" in calls.said[0]
    assert is_ended(int((tmp_path / "child").read_text()))


def test_a_command_is_interrupted(tmp_path: Path, calls: Calls) -> None:
    path = script(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 300 & wait")

    def check() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise Interrupted("Interrupted.")

    with pytest.raises(Interrupted):
        calls(f"'{path}'", check=check)
    assert is_ended(int((tmp_path / "pid").read_text()))


def test_a_command_that_leaves_somebody_behind_is_not_waited_for(tmp_path: Path, calls: Calls) -> None:
    path = script(tmp_path, f"sleep 300 & echo $! > {tmp_path}/pid")
    began = time.monotonic()
    calls(f"'{path}'")
    assert time.monotonic() - began < 15
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_no_yes_before_the_deadline(calls: Calls) -> None:
    with pytest.raises(Transient, match="has not said yes") as caught:
        calls("false", deadline=0.2)
    assert "same key" in caught.value.cure
    with pytest.raises(Transient):
        calls("/nowhere/hook", deadline=0.2)
    assert any("cannot be started" in said for said in calls.said)


def is_ended(group: int) -> bool:
    """SIGKILL takes a moment; and somebody else collects what is left of an orphan."""
    until = time.monotonic() + 10
    while _lives(group) and time.monotonic() < until:
        time.sleep(0.01)
    return not _lives(group)


def _lives(group: int) -> bool:
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return any(
        int(number) == group and not state.startswith("Z") for number, state in map(str.split, listed.splitlines())
    )


@dataclass(kw_only=True)
class Router:
    """A server of hooks: what it was sent, and what it answers in turn (the last one again and again)."""

    url: str = ""
    answers: list[int | Callable[[], int]] = field(default_factory=lambda: [204])
    sent: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.sent.append((path, headers, body))
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return found if isinstance(found, int) else found()


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    """By https, with a certificate that this process trusts."""
    made = Router()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(made.answer(self.path, dict(self.headers), body))
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "7")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(b"because")

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    files = make_certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # Who asks may go away in the middle, and one that trusts no certificate does.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    made.url = f"https://127.0.0.1:{server.server_port}/route?token=s3cr3t"
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_address_that_says_yes(router: Router, calls: Calls) -> None:
    calls(router.url)
    ((path, headers, body),) = router.sent
    assert path == "/route?token=s3cr3t"
    assert json.loads(body) == BODY
    assert headers["Idempotency-Key"] == BODY["key"]
    assert headers["Content-Type"] == "application/json"
    # As anybody computes it: printf %s "$body" | openssl dgst -sha256 -hmac "$secret"
    assert headers["X-Vreplication-Signature"] == f"sha256={signature(body, SECRET)}"
    assert signature(b"what do ya want for nothing?", "Jefe").startswith("5bdcc146bf60754e6a042426089575c7")
    calls(router.url, secret=None)
    assert "X-Vreplication-Signature" not in router.sent[1][1]


def test_an_address_that_says_no_twice(router: Router, calls: Calls) -> None:
    """Neither is a redirect followed."""
    router.answers = [500, 302, 409, 200]
    calls(router.url)
    assert [path for path, _, _ in router.sent] == ["/route?token=s3cr3t"] * 4
    assert len({(headers["Idempotency-Key"], body) for _, headers, body in router.sent}) == 1
    assert [code in said for code, said in zip(("500", "302", "409"), calls.said, strict=True)] == [True] * 3
    assert "because" in calls.said[0]
    assert "s3cr3t" not in "".join(calls.said)


def test_an_address_that_times_out_after_its_work(router: Router, calls: Calls) -> None:
    is_over = threading.Event()
    router.answers = [lambda: 200 if is_over.wait(30) else 500, 200]
    calls(router.url, timeout=0.5)
    is_over.set()
    assert [json.loads(body) for _, _, body in router.sent] == [BODY] * 2
    assert "no answer within 0.5 s" in calls.said[0]


def test_an_address_is_interrupted(router: Router, calls: Calls) -> None:
    is_over = threading.Event()
    router.answers = [lambda: 200 if is_over.wait(30) else 500]

    def check() -> None:
        if router.sent:
            raise Interrupted("Interrupted.")

    with pytest.raises(Interrupted):
        calls(router.url, check=check)
    is_over.set()
    assert not [t for t in threading.enumerate() if t.name == "hook" and _stays(t)]


def _stays(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


def test_a_certificate_that_nobody_vouches_for(
    router: Router, calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(make_certificates(tmp_path / "other").ca))
    with pytest.raises(Transient, match="certificate"):
        calls(router.url, deadline=0.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls" / "ca.pem"))
    with pytest.raises(Transient, match="not valid for"):
        calls(router.url.replace("127.0.0.1", "localhost"), deadline=0.0)
    assert router.sent == []


@pytest.mark.parametrize(
    "target",
    [
        "true",
        "true 'a b'",
        "https://hook.example/x?y=%20",
        "http://127.0.0.1:8/x",
        "http://localhost",
        "http://[::1]:8/",
    ],
)
def test_targets(target: str) -> None:
    check_target(target)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "not found"),
        ("no-such-command --x", "no-such-command"),
        ("true 'x", "cannot be read"),
        ("/dev/null", "cannot be executed"),
        ("ftp://hook.example/", "ftp://"),
        ("http://hook.example/", "unencrypted"),
        ("http://127.0.0.1.example/", "unencrypted"),
        ("https://", "cannot be read"),
        ("https:///path", "cannot be read"),
        ("https://hook.example:x/", "cannot be read"),
        ("https://hook.example/a b", "cannot be read"),
        ("https://hook.example/\r\nX: y", "cannot be read"),
        ("https://hook.example/#part", "cannot be read"),
        ("https://user:s3cr3t@hook.example/", "password"),
        ("http://user:s3cr3t@127.0.0.1/", "password"),
    ],
)
def test_targets_that_are_refused(target: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        check_target(target)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.cure

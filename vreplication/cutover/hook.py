"""The hook of a switch between servers: whoever routes the application's connections is told, until it says yes.

A command gets the event as JSON on its standard input, an https address as the body of a POST. Exit code 0 and any 2xx
are a yes.

What must stay true: it is called when the switch has been decided, and then there is no way but forward. So an unknown
outcome is not a no, nor is any answer: whatever is not a yes is repeated, with the same key, until the caller's `check`
raises or the deadline passes. What the event holds is no secret; the secret that signs it is neither stored nor logged,
and of an address only scheme, host and port are told. A certificate is always verified; no redirect is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal
from urllib.parse import SplitResult, urlsplit

from vreplication.clock import SYSTEM, check_for
from vreplication.errors import Refused, Transient
from vreplication.masking import mask, remember
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach

log = logging.getLogger(__name__)

SECRET_VARIABLE = "VREPLICATION_HOOK_SECRET"
"""Who reads the environment hands its value to `call`. A command does not get it."""
PAUSE_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Between two calls; the last one again and again."""
_STEP_SECONDS = 0.05
_TERMINATE_SECONDS = 2.0
_MOST_OUTPUT = 64 * 1024
_MOST_WORDS = 300
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where tables are."""

    host: str
    port: int
    schema: str

    @classmethod
    def of(cls, url: SourceUrl) -> Place:
        return cls(host=url.host, port=url.port, schema=url.database)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEvent:
    """Writes belong to `to` from now on. direction "reverse": back to where the tables came from.

    number: grows with each switch of a workflow, and no other switch of its name has ever had it.
    """

    workflow: str
    direction: Literal["switch", "reverse"]
    tables: tuple[str, ...]
    source: Place
    to: Place
    number: int

    @property
    def key(self) -> str:
        """The same for each repeated call of one switch; another one for every other switch."""
        return f"{self.workflow}:{self.number}:{self.direction}"

    def body(self) -> bytes:
        """The same bytes each time."""
        return json.dumps(
            {
                "workflow": self.workflow,
                "direction": self.direction,
                "tables": list(self.tables),
                "from": _place(self.source),
                "to": _place(self.to),
                "key": self.key,
            }
        ).encode()


def _place(place: Place) -> dict[str, object]:
    return {"host": place.host, "port": place.port, "schema": place.schema}


class _NotYet(Exception):
    """Why this call was not answered with a yes."""


def call(
    target: str,
    event: SwitchEvent,
    *,
    secret: str | None,
    timeout_seconds: float,
    check: Callable[[], None],
    deadline_seconds: float | None = None,
    say: Callable[[str], None] = log.warning,
    pauses: Sequence[float] = PAUSE_SECONDS,
) -> None:
    """Return when the hook has said yes.

    check: called all the time and may raise; then a command is ended, and a request given up. timeout_seconds: of one
    call. Raises Transient when there was no yes before the deadline (None: no such), and whatever `check` raises. In
    each case it may have been done: call again with the same event. say: is told why it is called once more.
    """
    remember(*filter(None, [secret]))
    once = _caller(target, event, secret, timeout_seconds)
    began, number = SYSTEM.monotonic(), 0
    while True:
        check()
        reach("hook.before_call")
        try:
            once(check)
        except _NotYet as why:
            pause = pauses[min(number, len(pauses) - 1)]
            _check_deadline(target, why, deadline_seconds, SYSTEM.monotonic() + pause - began)
            say(mask(f"The hook {_told(target)} did not say yes: {why} It is called again in {pause:g} s."))
            check_for(check, pause)
            number += 1
        else:
            reach("hook.said_yes")
            return


def _check_deadline(target: str, why: _NotYet, deadline: float | None, seconds: float) -> None:
    if deadline is not None and seconds > deadline:
        raise Transient(
            f"The hook {_told(target)} has not said yes within {deadline:g} s: {why}",
            cure="Resume, which calls it again with the same key: it may have done its work.",
        )


def _caller(
    target: str, event: SwitchEvent, secret: str | None, timeout: float
) -> Callable[[Callable[[], None]], None]:
    """One call, which returns on a yes and raises _NotYet or what `check` raises."""
    body = event.body()
    if not _SCHEME.match(target):
        return lambda check: _run(shlex.split(target), body, timeout, check)
    # An answer may be lost when the call has done its work; by its key the next call is known for the same one.
    headers = {"Content-Type": "application/json", "User-Agent": "vreplication", "Idempotency-Key": event.key}
    if secret is not None:
        headers["X-Vreplication-Signature"] = f"sha256={signature(body, secret)}"
    return lambda check: _post(urlsplit(target), body, headers, timeout, check)


def signature(body: bytes, secret: str) -> str:
    """HMAC-SHA256 of the body, in hexadecimal."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


# -- what a user may ask for ------------------------------------------------------------------------------------------


def check_target(target: str) -> None:
    """Raises Refused for what can be no hook: an unknown scheme, http to another host, a command that is not there."""
    if scheme := _SCHEME.match(target):
        _check_url(target, scheme[1].lower())
    else:
        _check_command(target)


def _check_url(target: str, scheme: str) -> None:
    if scheme not in ("https", "http"):
        raise Refused(f"A hook cannot be called by {scheme}://.", cure="Use https://, or a command.")
    try:
        url = urlsplit(target)
        # urlsplit does not look at the port until it is read, and raises ValueError then.
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise Refused(
            f"The hook's address cannot be read: {error}.", cure="Write it as https://host[:port]/path."
        ) from None
    if not host or not target.isascii() or not target.isprintable() or " " in target or url.fragment:
        raise Refused(
            "The hook's address cannot be read.",
            cure="Write it as https://host[:port]/path, in ASCII, other characters as %XX.",
        )
    if url.username is not None or url.password is not None:
        raise Refused(
            "The hook's address holds a user or a password, and it is stored.",
            cure=f"Have the hook verify the signature: set {SECRET_VARIABLE}.",
        )
    if scheme == "http" and not _is_loopback(host):
        raise Refused(f"The hook {_told(target)} would be called unencrypted.", cure="Use https://.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_command(target: str) -> None:
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise Refused(f"The hook's command cannot be read: {error}.", cure="Quote it as for a shell.") from None
    if not words or shutil.which(words[0]) is None:
        raise Refused(
            f"The hook's command {words[0] if words else ''!r} is not found, or cannot be executed.",
            cure="Give its path. It is run without a shell: for pipes and the like write a script.",
        )


def _told(target: str) -> str:
    """What is said of it: behind the host, and behind a command's name, secrets may stand."""
    if not _SCHEME.match(target):
        return shlex.split(target)[0]
    url = urlsplit(target)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


# -- a command --------------------------------------------------------------------------------------------------------


def _run(words: list[str], body: bytes, timeout: float, check: Callable[[], None]) -> None:
    """Its input and output are files: a command that reads nothing, or leaves others behind it, blocks nobody."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
        given.write(body)
        given.seek(0)
        try:
            code = _run_to_the_end(words, given, output, timeout, check)
        finally:
            _log_output(words[0], output)
    if code:
        raise _NotYet(f"exit code {code}." if code > 0 else f"it was ended by signal {-code}.")


def _run_to_the_end(
    words: list[str], given: IO[bytes], output: IO[bytes], timeout: float, check: Callable[[], None]
) -> int:
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    try:
        # In a process group of its own, so that what it has started can be ended with it.
        process = subprocess.Popen(
            words, stdin=given, stdout=output, stderr=output, start_new_session=True, env=environment
        )
    except OSError as error:
        raise _NotYet(f"it cannot be started ({error.strerror}).") from None
    with _ended(process):
        if not _waited(lambda: process.poll() is not None, timeout, check):
            raise _NotYet(f"it was not done within {timeout:g} s, and has been ended.")
        return process.returncode


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Behind the block neither it nor what it has started is left, unless it has ended by itself."""
    try:
        yield
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Not waited for in between: as long as it is not, the group's number is nobody else's."""
    how = os.WEXITED | os.WNOWAIT | os.WNOHANG
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        _waited(lambda: os.waitid(os.P_PID, process.pid, how) is not None, _TERMINATE_SECONDS, lambda: None)
    process.wait()


def _log_output(name: str, output: IO[bytes]) -> None:
    output.seek(0)
    words = mask(output.read(_MOST_OUTPUT).decode(errors="replace"))
    for line in words.splitlines():
        log.info("hook %s: %s", name, line)
    if output.read(1):
        log.info("hook %s: its output goes on", name)


def _waited(is_done: Callable[[], bool], timeout: float, check: Callable[[], None]) -> bool:
    until = SYSTEM.monotonic() + timeout
    while not is_done():
        check()
        if SYSTEM.monotonic() > until:
            return False
        SYSTEM.sleep(_STEP_SECONDS)
    return True


# -- an address -------------------------------------------------------------------------------------------------------


def _post(url: SplitResult, body: bytes, headers: dict[str, str], timeout: float, check: Callable[[], None]) -> None:
    # The socket's own limit only ends a thread that nobody waits for any more.
    request = _Request(_connection(url, timeout + 1), url, body, headers)
    request.start()
    try:
        if not _waited(lambda: request.is_yes or not request.is_alive(), timeout, check):
            raise _NotYet(f"no answer within {timeout:g} s.")
    finally:
        request.give_up()
    if not request.is_yes:
        raise _NotYet(request.why)


def _connection(url: SplitResult, timeout: float) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme.lower() == "http":
        if not _is_loopback(host):
            raise Refused(f"The hook {_told(url.geturl())} would be called unencrypted.", cure="Use https://.")
        return http.client.HTTPConnection(host, url.port, timeout=timeout)
    # http.client follows no redirect and knows no proxy: the signed body goes to this host and to no other.
    return http.client.HTTPSConnection(host, url.port, timeout=timeout, context=ssl.create_default_context())


class _Request(threading.Thread):
    """One POST. `why`: read it when the thread has ended without a yes."""

    def __init__(
        self, connection: http.client.HTTPConnection, url: SplitResult, body: bytes, headers: dict[str, str]
    ) -> None:
        super().__init__(name="hook", daemon=True)
        self._connection = connection
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._body = body
        self._headers = headers
        self._is_given_up = False
        self._status = 0
        self._words = ""
        self._error: Exception | None = None

    @property
    def is_yes(self) -> bool:
        return 200 <= self._status < 300

    @property
    def why(self) -> str:
        if self._error is not None:
            return f"{self._error}."
        is_elsewhere = " (no redirect is followed)" if 300 <= self._status < 400 else ""
        return f"it answered {self._status}{is_elsewhere}. {self._words}".strip()

    def run(self) -> None:
        try:
            self._connection.connect()
            # Nothing is sent that nobody waits for any more: it would come behind a later switch's.
            if not self._is_given_up:
                self._exchange()
        except (OSError, http.client.HTTPException) as error:
            self._error = error
        finally:
            self._connection.close()

    def _exchange(self) -> None:
        self._connection.request("POST", self._path, self._body, self._headers)
        answer = self._connection.getresponse()
        self._status = answer.status
        self._words = " ".join(mask(answer.read(_MOST_OUTPUT).decode(errors="replace")).split())[:_MOST_WORDS]

    def give_up(self) -> None:
        self._is_given_up = True
        if (opened := self._connection.sock) is not None:
            # The plain socket's: the TLS layer belongs to the thread.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

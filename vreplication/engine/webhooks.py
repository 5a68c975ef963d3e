"""Journal entries as JSON to an HTTP address, signed, each at least once, by a thread beside the work.

Signed as https://www.standardwebhooks.com has it: HMAC-SHA256 of id, time and body, so that a receiver may use any of
its libraries. One process of those that would deliver does so, by a named lock of the server.

What must stay true: the work neither waits for a receiver nor fails by one; an entry that was not taken stays open in
the sidecar, for whoever delivers next; secret and URL are told nowhere.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from vreplication import __version__, masking
from vreplication.clock import SYSTEM
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.settings import BEAT_SECONDS
from vreplication.state import webhooks
from vreplication.state.webhooks import Entry

log = logging.getLogger(__name__)

URL, SECRET, SECRET_FILE = "VREPLICATION_WEBHOOK", "VREPLICATION_WEBHOOK_SECRET", "VREPLICATION_WEBHOOK_SECRET_FILE"
_PERIOD_SECONDS, _ANSWER_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 5.0, 60.0
_READY_SECONDS, _PUT_TOGETHER_SECONDS = 2.0, 600.0
END_SECONDS = 5.0
"""For what is open when the work has ended; the rest is for whoever delivers next."""
_IDLE_SECONDS = 120
"""A process that is stopped keeps the others from delivering for so long. Longer than the longest pause."""
_AT_ONCE = 100
_OF_THIS_ONE = frozenset({400, 413, 415, 422})
"""What a receiver answers to one message it will not have: those behind it are tried all the same."""
_LEAST_SECRET = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Where to, and what it is signed with."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)

    @property
    def key(self) -> str:
        """By which the sidecar knows it."""
        return hashlib.sha256(self.url.encode()).hexdigest()

    @property
    def host(self) -> str:
        """For people: the rest of a webhook's URL is often a secret."""
        return urlsplit(self.url).netloc


def make(url: str, secret: str) -> Hook:
    """Raises Refused."""
    _check_url(url)
    if len(secret) < _LEAST_SECRET:
        raise Refused(
            f"A webhook is signed, and its secret has to have at least {_LEAST_SECRET} characters.",
            cure=f"Set {SECRET} or name a file with {SECRET_FILE}: `openssl rand -hex 32` makes one.",
        )
    masking.remember(secret, *(part for part in re.split(r"[/?&=]", url) if len(part) >= _LEAST_SECRET))
    return Hook(url=url, secret=_bytes(secret))


def configured(environ: Mapping[str, str]) -> Hook | None:
    """None: no webhook is asked for. Raises Refused."""
    url, secret, file = (environ.get(name, "") for name in (URL, SECRET, SECRET_FILE))
    if not url:
        return None
    if file:
        try:
            with open(file, encoding="utf-8") as opened:
                secret = opened.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Refused(f"{SECRET_FILE} {file!r} cannot be read: {why}.") from None
    return make(url, secret)


def _check_url(url: str) -> None:
    cure = "Use https://host/path."
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    # Told now: urllib refuses such a URL with each message, which then looks as if the receiver did not answer.
    if not is_url or not url.isascii() or re.search(r"[\s\x00-\x1f]", url):
        raise Refused("The webhook is no http or https URL.", cure=cure)
    if parts.username is not None:
        raise Refused("The webhook's URL has a user in it, who would not be sent.", cure=cure)


def _bytes(secret: str) -> bytes:
    """`whsec_…` is base64, as receivers' libraries have it; anything else is taken as it is."""
    if secret.startswith("whsec_"):
        with contextlib.suppress(binascii.Error):
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    return secret.encode()


@contextlib.contextmanager
def delivering(hook: Hook | None, url: SourceUrl, end_seconds: float = END_SECONDS) -> Iterator[None]:
    """While this lasts, what comes into the journal of this server is delivered."""
    if hook is None:
        yield
        return
    thread = Deliverer(hook, url)
    thread.start()
    try:
        yield
    finally:
        thread.end(end_seconds)


class Deliverer:
    """Between `start` and `end`. Neither raises."""

    def __init__(self, hook: Hook, url: SourceUrl) -> None:
        self._hook, self._url = hook, url
        self._ready, self._closing = threading.Event(), threading.Event()
        self._until: float | None = None
        self._since: int | None = None
        self._failures, self._told = 0, ""
        self._refused: set[int] = set()
        """Entries that the receiver will not have, as far as we have tried."""
        self._refusals, self._refused_due = 0, 0.0
        """How often they have been tried, and when they are again: at a pace of their own, which slows no other."""
        self._put_together_due = 0.0
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """What is written from now on is this webhook's; a server that does not answer is not waited for long."""
        self._thread.start()
        self._ready.wait(_READY_SECONDS)

    def end(self, seconds: float = END_SECONDS) -> None:
        self._until = SYSTEM.monotonic() + seconds
        self._closing.set()
        self._thread.join(seconds + 1.0)

    def _run(self) -> None:
        while True:
            try:
                with connect(
                    self._url, use_database=False, read_timeout=BEAT_SECONDS, idle_seconds=_IDLE_SECONDS
                ) as session:
                    self._deliver_until_closed(session)
                return
            except VReplicationError as error:
                log.info("webhook: the journal cannot be read: %s", error)
            except Exception:
                log.exception("webhook: delivering failed")
            if self._closing.wait(_PERIOD_SECONDS * 2):
                return

    def _deliver_until_closed(self, session: Session) -> None:
        if self._since is None:
            # Once a run, and not with each connection: what came while the server was away is this webhook's, too.
            self._since = webhooks.newest(session)
        is_ours = False
        while True:
            # Asked before the round, which then sees all that was written until the end.
            is_last = self._closing.is_set()
            source = webhooks.begin(session, self._hook.key, self._since)
            self._ready.set()
            is_ours = is_ours or (source is not None and webhooks.is_ours(session, self._hook.key))
            if source and is_ours:
                self._put_together(session)
                is_level = self._round(session, source)
            else:
                # Another process delivers, or nothing has been begun on this server.
                is_level = True
            if is_last and (is_level or self._is_late()):
                if is_ours:
                    self._tell_rest(session)
                return
            if not is_last:
                self._closing.wait(self._pause())
            elif not is_level:
                # `_closing` is set by now, so waiting for it would take no time at all.
                time.sleep(_PERIOD_SECONDS / 4)

    def _pause(self) -> float:
        # A receiver that refuses so many knows no message of ours, and each look reads all of them from the server.
        refusals = self._refusals if len(self._refused) > _AT_ONCE else 0
        return _after(max(self._failures, refusals))

    def _is_late(self) -> bool:
        return self._until is not None and SYSTEM.monotonic() >= self._until

    def _round(self, session: Session, source: str) -> bool:
        """True when nothing is left that could be delivered now: what is refused is for a later time."""
        left: set[int] = set()
        is_due = SYSTEM.monotonic() >= self._refused_due
        for entry in self._to_be_tried(session, left, is_due):
            answer = 0 if self._is_late() else self._post(source, entry)
            if answer is None:
                # One by one: a mere cursor would pass over an entry whose transaction commits late.
                webhooks.note(session, self._hook.key, entry.id)
            elif answer in _OF_THIS_ONE:
                left.add(entry.id)
            else:
                self._note_refused(self._refused | left, is_due and bool(left))
                self._failures += 1
                return False
        self._note_refused(left, is_due)
        self._failures = 0
        return True

    def _note_refused(self, refused: set[int], is_tried: bool) -> None:
        self._refused = refused
        if not refused:
            self._refusals, self._refused_due = 0, 0.0
        elif is_tried:
            self._refused_due = SYSTEM.monotonic() + _after(self._refusals)
            self._refusals += 1

    def _to_be_tried(self, session: Session, left: set[int], is_due: bool) -> Iterator[Entry]:
        """All that is open; of those that were refused before only the first, however many they are by now, and none
        before they are due.

        left: takes the ids of the others.
        """
        behind, again = 0, 0
        while found := webhooks.pending(session, self._hook.key, _AT_ONCE, behind):
            behind = found[-1].id
            for entry in found:
                again += entry.id in self._refused
                if entry.id in self._refused and (again > _AT_ONCE or not is_due):
                    left.add(entry.id)
                else:
                    yield entry

    def _post(self, source: str, entry: Entry) -> int | None:
        """None: it was taken. Else what was answered; 0: nothing."""
        body = json.dumps(self._fields(source, entry), ensure_ascii=False).encode()
        request = urllib.request.Request(
            self._hook.url, data=body, headers=signed(self._hook, f"{source}-{entry.id}", int(time.time()), body)
        )
        left = _ANSWER_SECONDS if self._until is None else self._until - SYSTEM.monotonic()
        try:
            with _OPENER.open(request, timeout=max(0.1, min(_ANSWER_SECONDS, left))):
                self._told = ""
                return None
        except urllib.error.HTTPError as error:
            error.close()
            self._say(f"it answers {error.code}")
            return error.code
        except (OSError, ValueError, HTTPException) as error:
            self._say(f"it does not answer ({getattr(error, 'reason', None) or error or type(error).__name__})")
            return 0

    def _fields(self, source: str, entry: Entry) -> dict[str, Any]:
        found = {
            "id": f"{source}-{entry.id}",
            "server": f"{self._url.host}:{self._url.port}",
            "workflow": entry.workflow,
            "event": entry.event,
            "details": entry.details,
            "actor": entry.actor,
            "at": f"{entry.at.isoformat(timespec='milliseconds')}Z",
        }
        return dict(masking.masked(found))

    def _say(self, what: str) -> None:
        """Once for as long as it lasts."""
        if what != self._told:
            log.warning("webhook at %s: %s; it is tried again, and nothing waits for it", self._hook.host, what)
        self._told = what

    def _tell_rest(self, session: Session) -> None:
        if left := webhooks.count_pending(session, self._hook.key):
            log.warning("webhook at %s: %d events are left for whoever delivers next", self._hook.host, left)

    def _put_together(self, session: Session) -> None:
        if SYSTEM.monotonic() >= self._put_together_due:
            self._put_together_due = SYSTEM.monotonic() + _PUT_TOGETHER_SECONDS
            webhooks.put_together(session, self._hook.key)


def _after(failures: int) -> float:
    """How long to wait behind so many."""
    # Bounded before the power: 2 ** 1024 fits into no float, and a receiver that is away for a day fails more often.
    return float(min(_LONGEST_PAUSE_SECONDS, _PERIOD_SECONDS * 2 ** min(failures, 10)))


def signed(hook: Hook, id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Headers. seconds: since 1970, so that a receiver may refuse what is repeated later by somebody else."""
    mac = hmac.new(hook.secret, f"{id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": f"vreplication/{__version__}",
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A signed message goes where it was meant to go, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)

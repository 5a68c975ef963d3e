"""Looks twice a second at what an operator wants copy and verification to be held back by, on connections of its own.

The load of the servers, the lag of replicas, InnoDB's history list, free disk space, a query, an HTTP address. What
holds is read by the thread that beats, which keeps the gate closed for it (engine/beater.py).

What must stay true: a look that fails holds back, with the failure named, and ends nothing; only a critical load ends
the workflow, when it is there at two looks in a row. Nothing here waits for longer than a few seconds, and nothing that
is to be copied waits for a look that nobody has asked for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from vreplication.clock import SYSTEM
from vreplication.errors import Refused, Terminal, VReplicationError
from vreplication.mysql import disk, load
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import ConnectionLost, Session, connect
from vreplication.planning.request import Request
from vreplication.planning.throttle_checks import at_place, number_of, places_of
from vreplication.state import journal, lease, throttling
from vreplication.throttle.reasons import Reason, below, beyond, ordered, over_load, parse_load, parse_size, strictest

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 0.5
_ANSWER_SECONDS = 3.0
_AGAIN_SECONDS = 1.0
_SILENT_SECONDS = 8.0
"""Longer than the looks take together where each answers."""
_LASTING_SECONDS, _LONGEST_LASTING_SECONDS = 10.0, 600.0
_THROTTLED, _OVER = "throttled", "throttling over"
_OPTIONS = ("max_load", "critical_load", "max_lag", "max_history_list", "min_disk_free", "throttle_query",
            "throttle_http")  # fmt: skip
_LOOKED_AT = (*_OPTIONS, "lag_replicas")


class Throttling:
    """Between `start` and `stop`. `reason`: what holds now, '' nothing; `check` raises a critical load."""

    def __init__(self, route: Route, workflow: str) -> None:
        self._route, self._workflow = route, workflow
        self.asked: Request | None = None
        self._wakes, self._is_over = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._replicas: dict[tuple[str, int], Session] = {}
        self._seen: set[tuple[str, int]] | None = None
        self._critical: str | None = None
        """The --critical-load that was exceeded at the last look."""
        self._error: Terminal | None = None
        self._found_out: tuple[Reason, ...] = ()
        self._looked_at, self._asking = SYSTEM.monotonic(), ""
        self._lock = threading.Lock()
        """What is asked, and what was found for it, change together."""
        self._ended_by: type[Exception] | None = None
        """What ended the last look, of `VReplicationError` and `Exception`: logged once, not each second."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """A look that hangs says nothing, and what was true before it may be so no more."""
        ago = SYSTEM.monotonic() - self._looked_at
        if self._thread is None or not _is_asked(self.asked) or ago < _SILENT_SECONDS:
            return self._found_out
        return (Reason(code=self._asking, said=f"no answer for {ago:.0f} s"),)

    @property
    def reason(self) -> str:
        """The first of them in words, '' where nothing holds."""
        return "".join(map(str, self.reasons[:1]))

    def _say(self, *reasons: Reason) -> None:
        self._found_out, self._looked_at = reasons, SYSTEM.monotonic()

    def ask(self, request: Request | None) -> None:
        """What holds from now on, None: nothing; the first that asks for something starts the thread."""
        if request == self.asked:
            return
        with self._lock:
            before, self.asked = self.asked, request
            if not _is_asked(request):
                self._say()
            elif _limits_of(request) != _limits_of(before):
                # Until the first look nothing is known.
                self._say(Reason(code="unknown", said="what is to hold it back is looked at", is_limit=False))
                self._asking = next(name.replace("_", "-") for name in _OPTIONS if getattr(request, name) is not None)
        self._wakes.set()
        if self._thread is None and _is_asked(request):
            self._thread = threading.Thread(target=self._run, name="throttling", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._wakes.set()
        if self._thread is not None:
            self._thread.join(2 * _ANSWER_SECONDS)

    def check(self) -> None:
        """Raises Terminal."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._is_over:
            try:
                # Longer than the three seconds after which the server ends --throttle-query: a query that is too slow
                # is a reason with its name, and no lost connection.
                with self._route.open(read_timeout=2 * _ANSWER_SECONDS) as ends:
                    self._look_until_over(ends)
            except VReplicationError as error:
                self._hold(f"the server cannot be asked: {error}", VReplicationError)
            except Exception as error:  # a silent end of this thread would hold for ever, or never again
                self._hold(f"it failed: {type(error).__name__}: {error}", Exception)
            finally:
                self._forget()
            self._wakes.wait(_AGAIN_SECONDS)

    def _hold(self, why: str, by: type[Exception]) -> None:
        if by is not self._ended_by:
            log.warning("workflow %s is held back: %s", self._workflow, why, exc_info=by is Exception)
        self._ended_by, self._critical = by, None
        with self._lock:
            # Under the lock: what is asked for may be taken back at this moment, and then nothing holds.
            self._say(*([Reason(code="unknown", said=why, is_limit=False)] if _is_asked(self.asked) else []))

    def _look_until_over(self, ends: Ends) -> None:
        while not self._is_over:
            # Before what is asked is read: what changes behind that wakes us at once.
            self._wakes.clear()
            asked = self.asked
            # Asked for again hours later, what is critical then is not the second look in a row.
            if asked is None or asked.critical_load is None:
                self._critical = None
            if asked is not None:
                self._note(asked, ordered(self._found(ends, asked)))
                self._tell_it_is_over()
            self._wakes.wait(_PERIOD_SECONDS)

    def _tell_it_is_over(self) -> None:
        if self._ended_by is not None:
            log.info("workflow %s: what is to hold it back is looked at again", self._workflow)
        self._ended_by = None

    def _note(self, asked: Request, found: tuple[Reason, ...]) -> None:
        """What was found for the request of before says nothing of this one, which is looked at next."""
        with self._lock:
            if asked == self.asked:
                self._say(*found)

    def _found(self, ends: Ends, asked: Request) -> list[Reason]:
        looks: list[tuple[str, bool, Callable[[], list[Reason]]]] = [
            ("max-load", asked.max_load is not None, lambda: self._load(ends, "max-load", asked.max_load or "")),
            ("critical-load", asked.critical_load is not None, lambda: self._look_critical(ends, asked)),
            ("max-lag", asked.max_lag is not None, lambda: self._lag(ends, asked)),
            ("max-history-list", asked.max_history_list is not None, lambda: self._history(ends, asked)),
            ("min-disk-free", asked.min_disk_free is not None, lambda: _room(ends, asked)),
            ("throttle-query", asked.throttle_query is not None, lambda: self._query(ends, asked)),
            ("throttle-http", asked.throttle_http is not None, lambda: _http(asked.throttle_http or "")),
        ]
        found: list[Reason] = []
        for option, _, look in (each for each in looks if each[1]):
            self._asking = option
            found += _looked(option, look)
        return found

    def _load(self, ends: Ends, option: str, text: str) -> list[Reason]:
        limits = parse_load(text)
        return [r for each in _servers(ends) for r in over_load(option, limits, load.status(each, list(limits)))]

    def _look_critical(self, ends: Ends, asked: Request) -> list[Reason]:
        # A look that fails is none of two in a row; and what the server does not tell holds, but is no load.
        before, self._critical = self._critical, None
        found = self._load(ends, "critical-load", asked.critical_load or "")
        worst = strictest(reason for reason in found if reason.value is not None)
        if worst is None:
            return found
        self._critical = asked.critical_load
        if before == self._critical:
            self._error = Terminal(
                f"The server is under critical load: {worst.said} (--critical-load), at two looks in a row.",
                cure=f"`vreplication resume {self._workflow}` goes on when it has passed.",
            )
        return found

    def _history(self, ends: Ends, asked: Request) -> list[Reason]:
        lengths = [load.history_list(each) for each in _servers(ends)]
        found = beyond("max-history-list", "InnoDB's history list", max(lengths), asked.max_history_list or 0)
        return [found] if found else []

    def _query(self, ends: Ends, asked: Request) -> list[Reason]:
        figure = number_of(ends.source, asked.throttle_query or "")
        return _found_beyond(figure)

    # Replicas: of the server that is written, whose log they apply.

    def _lag(self, ends: Ends, asked: Request) -> list[Reason]:
        found = (_looked("max-lag", lambda p=place: self._lag_of(ends, p, asked.max_lag or 0.0))  # type: ignore[misc]
                 for place in self._places(ends, asked))  # fmt: skip
        return [reason for reasons in found for reason in reasons]

    def _places(self, ends: Ends, asked: Request) -> list[tuple[str, int]]:
        """A replica that has stopped is listed no more, and is just the one that is behind."""
        places = places_of(ends.target, asked)
        if asked.lag_replicas:
            return places
        # In the sidecar, so that a catch-up that is started again watches a replica that has stopped meanwhile.
        if self._seen is None:
            self._seen = throttling.seen(ends.home, self._workflow)
        if not self._seen.issuperset(places):
            self._seen |= set(places)
            throttling.note_seen(ends.home, self._workflow, self._seen)
        return sorted(self._seen)

    def _lag_of(self, ends: Ends, place: tuple[str, int], limit: float) -> list[Reason]:
        named = f"replica {place[0]}:{place[1]}"
        # Not within the try, which is for the replica: where this connection is lost the caller opens all of them anew.
        now = str(ends.home.value("SELECT NOW(6)"))
        try:
            micros = throttling.lag_micros(self._replica(ends, place), self._workflow, now)
        except VReplicationError as error:
            # By a new connection the next time: it holds only until the replica is back, which a lost one would never
            # show.
            if (lost := self._replicas.pop(place, None)) is not None:
                lost.close()
            return [Reason(code="max-lag", said=f"{named} cannot be asked: {error}")]
        if micros is None:
            return [Reason(code="max-lag", said=f"{named} has not come to the beginning of this workflow")]
        found = beyond("max-lag", f"the lag of {named}", micros / 1e6, limit, "seconds")
        return [found] if found else []

    def _replica(self, ends: Ends, place: tuple[str, int]) -> Session:
        if place not in self._replicas:
            self._replicas[place] = connect(at_place(ends.home, place), read_timeout=_ANSWER_SECONDS)
        return self._replicas[place]

    def _forget(self) -> None:
        while self._replicas:
            with contextlib.suppress(VReplicationError):
                self._replicas.popitem()[1].close()


class Noting:
    """Tells the journal and the log when throttling has begun and when it is over, each when it has lasted.

    What comes and goes all the time is told of ever more seldom.
    """

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._is_noted: bool | None = None
        self._changed_at: float | None = None
        self._lasting = _LASTING_SECONDS

    def look(self, session: Session, reason: str) -> None:
        # A catch-up before this one may have told of the beginning; its end is told once, too.
        if self._is_noted is None:
            last = journal.latest(session, self._workflow, _THROTTLED, _OVER)
            self._is_noted = last is not None and last["event"] == _THROTTLED
        if bool(reason) == self._is_noted:
            self._changed_at = None
            return
        now = SYSTEM.monotonic()
        self._changed_at = now if self._changed_at is None else self._changed_at
        if now - self._changed_at >= self._lasting:
            self._note(session, reason)
            self._is_noted, self._changed_at = bool(reason), None
            self._lasting = min(2 * self._lasting, _LONGEST_LASTING_SECONDS)

    def _note(self, session: Session, reason: str) -> None:
        event = _THROTTLED if reason else _OVER
        journal.write(session, self._workflow, event, reason, actor=lease.me())
        log.info("workflow %s: %s", self._workflow, ": ".join(filter(None, (event, reason))))


def _is_asked(request: Request | None) -> bool:
    return request is not None and any(getattr(request, name) is not None for name in _OPTIONS)


def _limits_of(request: Request | None) -> tuple[object, ...]:
    return tuple(getattr(request, name, None) for name in _LOOKED_AT)


def _looked(option: str, look: Callable[[], list[Reason]]) -> list[Reason]:
    """A look that fails holds back; a lost connection is the caller's. Raises ConnectionLost."""
    try:
        return look()
    except ConnectionLost:
        raise
    except VReplicationError as error:
        return [Reason(code=option, said=f"it cannot be told: {error}")]


def _servers(ends: Ends) -> list[Session]:
    return [ends.source, ends.target] if ends.is_across else [ends.home]


def _found_beyond(figure: float) -> list[Reason]:
    """What a query has found."""
    reason = Reason(code="throttle-query", said=f"its value is {figure:g}", what="value", value=figure, limit=0)
    return [reason] if figure > 0 else []


def _room(ends: Ends, asked: Request) -> list[Reason]:
    """Of the server that is written."""
    limit, found = parse_size(asked.min_disk_free or ""), disk.disks(ends.target)
    if not found:
        raise Refused(disk.UNKNOWN)
    least = min(found, key=lambda each: each.free)
    reason = below("min-disk-free", f"what is free on the disk of {least.path}", least.free, limit)
    return [reason] if reason else []


def _http(address: str) -> list[Reason]:
    try:
        with urllib.request.urlopen(address, timeout=_ANSWER_SECONDS) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError, HTTPException) as error:
        return [Reason(code="throttle-http", said=f"it does not answer ({error or type(error).__name__})")]
    return [] if status == 200 else [Reason(code="throttle-http", said=f"it answers {status}")]

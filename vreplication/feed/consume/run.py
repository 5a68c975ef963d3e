"""Consume until told to stop, whatever goes away meanwhile.

What must stay true: what may get well is waited for and told once; all else ends with one sentence, and whoever starts
the consumer again goes on where the target says.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vreplication.errors import Ambiguous, Interrupted, Refused, Transient
from vreplication.feed.address import Address
from vreplication.feed.broker import Broker
from vreplication.feed.claims import Fetcher
from vreplication.feed.consume.asking import Asking
from vreplication.feed.consume.by_row import ByRow
from vreplication.feed.consume.by_transaction import ByTransaction
from vreplication.feed.consume.reading import Reading
from vreplication.feed.failover import successors
from vreplication.mysql.session import SqlError, is_passing
from vreplication.mysql.url import SourceUrl

MODES: dict[str, type[ByRow] | type[ByTransaction]] = {"row": ByRow, "transaction": ByTransaction}
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,128}")
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0


def consume(
    address: Address,
    target: SourceUrl,
    mode: str,
    *,
    group: str,
    stop: threading.Event,
    notify: Callable[[str], None],
    until: Callable[[], bool] = lambda: False,
    claims: Path | None = None,
    sources: Sequence[SourceUrl] = (),
) -> None:
    """Several processes of a group may do so at once. Raises Terminal.

    mode: row, or transaction. until: asked several times a second; True ends it as `stop` does. claims: where files of
    large values are here (claims.py). sources: asked for rows of which only the key was sent.
    """
    check(mode, group, has_sources=bool(sources))
    pause, told = _FIRST_PAUSE_SECONDS, ""
    while not stop.is_set():
        reading = MODES[mode](address, target, group, notify)
        reading.fetcher, reading.asking = Fetcher(claims), Asking(sources, lambda: _successors(address))
        reading.check = lambda: _check(stop)
        try:
            if _consume(reading, stop, until):
                return
        # A COMMIT without an answer, too: whether it happened is told by the offsets, which are read first of all. And
        # a statement that somebody has killed: MySQL may say so, too, where the whole connection is.
        except (Transient, Ambiguous, SqlError) as error:
            is_killed = isinstance(error, SqlError)
            if is_killed and not is_passing(error):
                raise
            if reading.has_read:
                pause, told = _FIRST_PAUSE_SECONDS, ""
            if error.message != told:
                notify(f"{error.message}. Trying again." if is_killed else f"{error.message} Waiting for it.")
            told = error.message
        finally:
            # Whatever was read goes with it: the next one begins with what is stored, and with nothing else.
            reading.close()
        stop.wait(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _successors(address: Address) -> Mapping[str, str]:
    return successors(Broker(address), address.topic)


def check(mode: str, group: str, *, has_sources: bool = False) -> None:
    """Raises Refused."""
    # What a source says is of now and of no transaction of the feed's, and mode transaction shows whole ones.
    if has_sources and mode != "row":
        raise Refused("Only mode row can ask a source for rows.", cure="Use mode row, or name no source.")
    if mode not in MODES:
        raise Refused(f"There is no mode {mode!r}.", cure=f"Use one of {', '.join(MODES)}.")
    if not _GROUP.fullmatch(group):
        raise Refused(f"{group!r} is no name of a group.", cure="Use letters, digits, dot, dash and underscore.")


def _consume(reading: Reading, stop: threading.Event, until: Callable[[], bool]) -> bool:
    """Returns when it shall not go on."""
    reading.open()
    # A step may have hours of rows to apply; what is not committed by then is rolled back, and read again.
    with contextlib.suppress(Interrupted):
        while not stop.is_set() and not until():
            reading.step()
            reading.beat()
    reading.beat(is_going=False)
    return True


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("Interrupted.")

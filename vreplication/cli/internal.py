"""What we start ourselves: the replicating process, of one workflow or of the several of one command.

What must stay true: the URL is read from standard input, and the end of standard input ends the process. With several,
what comes behind the URL says whom to follow and whom to leave, a line each.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

from vreplication import masking
from vreplication.cli import logs
from vreplication.engine.child import FOLLOW, SEVERAL, STREAM, from_line, route_from_line
from vreplication.engine.following import Followers
from vreplication.engine.replicate import collecting_rarely, replicate, replicate_stream
from vreplication.errors import Interrupted, VReplicationError
from vreplication.mysql.ends import Route
from vreplication.mysql.url import SourceUrl

log = logging.getLogger("vreplication.replicate")


def run_replicate(workflow: str, option: str = "", number: str = "1") -> int:
    """Catch-up of a workflow; with SEVERAL of so many, with STREAM of that to this switch. Returns the exit code."""
    line = _line()
    if not line:
        # Loaded ahead, and not needed.
        return 0
    route = route_from_line(line) if option == STREAM else Route.within(from_line(line))
    # Before the log begins: the first line of it may hold what a server has answered.
    masking.remember(*route.source.secrets, *route.target.secrets)
    logs.start_on(sys.stderr, workflow)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    log.info("catch-up of workflow %s begins", workflow)
    _answer_prometheus(route, stop)
    try:
        if option == SEVERAL:
            _several(route.home, stop, int(number))
        else:
            # A daemon: when the work ends by itself it still waits in its read.
            threading.Thread(target=_until_end_of_input, args=(stop,), daemon=True).start()
            _follow(route, workflow, int(number) if option else None, stop)
    except Interrupted:
        return Interrupted.exit_code
    except VReplicationError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception:  # a fault of ours: the log is the only place where anybody would look for it
        log.exception("catch-up ended by an unexpected error")
        return 1
    log.info("catch-up of workflow %s ends", workflow)
    return 0


def _answer_prometheus(route: Route, stop: threading.Event) -> None:
    """Where somebody has asked for it: loading what it takes would cost every start of catch-up."""
    if not os.environ.get("VREPLICATION_METRICS_LISTEN"):
        return
    from vreplication.cli import metrics

    metrics.of_catch_up(route, stop)


def _follow(route: Route, workflow: str, number: int | None, stop: threading.Event) -> None:
    if number is None:
        replicate(route.home, workflow, stop)
        return
    from vreplication.workflows.move_tables.streams import stream_of

    replicate_stream(stream_of(route, workflow, number), stop)


def _several(url: SourceUrl, stop: threading.Event, at_once: int) -> None:
    followers = Followers(url, at_once)
    with collecting_rarely():
        threading.Thread(target=_do_as_told, args=(followers, stop), daemon=True).start()
        stop.wait()
        followers.end()


def _do_as_told(followers: Followers, stop: threading.Event) -> None:
    try:
        for line in _lines():
            act, workflow = line.split()
            (followers.follow if act == FOLLOW else followers.leave)(workflow)
    except Exception:
        log.exception("catch-up was told something that it does not know")
    finally:
        stop.set()


def _line() -> bytes:
    """The next line of standard input, byte by byte: what is behind it is for another reader."""
    found = b""
    while byte := os.read(sys.stdin.fileno(), 1):
        found += byte
        if byte == b"\n":
            break
    return found


def _lines() -> Iterator[str]:
    while line := _line():
        yield line.decode().strip()


def _until_end_of_input(stop: threading.Event) -> None:
    # Its driver has the other end, so whatever ends that, kill -9 too, is the end of input here.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()

"""`metrics`: workflows, change feeds and consumers for Prometheus, once or over HTTP; and the same from catch-up.

What must stay true: it reads and never writes; each question of Prometheus asks the servers anew, and one that does not
answer is told as down within seconds; nothing but figures is served, and by this machine alone unless told otherwise.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from vreplication.cli import options
from vreplication.cli.attend import stopping_on_signals
from vreplication.cli.say import say
from vreplication.errors import Interrupted, Refused, VReplicationError
from vreplication.mysql.ends import Route
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.progress import metrics as figures

HELP = """
Workflows of the servers, change feeds, consumers that write into the target, and lakes, in Prometheus' text format:
once, or over HTTP.

Examples:

  vreplication metrics --source mysql+pymysql://feed@db.example/shop

  vreplication metrics --source … --target … --listen 127.0.0.1:9714
"""
LISTEN = "VREPLICATION_METRICS_LISTEN"
"""In the environment: where catch-up answers."""
_PATH = "/metrics"
# A scrape of Prometheus has 10 s unless it is set otherwise: a server that hangs has to be told as down before.
_READ_SECONDS, _AGAIN_SECONDS = 5.0, 15.0
log = logging.getLogger(__name__)

ListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help=f"Answer at http://HOST:PORT{_PATH} until it is ended."),
]
LakesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--lake",
        metavar="DIRECTORY",
        parser=options.directory,
        callback=options.is_there,
        help="A lake, too. Several times: several.",
    ),
]


def metrics(
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    lake: LakesOption = None,
    listen: ListenOption = None,
) -> None:
    found = options.servers(source, source_file, target, target_file, is_none=bool(lake)).given
    if listen is None:
        print(text(found, lake or ()), end="")
        return
    _serve(listen, lambda: text(found, lake or ()))
    raise Interrupted("Interrupted.")


def text(servers: Sequence[SourceUrl], lakes: Sequence[Path] = (), *, with_process: bool = False) -> str:
    """Of all of them; of a server that is two of them once, for a series must not come twice."""
    # Source and target of a move may be two schemas of one server.
    each_once = {url.place: url for url in servers}.values()
    samples = [*(s for url in each_once for s in _of(url)), *(s for each in lakes for s in _of_lake(each))]
    return figures.exposition(samples, with_process=with_process)


def _of_lake(directory: Path) -> list[figures.Sample]:
    """None of one that is not there yet."""
    from vreplication.feed.lake.manifest import Store

    try:
        found = Store(directory).newest()
    except VReplicationError:
        return []
    if found is None:
        return []
    size = {name: getattr(found.size, name) for name in found.size.__slots__}
    told = {**size, "watermark_micros": found.watermark, "manifest": found.number}
    return list(figures.of_lake(str(Store(directory).directory), found.topic, told))


def _of(url: SourceUrl) -> list[figures.Sample]:
    name = url.place
    try:
        with connect(url, use_database=False, read_timeout=_READ_SECONDS) as session:
            return figures.of_server(session, name)
    except VReplicationError:
        return figures.down(name)


def _serve(listen: str, body: Callable[[], str]) -> None:
    """Until a signal comes."""
    stop = threading.Event()
    with answering(listen, body), stopping_on_signals(stop):
        say(f"Answering at http://{listen}{_PATH}; Ctrl-C ends it.")
        stop.wait()


@contextmanager
def answering(listen: str, body: Callable[[], str]) -> Iterator[None]:
    """While this lasts, `body` is asked anew for each who comes. Raises Refused where nobody may listen there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_here = self.path.partition("?")[0] == _PATH
            answer = (body() if is_here else f"Ask for {_PATH}.\n").encode()
            self.send_response(200 if is_here else 404)
            self.send_header("Content-Type", figures.CONTENT_TYPE)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Prometheus comes every few seconds."""

    with _bound(listen, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
        try:
            yield
        finally:
            server.shutdown()


def of_catch_up(route: Route, stop: threading.Event) -> None:
    """In a thread of its own: where LISTEN says, the servers' figures and this process's own, until `stop`.

    Catch-up goes on whatever happens here. A port that another has, it may have left in a while.
    """
    ends = tuple(dict.fromkeys((route.source, route.target, route.home)))
    threading.Thread(target=_of_catch_up, args=(os.environ[LISTEN], ends, stop), daemon=True, name="metrics").start()


def _of_catch_up(listen: str, ends: Sequence[SourceUrl], stop: threading.Event) -> None:
    is_told = False
    while not stop.is_set():
        try:
            with answering(listen, lambda: text(ends, with_process=True)):
                log.info("metrics are answered at http://%s%s", listen, _PATH)
                stop.wait()
        except Refused as error:
            if not is_told:
                log.warning("metrics are not answered: %s", error)
            # Once: a port that another process has may be tried for days.
            is_told = True
            stop.wait(_AGAIN_SECONDS)


def check_listen() -> None:
    """Before anything is begun. Raises Refused."""
    if listen := os.environ.get(LISTEN):
        _address(listen, LISTEN)


def _bound(listen: str, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    address = _address(listen, "--listen")
    try:
        # IPv4 where the name has both, which is what `localhost` is to most who ask; the class alone knows no other.
        found = {family for family, *_ in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
        family = socket.AF_INET if socket.AF_INET in found else socket.AF_INET6
        made: ThreadingHTTPServer = type("Server", (ThreadingHTTPServer,), {"address_family": family})(address, handler)
        return made
    except OSError as error:
        raise Refused(f"{listen} cannot be listened on: {error.strerror}.", cure="Choose another port.") from None


def _address(listen: str, said_as: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):(\d{1,5})", listen)
    if found is None or int(found.group(2)) > 65_535:
        raise Refused(f"{said_as} {listen!r} is no HOST:PORT.", cure="Use 127.0.0.1:9714.")
    return found.group(1).strip("[]"), int(found.group(2))

"""`changefeed`, `plan changefeed`, `scale`, `feed-check`, `consume`: changes into Kafka, and back.

What must stay true: as of `online-ddl`: no default of a request is decided here, and nothing is made before the person,
or --yes, has agreed; a secret of the broker comes from the environment or a file, and is never shown.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vreplication import masking, names
from vreplication.cli import asked, invocation, logs, options, outcome
from vreplication.cli.attend import stopping_on_signals
from vreplication.cli.operate import by
from vreplication.cli.say import json_line, say, tell
from vreplication.errors import Interrupted, Refused
from vreplication.feed.dispatch import MOST_PARTITIONS
from vreplication.masking import mask
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.progress import numbers
from vreplication.progress.fed import why_no_lag
from vreplication.settings import TABLE_SECONDS
from vreplication.workflows.changefeed.spec import FeedSpec, make_feed_spec

if TYPE_CHECKING:
    from vreplication.workflows.changefeed.driver import FeedDriver

SINK_PASSWORD = "VREPLICATION_SINK_PASSWORD"
RUN_HELP = f"""
Send every change of tables into Kafka, each once: rows in the order of the log, DDL between them, and how far it is.

It goes on until `cancel`; Ctrl-C stops it cleanly, and the same command with the same --workflow goes on. The broker's
password (SASL) comes from {SINK_PASSWORD} or --sink-file.

Examples:

  export VREPLICATION_SOURCE=mysql+pymysql://user@db.example:3306/shop VREPLICATION_PASSWORD=…

  vreplication changefeed --sink kafka://broker.example:9092/shop --partitions 4 --dispatch index-value

  vreplication changefeed --sink "kafka://b:9093/shop?security.protocol=SASL_SSL&sasl.username=feed" --protocol debezium
"""
PLAN_HELP = """
Say what `changefeed` would do, with the verdict of every check of the source and the broker; touches nothing. Exits
with 2 when a check refuses.

Example:

  vreplication plan changefeed --sink kafka://broker.example:9092/shop
"""
SCALE_HELP = """
Give a change feed more partitions, or fewer, while it runs: rows go on in order, and consumers that keep the rules of
docs/feed.md follow.

Example:

  vreplication scale shop-feed --partitions 8
"""
CHECK_HELP = """
Read a topic and check what a change feed promises of it: numbering, order, Resolved, DDL, generations. Exits with 1 and
names the first message that breaks a rule.

Example:

  vreplication feed-check --from kafka://broker.example:9092/shop
"""
CONSUME_HELP = f"""
Apply a topic of a change feed (protocol open) to a database, each change once. Several processes may do it together.

row: each partition by itself, in its order. transaction: whole transactions of the source, in its order, so that a
reader never sees half of one. Tables have to be there, or come by DDL that stands in the feed. Ctrl-C stops cleanly;
the same command goes on. Passwords come from {options.TARGET_PASSWORD} and {SINK_PASSWORD}.

Example:

  export VREPLICATION_TARGET=mysql+pymysql://user@copy.example:3306/shop VREPLICATION_TARGET_PASSWORD=…

  vreplication consume --from kafka://broker.example:9092/shop --mode transaction
"""
_SECONDS = 1.0
_LINE_SECONDS = 5.0

SinkFileOption = Annotated[
    Path | None,
    typer.Option("--sink-file", metavar="FILE", help=f"A file that holds the broker's password; or {SINK_PASSWORD}."),
]
FromOption = Annotated[
    str, typer.Option("--from", metavar="URL", help="The topic: kafka://host:9092[,host:9092]/topic[?option=value].")
]
ClaimsOption = Annotated[
    Path | None,
    typer.Option(
        "--claims",
        metavar="DIRECTORY",
        parser=options.directory,
        callback=options.is_there,
        help="Where the feed's claim-check:DIRECTORY is here. \\[default: where the feed says]",
    ),
]
AskedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="URL",
        help="The feed's source, to be asked for rows of which the feed sends the key alone (--max-message key-only);"
        f" several times: several. The password is better given in {options.PASSWORD}.",
    ),
]
_BEFORE = {"source": options.SourcesOption, "source_file": options.SourceFilesOption, "sink_file": SinkFileOption}


def sink_password(file: Path | None) -> str:
    """Out of the environment, which no child inherits then. Raises Refused."""
    found = os.environ.pop(SINK_PASSWORD, "")
    if file is not None:
        found = options.read_line("sink", file)
    if found:
        masking.remember(found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A feed as asked for on the command line. Its spec has an id."""

    sources: tuple[SourceUrl, ...]
    spec: FeedSpec
    password: str
    args: tuple[str, ...]
    is_yes: bool
    is_json: bool


def command(act: Callable[[Request], int]) -> Callable[..., None]:
    """A command with the options of a feed that hands what it read to `act`."""

    def changefeed(context: typer.Context, *, yes: bool, is_json: bool, **values: Any) -> None:
        # Before anything may be refused: no child is to inherit it.
        password = sink_password(values["sink_file"])
        sources = options.several(values["source"], values["source_file"])
        given = asked.given(FeedSpec, values)
        # Here, for the spec would tell it in its own words, which know no option.
        if not given.get("sink"):
            raise Refused("No sink is given.", cure="Pass --sink kafka://host:9092/topic.")
        workflow = given["workflow"]
        name = (
            names.check_workflow(workflow)
            if workflow is not None
            else names.new_workflow(sources[0].database or "feed")
        )
        request = Request(
            sources=sources,
            spec=make_feed_spec(**{**given, "workflow": name}),
            password=password,
            args=invocation.of(context).args,
            is_yes=yes,
            is_json=is_json,
        )
        raise typer.Exit(act(request))

    after = {"yes": options.YesOption, "is_json": options.JsonOption}
    return asked.with_options(changefeed, FeedSpec, before=_BEFORE, after=after)


def run(request: Request) -> int:
    """Send until it is told to end; returns the exit code."""
    from vreplication.workflows.changefeed import run as feed

    _agree(request)
    spec, stop = request.spec, threading.Event()
    logs.start(spec.workflow or "")
    # In the main thread, unlike a copy: nothing here starts Spark, which would take SIGINT for itself.
    with stopping_on_signals(stop), logs.quiet_libraries(), Telling(is_json=request.is_json) as telling:
        result = feed.run(
            spec, request.sources, request.password, stop=stop, notify=telling.note, watch=telling.follow, by=by()
        )
    again = outcome.same_command(request.args, spec.workflow or "")
    # Its reason says itself what stays: nothing was to become of the source table, so nothing is said of it.
    return outcome.finish(result, is_json=request.is_json, again=again, is_move=True)


def _agree(request: Request) -> None:
    if request.is_yes or request.is_json or not invocation.is_terminal():
        return
    spec = request.spec
    every = " and ".join(str(source.database or "all databases") for source in request.sources)
    what = ", ".join(spec.tables) if spec.tables else f"all tables of {every}"
    servers = "\nand  ".join(map(str, request.sources))
    words = f"Send changes of {what}\nfrom {servers}\nto   {spec.sink}, workflow {spec.workflow}. Go on?"
    if not typer.confirm(mask(words), err=True):
        raise Refused("Not started.")


def plan(request: Request) -> int:
    """Print the plan; returns 2 when a check refuses."""
    from vreplication.workflows.changefeed.plan import explain, make_feed_plan, plan_json

    with ExitStack() as stack:
        sessions = [stack.enter_context(connect(url, read_timeout=TABLE_SECONDS)) for url in request.sources]
        made = make_feed_plan(sessions, request.spec, request.password)
    if request.is_json:
        json_line({"event": "plan", **plan_json(made)})
    else:
        say(explain(made))
    return Refused.exit_code if made.refusals else 0


class Telling:
    """Says how a feed goes, in a thread of its own: JSON each second, or a line every few seconds."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._driver: FeedDriver | None = None
        self._done = threading.Event()
        # A daemon: standard output may be a pipe that is full, and the feed ends all the same.
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)

    def __enter__(self) -> Telling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(5.0)

    def follow(self, driver: FeedDriver) -> None:
        self._driver = driver

    def note(self, text: str) -> None:
        if self._is_json:
            json_line({"event": "note", "text": mask(text)})
        else:
            tell(text)

    def _run(self) -> None:
        last = 0.0
        while not self._done.wait(_SECONDS):
            driver = self._driver
            # Before the first figures there is nothing true to be said, and a line of zeros would look like a feed
            # without a lag.
            if driver is None or not driver.figures:
                continue
            if self._is_json:
                json_line({"event": "progress", "workflow": driver.workflow, "phase": "streaming", **driver.figures})
            elif time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                tell(words(driver.figures))


def words(figures: dict[str, Any]) -> str:
    """One line on how a feed goes."""
    if figures.get("waiting_for"):
        return f"waiting: {figures['waiting_for']}"
    lag, why = figures.get("lag_seconds"), why_no_lag(figures)
    parts = [
        f"{numbers.count(figures.get('rows_sent') or 0)} rows sent",
        f"lag {numbers.duration(lag)}" if lag is not None else f"lag not known{f': {why}' if why else ' yet'}",
        f"{figures.get('partitions', '?')} partitions, generation {figures.get('generation', '?')}",
    ]
    return "streaming: " + ", ".join(parts)


def scale(
    workflow: options.WorkflowArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", min=1, max=MOST_PARTITIONS, help="So many from then on.")
    ],
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Grow or shrink a change feed, under load."""
    from vreplication.workflows.changefeed import run as feed

    url = options.resolve(source, source_file)
    said = feed.scale(url, names.check_workflow(workflow), partitions, by())
    if is_json:
        json_line({"event": "scaling", "workflow": workflow, "partitions": partitions})
    else:
        say(said)


def feed_check(
    topic: FromOption,
    dispatch: Annotated[
        Literal["key", "ts"], typer.Option("--dispatch", help="ts: rows are spread by time, so no key has a partition.")
    ] = "key",
    claims: ClaimsOption = None,
    sink_file: SinkFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Check a topic."""
    from vreplication.feed.address import parse
    from vreplication.feed.check import Broken, check

    address = parse(topic, sink_password(sink_file))
    try:
        report = check(address, has_keys=dispatch == "key", claims=claims)
    # Found, not failed: the offset is the answer that was asked for, and the code alone says that it is a bad one.
    except Broken as error:
        if is_json:
            json_line({"event": "broken", "partition": error.partition, "offset": error.offset, "reason": error.words})
        else:
            say(f"Broken: {error}")
        raise typer.Exit(1) from None
    if is_json:
        json_line({"event": "checked", **{name: getattr(report, name) for name in report.__slots__}})
        return
    keys = "" if report.are_keys_checked else " Whether each row stays in its partition was not looked at."
    say(
        f"All rules hold: {numbers.count(report.messages)} messages in {report.partitions} partitions,"
        f" {numbers.count(report.rows)} rows, {report.ddl} DDL, {report.generations} generations.{keys}"
    )
    for partition, offset, n in report.begins:
        say(f"Partition {partition} begins at offset {offset}, with n {n}: what was before is not there any more.")


def consume(
    topic: FromOption,
    mode: Annotated[
        Literal["row", "transaction"], typer.Option("--mode", help="What a reader of the target may see.")
    ] = "transaction",
    consumer_group: Annotated[
        str, typer.Option("--consumer-group", metavar="NAME", help="Processes of one group share the topic.")
    ] = "vreplication",
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    source: AskedOption = None,
    source_file: options.SourceFilesOption = None,
    claims: ClaimsOption = None,
    sink_file: SinkFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Apply a topic to a database."""
    from vreplication.feed import consume as consuming
    from vreplication.feed.address import parse

    # First of all, for a secret that stands in it is in nothing that is shown.
    address = parse(topic, sink_password(sink_file))
    # Before the target: what reads that takes the source's password out of the environment, too.
    sources = options.several(source, source_file) if source or source_file else ()
    url = options.servers(None, None, target, target_file, is_target=True).target
    assert url
    # A consumer is no workflow: its log is named by what its processes share.
    logs.start(consumer_group)
    stop = threading.Event()
    with stopping_on_signals(stop), logs.quiet_libraries(), Telling(is_json=is_json) as telling:
        telling.note(f"Applying {address} to {url}, {mode} by {mode}; Ctrl-C stops it, and the same command goes on.")
        consuming.consume(
            address,
            url,
            mode,
            group=consumer_group,
            stop=stop,
            notify=telling.note,
            claims=claims,
            sources=sources,
        )
    # Nothing but a signal ends it.
    raise Interrupted("Interrupted.")

"""A change feed from its first transaction on, until it is told to end.

What must stay true: `run` never raises an error of ours, it returns how the feed ended; nothing is made, on the source
or in Kafka, before every check has passed; whatever ends us, the same call goes on at the last committed progress.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from vreplication.engine import spool
from vreplication.engine.result import Result
from vreplication.errors import Cancelled, Interrupted, LeaseHeld, Refused, Terminal, Transient, VReplicationError
from vreplication.feed import dispatch
from vreplication.feed.address import Address, parse
from vreplication.feed.dispatch import MOST_PARTITIONS
from vreplication.feed.formats import make_format
from vreplication.feed.running import Service, end
from vreplication.feed.terms import Feed, Hooks, Origin
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import ENDED, OVER, Phase
from vreplication.state import feeds, ids, journal, layout, lease, sidecar, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.changefeed import policies, readdressed, replicas, roles
from vreplication.workflows.changefeed.driver import FeedDriver, Paused
from vreplication.workflows.changefeed.plan import FeedPlan, make_feed_plan
from vreplication.workflows.changefeed.spec import FeedSpec
from vreplication.workflows.lookup import FEED

log = logging.getLogger(__name__)

# With the shortest commit interval, 10 ms, the log of each source would get a hundred rows of ours a second.
_LEAST_PULSE_SECONDS = 0.2
# A broker that is started again is waited for. By force: somebody has said that it does not come back.
_FENCE_SECONDS, _FORCED_FENCE_SECONDS = 60.0, 10.0


def run(
    spec: FeedSpec,
    sources: Sequence[SourceUrl],
    password: str = "",
    *,
    stop: threading.Event,
    notify: Callable[[str], None],
    watch: Callable[[FeedDriver], None] = lambda driver: None,
    by: str = "",
) -> Result:
    """sources: the first has the workflow's state. watch: is told of the driver once it works, for its figures."""
    workflow = spec.workflow or ""
    driver: FeedDriver | None = None
    try:
        asked, spec = spec, create_or_resume(spec, sources, password, by)
        if words := not_taken(asked, spec):
            notify(words)
        driver = driver_of(spec, sources, stop)
        driver.start()
        watch(driver)
        serve(spec, sources, password, driver, notify)
        raise Terminal("The source's log ended.")
    except VReplicationError as error:
        return ended(spec, sources[0], password, driver, error)
    except Exception as error:  # a fault of ours: told like any other failure
        log.exception("feed %s ended by an unexpected error", workflow)
        return ended(spec, sources[0], password, driver, Terminal(f"Unexpected {type(error).__name__}: {error}"))
    finally:
        if driver:
            driver.close()


def driver_of(spec: FeedSpec, sources: Sequence[SourceUrl], stop: threading.Event) -> FeedDriver:
    """Not started yet."""
    pulse = max(_LEAST_PULSE_SECONDS, spec.commit_interval / 1000)
    return FeedDriver(sources[0], spec.workflow or "", stop, others=tuple(sources[1:]), pulse_seconds=pulse)


def serve(
    spec: FeedSpec,
    sources: Sequence[SourceUrl],
    password: str,
    driver: FeedDriver,
    notify: Callable[[str], None],
) -> None:
    """Until it is told to end. The driver has been started. Raises VReplicationError."""

    def waits(text: str) -> None:
        driver.waits(text)
        notify(text)

    def warn(text: str) -> None:
        if driver.warn(text):
            notify(text)

    hooks = Hooks(check=driver.check, wanted=lambda: driver.wanted, told=driver.told, warn=warn, is_ours=driver.is_ours)
    while True:
        try:
            driver.wait_while_paused()
            Service(feed=feed_of(spec, sources, password), hooks=hooks, notify=waits, stop=driver.stop).run()
        except Paused:
            # The dump has ended and the producer is closed: a feed that is paused for days holds its lease alone.
            notify("Paused: the log is read again from here when it is resumed.")


def feed_of(spec: FeedSpec, sources: Sequence[SourceUrl], password: str) -> Feed:
    """Raises Refused."""
    # A feed that goes on in this process: the URL's schema may have been dropped, and that stands in the log.
    with connect(sources[0], use_database=False) as session:
        row = workflows.load(session, spec.workflow or "")
        _, told = feeds.find(session, row.id) or (None, {})
    return Feed(
        id=spec.workflow or "",
        sources=tuple(_origin(spec, source) for source in sources),
        address=address_of(spec, password),
        rule=dispatch.parse(spec.dispatch),
        home=spool.home(row),
        partitions=spec.partitions,
        start=spec.start,
        commit_seconds=spec.commit_interval / 1000,
        gap_seconds=spec.commit_gap / 1000,
        xa_wait_seconds=spec.xa_wait_seconds,
        # As in catch-up: half of it for transactions whose end is not known yet.
        budget_bytes=spool.memory_bytes() // 2,
        is_snapshot=spec.snapshot == "initial",
        is_each=spec.topic_per_table,
        # A feed that has told of a topic is not begun anew, though its topics may be gone when Kafka answers again.
        was_begun="topic" in told,
        are_cascades_ignored=spec.cascades == "ignore",
        large=spec.policy,
        most_bytes=spec.max_message_bytes,
    )


def _origin(spec: FeedSpec, source: SourceUrl) -> Origin:
    options: dict[str, Any] = {}
    if spec.protocol == "debezium":
        with connect(source, use_database=False) as session:
            # As Debezium's, which names its topics so.
            server = parse(spec.sink).topic if spec.topic_per_table else spec.workflow
            options = {"server": server, "connector": "mariadb" if is_mariadb(session) else "mysql"}
    return Origin(url=source, filter=spec.filter(source.database), format=make_format(spec.protocol, **options))


def address_of(spec: FeedSpec, password: str) -> Address:
    return parse(spec.sink, password)


def create_or_resume(spec: FeedSpec, sources: Sequence[SourceUrl], password: str, by: str = "") -> FeedSpec:
    """What holds: of one that exists that which it was begun with. by: who triggered it. Raises Refused."""
    workflow = spec.workflow or ""
    with ExitStack() as stack:
        # Of a feed that goes on the URL's schema may have been dropped: that stands in the log, as any DDL.
        session, *others = (stack.enter_context(connect(source, use_database=False)) for source in sources)
        row = workflows.find(session, workflow)
        if row is not None:
            was = resumed(session, row)
            if not was.tables and sources[0].database != row.source_schema:
                _check_schemas(sources[:1])
            # First: where all brokers have other names the former address tells nothing of a source that is another.
            sink = _sink(session, row, was, spec, password)
            _check_sources(row, [session, *others], was.model_copy(update={"sink": sink}), password)
            return _with_changes(session, row, was, spec, sink)
        _check_schemas(sources)
        ids.check_free(session, workflow)
        if why := ids.queued(session, workflow, ("changefeed",)):
            raise Refused(why, cure=ids.CURE)
        check(make_feed_plan([session, *others], spec, password))
        # On each source, though the state is on the first: its own heartbeat moves each log's time on while nobody
        # writes.
        for each in (session, *others):
            layout.install(each)
            with each.transaction():
                feeds.begin(each, workflow)
        # Last: where it was cut short before this no feed of the id is known, and the same command plans it anew.
        workflows.create(session, _row(session, spec))
        journal.write(session, workflow, "started", f"into {spec.sink}", actor=by or lease.me())
    return spec


def _check_schemas(sources: Sequence[SourceUrl]) -> None:
    """Raises Refused: what is misspelled would be followed, and bring nothing."""
    for source in sources:
        connect(source).close()


def not_taken(asked: FeedSpec, holds: FeedSpec) -> str:
    """What a feed that goes on does otherwise than it is asked to now, in words; '': nothing."""
    # Without a word whoever adds a table to the command would take it for followed.
    names = [name for name in FeedSpec.model_fields if getattr(asked, name) != getattr(holds, name)]
    shown = ", ".join(f"{name.replace('_', '-')} {_shown(getattr(holds, name))}" for name in names)
    words = f"What the feed began with holds on: {shown}." if names else ""
    # Of the same topic: another one is another feed's.
    is_moved = "sink" in names and parse(asked.sink).topic == parse(holds.sink).topic
    return f"{words} Another address is taken where it answers, while no process runs the feed." if is_moved else words


def _shown(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _sink(session: Session, row: WorkflowRow, was: FeedSpec, asked: FeedSpec, password: str) -> str:
    """Where it sends to from now on. Raises Refused, Terminal."""
    # A process that runs goes on with its own.
    if lease.is_alive(session, row.id, lease.DRIVER):
        return was.sink
    _, told = feeds.find(session, row.id) or (None, {})
    return readdressed.address(was, asked, told, password)


def _with_changes(session: Session, row: WorkflowRow, was: FeedSpec, asked: FeedSpec, sink: str) -> FeedSpec:
    """What may be another from now on: the policy, its limit, what is accepted, and an address of the same topic.

    Raises Refused where it may not.
    """
    given = {"max_message": asked.max_message, "max_message_bytes": asked.max_message_bytes, "sink": sink}
    # It goes one way: what was accepted once is not taken back by a command that leaves the option out.
    given |= {"cascades": "ignore"} if asked.cascades == "ignore" else {}
    other = {name: value for name, value in given.items() if value is not None and value != getattr(was, name)}
    if not other:
        return was
    now = was.model_copy(update=other)
    _check_policy(row.id, was, now)
    workflows.set_spec(session, row.id, now.model_dump(mode="json"))
    words = " and ".join(f"{name}: {getattr(was, name)} becomes {value}" for name, value in other.items())
    event = "options" if {"cascades", "sink"} & other.keys() else "large messages"
    journal.write(session, row.id, event, words, actor=lease.me())
    return now


def _check_policy(workflow: str, was: FeedSpec, now: FeedSpec) -> None:
    """Raises Refused."""
    if now.max_message_bytes != was.max_message_bytes and "parts" in (was.policy.way, now.policy.way):
        raise Refused(
            f"Feed {workflow} cuts large messages into parts of one size, so --max-message-bytes stays as it was.",
            cure="Leave it out, or begin another feed into another topic.",
        )
    if not was.policy.may_become(now.policy):
        raise Refused(
            f"Feed {workflow} has --max-message {was.policy}, which cannot become {now.policy}: parts of a row may"
            " stand in the topic already, or a file instead of them.",
            cure=f"Leave --max-message out, or begin another feed into another topic with {now.policy}.",
        )
    if lacking := policies.lacking(now.policy):
        raise Refused(lacking, cure=policies.DIRECTORY_CURE)


def _check_sources(row: WorkflowRow, sessions: Sequence[Session], spec: FeedSpec, password: str) -> None:
    """They are those of its start, or may go on in their places. Raises Refused, Transient."""
    _, told = feeds.find(sessions[0], row.id) or (None, {})
    roles.known(sessions, told)
    replicas.check(row, sessions, spec, password, lambda: feed_of(spec, [each.url for each in sessions], password))


def check(plan: FeedPlan) -> None:
    """Raises Refused with the sentences of all checks that say no."""
    if plan.refusals:
        raise Refused(" ".join(f"{each.sentence} {each.cure}".strip() for each in plan.refusals))


def resumed(session: Session, row: WorkflowRow) -> FeedSpec:
    """With what it was begun. Raises Refused of what is no feed, or has ended."""
    if row.kind != FEED:
        raise Refused(f"Workflow {row.id} is no change feed.", cure="Give the new one another --workflow id.")
    if row.phase in OVER:
        raise Refused(f"Feed {row.id} has ended ({row.phase}).", cure="Give the new one another --workflow id.")
    return FeedSpec.model_validate({**row.spec, "workflow": row.id})


def _row(session: Session, spec: FeedSpec) -> WorkflowRow:
    return WorkflowRow(
        id=spec.workflow or "",
        kind=FEED,
        protocol=sidecar.PROTOCOL,
        source_schema=session.url.database or "",
        source_table="*",
        spec=spec.model_dump(mode="json"),
        phase=Phase.PREPARING,
        is_paused=False,
        is_cancel_requested=False,
        reason=None,
        shadow_table="",
        retired_table="",
        copy_path="rows",
        source_identity=None,
        shadow_identity=None,
        source_definition=None,
        server_identity=identity_of(session)[:64],
        start_position=None,
        is_cut=False,
        rows_total=None,
    )


# The end.


def ended(
    spec: FeedSpec, source: SourceUrl, password: str, driver: FeedDriver | None, error: VReplicationError
) -> Result:
    workflow = spec.workflow or ""
    if driver is None or driver.our_lease is None:
        return _unwritten(workflow, error)
    try:
        with connect(source, use_database=False) as session:
            # To note a failure is a write, too, and none may come to a server that has become a replica.
            if not isinstance(error, Interrupted | Transient) and not driver.may_write(session):
                return _unwritten(workflow, error)
            return _told(session, spec, password, driver, error)
    except VReplicationError as other:
        log.error("the feed's end could not be told: %s", other)
        # A server or a broker that is away comes back, and the same call goes on there.
        if isinstance(other, Transient):
            return _result("interrupted", workflow, str(other), 1)
        return _result("failed", workflow, f"{error} It could not be noted on the source: {other}", 1)


def _unwritten(workflow: str, error: VReplicationError) -> Result:
    """The source is told nothing of it."""
    is_refused = isinstance(error, Refused | LeaseHeld)
    event = "refused" if is_refused else "failed"
    return Result(event=event, workflow=workflow, reason=str(error), exit_code=2 if is_refused else 1)


def _told(session: Session, spec: FeedSpec, password: str, driver: FeedDriver, error: VReplicationError) -> Result:
    workflow = spec.workflow or ""
    if isinstance(error, Cancelled):
        return cancelled(session, spec, password)
    if isinstance(error, Interrupted | Transient):
        # Nothing is noted: the phase stays, by which the same command goes on.
        return _result("interrupted", workflow, str(error), error.exit_code)
    # Whoever has taken over sends on, and no failure of ours may stand in the row of a feed that runs.
    if driver.our_lease and lease.is_held(session, driver.our_lease):
        workflows.move(session, workflow, Phase.FAILED, str(error), our_lease=driver.our_lease)
        journal.write(session, workflow, "failed", str(error), actor=lease.me())
    return _result("failed", workflow, str(error), 1)


def cancelled(session: Session, spec: FeedSpec, password: str) -> Result:
    """End it for good: no process of ours can send any more. Topics and what they hold stay.

    The lease is held. Raises Transient where the broker cannot be told, unless that was said to be no reason.
    """
    workflow = spec.workflow or ""
    row = workflows.load(session, workflow)
    # The fence before the end is written: a process of ours that is cut off could send on for a feed that is over.
    unknown = _fenced(session, spec, password)
    spool.forget(row)
    workflows.move(session, workflow, Phase.CANCELLED, f"cancelled by the operator. {unknown}".removesuffix(". "))
    journal.write(session, workflow, "cancelled", unknown, actor=lease.me())
    return _result("cancelled", workflow, f"Cancelled; the topic and what it holds stay. {unknown}".strip(), 3)


def _fenced(session: Session, spec: FeedSpec, password: str) -> str:
    """Whoever has sent cannot any more: ''; or what is not known, where that was forced. Raises Transient."""

    def is_forced() -> bool:
        return workflows.load(session, spec.workflow or "").is_cancel_forced

    seconds, until = (
        (_FORCED_FENCE_SECONDS if is_forced() else _FENCE_SECONDS),
        time.monotonic() + _FORCED_FENCE_SECONDS,
    )

    def check() -> None:
        if time.monotonic() > until and is_forced():
            raise Transient("Kafka does not answer.")

    try:
        end(feed_of(spec, [session.url], password), seconds, check)
    except VReplicationError as error:
        log.warning("the feed's producer could not be fenced: %s", error)
        if is_forced():
            return UNFENCED
        # Of the command line nothing tries again by itself: whoever was to end it ends with this.
        force = f"`vreplication cancel {spec.workflow} --force`"
        cure = f"Cancel it again when Kafka answers; {force} ends it without that."
        raise Transient(
            f"The feed's producer cannot be fenced, so it is not cancelled yet. {error}", cure=cure
        ) from None
    return ""


UNFENCED = (
    "Kafka could not be told, so the producer is not fenced: our processes send no more, but not known is whether the"
    " last transaction was committed; a process that is cut off may still commit what it had read."
)
"""Of a feed that was cancelled by force."""


def _result(event: str, workflow: str, reason: str, exit_code: int) -> Result:
    resume = f"vreplication resume {workflow}" if event in ("failed", "interrupted") else None
    return Result(event=event, workflow=workflow, reason=reason, resume_command=resume, exit_code=exit_code)


# The operator's acts.


def resume(
    sources: Sequence[SourceUrl],
    workflow: str,
    password: str,
    *,
    stop: threading.Event,
    notify: Callable[[str], None],
    watch: Callable[[FeedDriver], None] = lambda driver: None,
) -> Result | None:
    """Unpause; run it where no process does. None: one does."""
    with connect(sources[0], use_database=False) as session:
        row = workflows.load(session, workflow)
        spec = resumed(session, row)
        is_driven = lease.is_alive(session, workflow, lease.DRIVER)
        if not is_driven:
            with ExitStack() as stack:
                others = [stack.enter_context(connect(source, use_database=False)) for source in sources[1:]]
                # Before it is unpaused: what is refused leaves the feed as it was.
                _check_sources(row, [session, *others], spec, password)
        workflows.set_paused(session, workflow, False)
        if is_driven:
            return None
    return run(spec, sources, password, stop=stop, notify=notify, watch=watch)


def cancel(source: SourceUrl, workflow: str, password: str) -> Result:
    """Of a feed without a process."""
    with connect(source, use_database=False) as session:
        spec = resumed(session, workflows.load(session, workflow))
        # A process that begins meanwhile is refused, so that it sends nothing behind the fence.
        held = lease.acquire(session, workflow, lease.DRIVER)
        try:
            return cancelled(session, spec, password)
        finally:
            lease.release(session, held)


def scale(source: SourceUrl, workflow: str, partitions: int, by: str) -> str:
    """Ask for so many partitions; whoever sends takes it up. Returns what is to be said."""
    with connect(source, use_database=False) as session:
        _check_scalable(workflows.load(session, workflow))
        _, figures = feeds.find(session, workflow) or (None, {})
        topics = int(figures.get("topics") or 1)
        if not 1 <= partitions <= (most := MOST_PARTITIONS // topics):
            of_all = f" for each of its {topics:,} topics" if topics > 1 else ""
            raise Refused(f"A feed has from 1 to {most:,} partitions{of_all}.")
        feeds.want(session, workflow, partitions)
        journal.write(session, workflow, "scale", f"to {partitions} partitions", actor=by)
        if not lease.is_alive(session, workflow, lease.DRIVER):
            return f"Noted; it is done when the feed runs: vreplication resume {workflow}"
    return f"Asked for {partitions} partitions; `vreplication status {workflow}` shows when it is done."


def _check_scalable(row: WorkflowRow) -> None:
    """Raises Refused."""
    if row.kind != FEED:
        raise Refused(
            f"Workflow {row.id} is no change feed, and has no partitions.",
            cure="`vreplication status` lists the feeds.",
        )
    if row.phase in OVER:
        raise Refused(f"Feed {row.id} has ended ({row.phase}) and cannot be scaled.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How far it is. waits_for: what holds it, in words; reason: why it will not be done."""

    is_done: bool = False
    waits_for: str = ""
    reason: str = ""


def scaling(session: Session, workflow: str, partitions: int) -> Scaling:
    """Of what `scale` has asked for."""
    row, found = workflows.load(session, workflow), feeds.find(session, workflow)
    wanted, figures = found or (None, {})
    if row.phase in ENDED:
        return Scaling(reason=row.reason or f"Feed {workflow} has ended ({row.phase}).")
    if figures.get("partitions") == partitions:
        return Scaling(is_done=True)
    if wanted != partitions:
        return Scaling(reason=f"Somebody has asked for {wanted} partitions meanwhile.")
    if not lease.is_alive(session, workflow, lease.DRIVER):
        return Scaling(waits_for=f"feed {workflow}, on which no process works")
    if row.is_paused:
        return Scaling(waits_for=f"feed {workflow}, which is paused")
    return Scaling(waits_for=figures.get("waiting_for") or f"the commit of generation {_next(figures)}")


def _next(figures: dict[str, Any]) -> int:
    return int(figures.get("generation") or 0) + 1

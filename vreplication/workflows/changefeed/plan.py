"""A plan of a change feed: every check of the source, the topic and the tables; making one touches nothing.

What must stay true: no check is left out because another refused; a plan with a refusal is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vreplication.errors import VReplicationError
from vreplication.feed import conflicts, dispatch
from vreplication.feed.address import Address, parse
from vreplication.feed.broker import Broker
from vreplication.feed.catalog import Filter, without
from vreplication.feed.dispatch import Dispatcher, Weights
from vreplication.feed.lanes import Named, topic_name
from vreplication.feed.layout import Layout, make_layout
from vreplication.feed.snapshot import unreadable
from vreplication.feed.topics import KEYLESS, followed, holds, unfit, unusable, versioned
from vreplication.masking import mask
from vreplication.mysql.server import Server, identity_of, inspect
from vreplication.mysql.session import Session
from vreplication.planning import privileges, server_checks, unlogged
from vreplication.planning.explain import body, check_json
from vreplication.planning.facts import Check, Verdict, looked, ok, refuse, warn
from vreplication.planning.stages import Explained, Stage
from vreplication.schema.introspect import introspect
from vreplication.workflows.changefeed import cascades, left_out, patterns, policies
from vreplication.workflows.changefeed.spec import FeedSpec
from vreplication.workflows.changefeed.stages import STAGES

# Rows of several sources are merged by the times of their commits: all wait for the clock that is behind.
_CLOCKS_SECONDS = 2.0
_SHOWN = 20
_LOOKED_AT = 200
"""Tables whose definitions are read one by one; of more, the first so many."""
_SERVER = (
    server_checks.version,
    server_checks.binary_log,
    server_checks.log_format,
    server_checks.row_image,
    server_checks.partial_json,
    server_checks.log_filters,
    server_checks.compression,
    server_checks.places,
    server_checks.retention,
    server_checks.replica,
    server_checks.prepared,
)
# A feed reads the tables and writes to our schema alone, so it has less to ask for than what copies.
_FEED_SOURCE = privileges.Role(
    on_schema=frozenset({"SELECT"}),
    on_sidecar=frozenset({"CREATE", "ALTER", "SELECT", "INSERT", "UPDATE", "DELETE"}),
    is_global={
        True: frozenset(
            {"REPLICATION SLAVE", "BINLOG MONITOR", "REPLICATION MASTER ADMIN", "SLAVE MONITOR", "PROCESS"}
        ),
        False: frozenset({"REPLICATION SLAVE", "REPLICATION CLIENT", "PROCESS", "XA_RECOVER_ADMIN"}),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFacts:
    """What the checks read. tables: those that are there now and would be followed."""

    session: Session
    server: Server
    spec: Any
    filter: Filter
    address: Address
    broker: Broker
    tables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlan:
    """servers: the sources. tables, checks: of all of them."""

    spec: FeedSpec
    servers: tuple[Server, ...]
    tables: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...]
    stages: tuple[tuple[Stage[Any], Explained], ...]

    @property
    def topics(self) -> list[str]:
        """That the feed writes, as far as its tables are there."""
        prefix, tables = parse(self.spec.sink).topic, dict.fromkeys(self.tables)
        return [prefix, *(topics_of(prefix, tables) if self.spec.topic_per_table else ())]

    @property
    def refusals(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict is Verdict.REFUSE)


def make_feed_plan(sessions: Sequence[Session], spec: FeedSpec, password: str = "") -> FeedPlan:
    address = parse(spec.sink, password)
    broker = Broker(address)
    each = [_facts(session, spec, address, broker) for session in sessions]
    return FeedPlan(
        spec=spec,
        servers=tuple(facts.server for facts in each),
        tables=tuple(table for facts in each for table in facts.tables),
        checks=tuple(_checks(each)),
        stages=tuple((stage, stage.explain(each[0])) for stage in STAGES),
    )


def replica_checks(session: Session, spec: FeedSpec, password: str = "") -> list[Check]:
    """Of a server that is to go on in the place of a source. Branches may be prepared there: they were read."""
    address = parse(spec.sink, password)
    facts = _facts(session, spec, address, Broker(address))
    asked = tuple(each for each in (*_SERVER, server_checks.writable) if each is not server_checks.prepared)
    found = [*server_checks.run(facts, asked)]
    found.append(looked(left_out.NAME, lambda: left_out.check(session, facts.tables)))
    return [*found, *(looked(name, partial(check, facts)) for name, check in _OF_LOG)]


def _facts(session: Session, spec: FeedSpec, address: Address, broker: Broker) -> FeedFacts:
    found = spec.filter(session.url.database or "")
    return FeedFacts(
        session=session,
        server=inspect(session),
        spec=spec,
        filter=found,
        address=address,
        broker=broker,
        tables=tuple(followed(session, found)),
    )


_Checks = tuple[tuple[str, Callable[[FeedFacts], Check]], ...]


def _checks(sources: Sequence[FeedFacts]) -> Iterator[Check]:
    of_source: _Checks = (
        *_OF_LOG,
        ("tables", _has_tables),
        ("dispatch", _dispatch),
        (unlogged.NAME, _generated),
        (cascades.NAME, cascades.check),
    )
    if not (silent := _silence(sources[0])):
        # Each of those that ask the broker would wait for it, and say in other words that it is away.
        of_source += ((policies.NAME, lambda facts: policies.check(facts, partial(_layout, facts))),)
    is_filled = sources[0].spec.snapshot == "initial"
    if is_filled:
        of_source += (("snapshot", _snapshot),)
    for facts in sources:
        # Only a snapshot reads rows, and needs them to be visible in the log's order.
        of_server = server_checks.run(facts, (*_SERVER, server_checks.commit_order) if is_filled else _SERVER)
        found = [*of_server, *(looked(name, partial(check, facts)) for name, check in of_source)]
        yield from (_of(facts, check) for check in found) if len(sources) > 1 else found
    if len(sources) > 1:
        yield from together(sources)
    yield looked(patterns.NAME, partial(patterns.check, sources))
    if silent:
        yield silent
        return
    of_broker: _Checks = (("topic", _topic), ("durability", _durability))
    for name, check in of_broker:
        yield looked(name, partial(check, sources[0]))
    if sources[0].spec.topic_per_table:
        yield looked("topics", partial(_topics, sources))


def _silence(facts: FeedFacts) -> Check | None:
    """None: a broker answers."""
    try:
        facts.broker.brokers()
    except VReplicationError as error:
        cure = error.cure or "Check that Kafka runs, and the address and the login that --sink gives."
        return refuse("broker", error.message, cure)
    return None


def _of(facts: FeedFacts, check: Check) -> Check:
    """Which of the sources it was."""
    url = facts.session.url
    return replace(check, sentence=f"{url.host}:{url.port}: {check.sentence}")


def together(sources: Sequence[FeedFacts]) -> Iterator[Check]:
    """What several sources have to be beside each other."""
    yield looked("servers", partial(_servers, sources))
    yield looked("clocks", partial(_clocks, sources))
    if sources[0].spec.start not in ("now", "earliest"):
        yield refuse("start", "GTIDs name a place in the log of one source only.", "Use --start now or earliest.")
    if sources[0].spec.dispatch == "conflict":
        yield refuse(
            "dispatch",
            "Values of two servers cannot be told equal, so conflict is for one source.",
            "Use index-value, or a feed for each source.",
        )
    tables = [table for facts in sources for table in facts.tables]
    if twice := sorted({f"{schema}.{table}" for schema, table in tables if tables.count((schema, table)) > 1}):
        yield warn(
            "names",
            f"{twice[0]} and {len(twice) - 1} more tables are on several sources: a consumer writes their rows into one"
            " table, and DDL comes from each of them.",
            "Give their rows keys that differ, or use a feed for each source.",
        )


def _servers(sources: Sequence[FeedFacts]) -> Check:
    found = [identity_of(facts.session) for facts in sources]
    if len(set(found)) < len(found):
        return refuse("servers", "Two of the sources are one server.", "Name each server once, and its tables.")
    return ok("servers", f"{len(found)} servers, whose rows are merged by the times of their commits.")


def _clocks(sources: Sequence[FeedFacts]) -> Check:
    now = [float(facts.session.value("SELECT UNIX_TIMESTAMP(NOW(6))")) for facts in sources]
    apart = max(now) - min(now)
    if apart > _CLOCKS_SECONDS:
        return warn(
            "clocks",
            f"The sources' clocks are {apart:.1f} s apart: every row comes later by as much.",
            "Set the servers' clocks by one source of time.",
        )
    return ok("clocks", "The sources' clocks agree.")


def _row_metadata(facts: FeedFacts) -> Check:
    found = facts.server.setting("binlog_row_metadata") or "MINIMAL"
    if found.upper() != "FULL":
        return refuse(
            "row metadata",
            f"binlog_row_metadata is {found}: the log does not name the columns of its rows.",
            "SET GLOBAL binlog_row_metadata=FULL, and keep it in the server's configuration.",
        )
    return ok("row metadata", "The log describes the tables of its rows.")


def _privileges(facts: FeedFacts) -> Check:
    schema = facts.session.url.database or "*"
    lacks = [
        each
        for each in privileges.lacking(facts.session, _FEED_SOURCE, schema, is_mariadb=facts.server.is_mariadb)
        # A feed cuts nothing over: who holds a lock is no question of its.
        if "performance_schema" not in each
    ]
    if lacks:
        return refuse("privileges", "The user lacks privileges.", " ".join(lacks) + " (sql/grants/ has all of them)")
    return ok("privileges", "The user has all that is needed.")


_OF_LOG: _Checks = (("row metadata", _row_metadata), ("privileges", _privileges))


def _has_tables(facts: FeedFacts) -> Check:
    if not facts.tables:
        return warn("tables", "No table is there that is to be followed; those that come are.")
    return ok("tables", f"{len(facts.tables)} tables are followed, and those that come.")


def _dispatch(facts: FeedFacts) -> Check:
    rule = dispatch.parse(facts.spec.dispatch)
    dispatcher = Dispatcher(rule, 1, Weights(facts.session))
    several, always, parted = [], [], []
    for schema, table in facts.tables[:_LOOKED_AT]:
        layout = _layout(facts, schema, table)
        dispatcher.check(layout)
        if rule.way == "index-value" and conflicts.is_checked(layout):
            several.append(layout.name)
        if rule.way == "conflict" and conflicts.always(layout):
            always.append(layout.name)
        if rule.way == "columns" and dispatch.may_part(layout, rule.columns):
            parted.append(layout.name)
    if several:
        return warn(
            "dispatch",
            f"{several[0]} and {len(several) - 1} more tables have further unique keys: in row mode a consumer may meet"
            " a value in two partitions.",
            "Use --dispatch conflict or table, or consume in transaction mode.",
        )
    if parted:
        return warn(
            "dispatch",
            f"{parted[0]} and {len(parted) - 1} more tables have a unique key without {', '.join(rule.columns)}: in row"
            " mode a consumer ends at the first row that gives up its primary key, and may meet a value of another"
            " unique key in two partitions.",
            "Use --dispatch table, or by columns of each unique key, or consume in transaction mode.",
        )
    if always:
        return warn(
            "dispatch",
            f"{always[0]} and {len(always) - 1} more tables have a unique key whose values cannot be compared here (an"
            " expression, or a collation whose weights do not say what is equal): their rows wait for each other.",
            "Use --dispatch table, or consume in transaction mode.",
        )
    if rule.way == "ts":
        return warn("dispatch", "Rows go by their time: a row's changes are in order in transaction mode only.")
    return ok("dispatch", f"Rows go by {rule}.")


def _generated(facts: FeedFacts) -> Check:
    for schema, table in facts.tables if unlogged.leaves_out(facts.server) else ():
        layout = _layout(facts, schema, table)
        if refused := unlogged.refuse_to_send(facts.server, layout.name, layout.columns):
            return refused
    return ok(unlogged.NAME, "The log has every column that is sent.")


def _snapshot(facts: FeedFacts) -> Check:
    """Of every table, for one that cannot be read would end the feed halfway."""
    if words := versioned(facts.session, facts.filter):
        return refuse("snapshot", f"{words}.", "Leave it out (--exclude), or begin without --snapshot.")
    for schema, table in facts.tables:
        if found := unreadable(_layout(facts, schema, table)):
            return refuse(
                "snapshot",
                found[0],
                f"{found[1]}, leave it out (--exclude), or begin without --snapshot.",
            )
    return ok("snapshot", f"Rows of {len(facts.tables)} tables are sent first, in the order of their keys.")


def _layout(facts: FeedFacts, schema: str, table: str) -> Layout:
    found = introspect(facts.session, schema, table)
    layout = make_layout(0, found)
    return without(layout, facts.filter.sent(layout.name, layout.columns, layout.key if layout.has_key else ()))


def _topic(facts: FeedFacts) -> Check:
    found = facts.broker.find(facts.address.topic)
    if found is None:
        return ok("topic", f"Topic {facts.address.topic} is made, with {facts.spec.partitions or 1} partitions.")
    if found.is_compacted and facts.spec.protocol in KEYLESS:
        return refuse(
            "topic",
            f"Topic {found.name} is compacted; messages of {facts.spec.protocol} have no key that lasts.",
            "Use a topic with cleanup.policy=delete.",
        )
    if holds(facts.broker, found):
        return refuse("topic", f"Topic {found.name} holds messages already.", "Name a new topic, or an empty one.")
    return ok("topic", f"Topic {found.name} is there, empty, with {found.partitions} partitions.")


def _topics(sources: Sequence[FeedFacts]) -> Check:
    """One for each table that is there."""
    facts, tables = sources[0], list(dict.fromkeys(table for each in sources for table in each.tables))
    prefix, main = facts.address.topic, facts.broker.find(facts.address.topic)
    count = facts.spec.partitions or (main.partitions if main else 1)
    if words := unfit(prefix, tables, count):
        return refuse("topics", words, "Leave tables out (--exclude), or use one topic for all.")
    names = topics_of(prefix, tables)
    seen = facts.broker.look(names)
    for name, each in seen.items():
        words = unusable(facts.broker, facts.broker.find(name), main, facts.spec.protocol)
        if not words and each.partitions > count:
            words = f"Topic {name} has {each.partitions} partitions, the feed's have {count}."
        if words:
            return refuse("topics", words, "Delete it, leave its table out, or name another topic in --sink.")
    made = [name for name in names if name not in seen]
    shown = ", ".join(made[:_SHOWN]) + (f" and {len(made) - _SHOWN} more" if len(made) > _SHOWN else "")
    words = f"{len(made)} topics are made for tables ({shown})" if made else "No topic is made for a table"
    kept = f", {len(seen)} are there, empty" if seen else ""
    return ok("topics", f"{words}{kept}; each with {count} partitions, and one for each table that comes.")


def topics_of(prefix: str, tables: Iterable[Named]) -> list[str]:
    return [topic_name(prefix, *table) for table in tables]


def _durability(facts: FeedFacts) -> Check:
    brokers = facts.broker.brokers()
    found = facts.broker.find(facts.address.topic)
    if not facts.broker.verifies_transactions():
        return refuse(
            "durability",
            "The brokers do not verify transactions (transaction.partition.verification.enable=false).",
            "Set it to true on every broker.",
        )
    if found is not None and brokers >= found.replicas > 1 and found.least_in_sync < 2:
        return refuse(
            "durability",
            f"Topic {found.name} takes a message with one replica in sync (min.insync.replicas).",
            "Set min.insync.replicas=2.",
        )
    if brokers < 3 or (found is not None and found.replicas < 3):
        return warn("durability", f"{brokers} brokers: a disk that is lost loses messages.", "Use three or more.")
    return ok("durability", "Messages are on three brokers, two of them in sync.")


# In words.


def explain(plan: FeedPlan) -> str:
    tables = [f"  table         {schema}.{table}" for schema, table in plan.tables[:20]]
    more = [f"  and {len(plan.tables) - 20} more"] if len(plan.tables) > 20 else []
    lines = [
        f"Send changes of {' and '.join(map(str, plan.servers))} to {mask(plan.spec.sink)}, as {plan.spec.protocol}",
        "",
        *tables,
        *more,
        "",
        *body(plan.checks, [(stage.name, found) for stage, found in plan.stages]),
        _verdict(plan),
    ]
    return "\n".join(lines)


def _verdict(plan: FeedPlan) -> str:
    if plan.refusals:
        return f"Refused: {len(plan.refusals)} of {len(plan.checks)} checks say no. Nothing was touched."
    return "The feed can begin. Nothing was touched."


def plan_json(plan: FeedPlan) -> dict[str, Any]:
    return {
        "source": str(plan.servers[0]),
        "sources": [str(server) for server in plan.servers],
        "sink": mask(plan.spec.sink),
        "is_refused": bool(plan.refusals),
        "tables": [f"{schema}.{table}" for schema, table in plan.tables],
        "topics": plan.topics,
        "checks": [check_json(check) for check in plan.checks],
        "stages": [
            {"name": s.name, "phases": list(s.phases), "sentence": e.sentence, "statements": list(e.statements)}
            for s, e in plan.stages
        ],
    }

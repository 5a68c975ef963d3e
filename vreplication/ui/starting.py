"""A new migration before anything is triggered: its form, the table's definition, and the plan of what was asked for.

What must stay true: nothing is changed here, and nothing is started: the browser triggers the DAG at Airflow's own API,
in the person's name, with the very values that were planned; whom nobody waits for any more ends on the server, too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from vreplication import names
from vreplication.errors import Refused, Transient, VReplicationError
from vreplication.masking import masked
from vreplication.mysql.disk import size
from vreplication.mysql.session import ConnectionLost, Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.explain import check_json
from vreplication.planning.facts import Verdict
from vreplication.planning.fields import DEFAULT_WORDS, SECTION
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec, make_spec, split_table
from vreplication.planning.table_checks import SYSTEM_SCHEMAS
from vreplication.planning.window import window_of
from vreplication.schema.difference import definitions_of
from vreplication.schema.introspect import base_tables, introspect
from vreplication.ui import detail
from vreplication.ui.asking import Source, quick
from vreplication.ui.view import Data
from vreplication.workflows.registry import for_forms, named_field

T = TypeVar("T")
PLAN_SECONDS = 20.0
"""For a statement of a plan: a person waits, and with them a thread of the web server."""
SECTIONS = {"when": "How the switch goes", "how": "How hard to work", "rare": "Rarely needed"}
_ASKED_FIRST = ("table", "alter", "cutover", "cutover_window", "workflow")
_MOST_TABLES = 5_000
_RANK = {Verdict.REFUSE: 0, Verdict.WARN: 1, Verdict.OK: 2}


class WrongField(Refused):
    """field: which of the form's."""

    def __init__(self, message: str, *, field: str, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.field = field


@functools.cache
def sections() -> list[Data]:
    """The fields of the form that are folded at first, as the spec has them. Where Spark runs, the deployment says."""
    found = Spec.model_json_schema()["properties"]
    fields = [_field(name, schema) for name, schema in found.items() if name not in _ASKED_FIRST]
    grouped = {part: [each for each in fields if each["section"] == part] for part in SECTIONS}
    return [{"title": SECTIONS[part], "fields": some} for part, some in grouped.items() if some]


def _field(name: str, schema: Mapping[str, Any]) -> Data:
    parts = [schema, *schema.get("anyOf", ())]
    default = Spec.model_fields[name].default
    words = [schema["description"], *(f"Such as {each[0]}." for each in (schema.get("examples"),) if each)]
    return {
        "name": name,
        "section": schema[SECTION],
        "title": schema["title"],
        "description": " ".join(words).replace("`", ""),
        "choices": next((part["enum"] for part in parts if "enum" in part), None),
        "is_switch": schema.get("type") == "boolean",
        "default": "" if default is None else f"{default:g}" if isinstance(default, float) else default,
        "unset": schema.get(DEFAULT_WORDS, ""),
    }


def tables(session: Session) -> list[str]:
    """What can be named, the default database's first and by their bare names."""
    found = base_tables(session, SYSTEM_SCHEMAS, _MOST_TABLES)
    own = session.url.database
    # Shadow and retired tables are ours: planning refuses them, so they are not offered.
    theirs = sorted((each for each in found if not names.is_ours(each[1])), key=lambda each: each[0] != own)
    return [_named(schema, table, own) for schema, table in theirs]


def _named(schema: str, table: str, default: str) -> str:
    parts = [table] if schema == default else [schema, table]
    return ".".join(f"`{part.replace('`', '``')}`" if set(part) & set(".`") else part for part in parts)


def usable(source: Source) -> Source:
    """The same. Raises Refused where nothing can be asked of it."""
    if source.url is None:
        raise WrongField(f"{source.conn_id} cannot be used: {source.problem}", field="conn_id")
    return source


def current(source: Source, table: str) -> Data:
    """The table's definition now. Raises VReplicationError."""
    place = _place(table, source)
    with _of_field("table"):
        found = _asked(source, lambda session: introspect(session, *place), "Ask again later.")
    definition = definitions_of(found, None)
    return {"table": f"{found.schema}.{found.name}", "rows": found.estimated_rows, "definition": definition.before}


def _place(table: str, source: Source) -> tuple[str, str]:
    with _of_field("table"):
        schema, name = split_table(table.strip(), source.url.database if source.url else "")
    if not schema:
        words = f"{table} needs its database, for the connection names none."
        raise WrongField(words, field="table", cure="Write schema.name.")
    return schema, name


def planned(source: Source, given: Mapping[str, Any]) -> Data:
    """What `plan` says, and what the DAG run has to be asked for (`conf`). Raises VReplicationError."""
    _place(str(given.get("table") or ""), source)
    spec, conf = _request(source.conn_id, given)
    cure = "`vreplication plan online-ddl` waits as long as it takes."
    # For its refusals: they are the table's, and stand at its field.
    current(source, spec.table)
    plan = _asked(source, lambda session: make_plan(session, spec, is_dry=True), cure)
    assert source.url is not None
    workflow = spec.workflow or names.new_workflow(plan.source.name)
    found = _told(plan) | {"conn_id": source.conn_id, "conf": conf, "workflow": workflow}
    return dict(masked(found, source.url.secrets))


def _request(conn_id: str, given: Mapping[str, Any]) -> tuple[Spec, Data]:
    """As a DAG run reads its params, and only those that say something. Raises Refused."""
    asked = {name: value for name, value in given.items() if value not in (None, "")}
    cutover = str(asked.get("cutover") or "auto")
    with _of_field():
        window_of(cutover, asked.get("cutover_window"))
        # Empty ones, so that a field that is missing is refused as one that says nothing, in words that a form can
        # show.
        spec = make_spec(**{"table": "", "alter": "", **asked, "cutover": "auto" if cutover == "auto" else "manual"})
    # The defaults of the run are the same (airflow/params.py); what is left shows in Airflow what was chosen.
    said = spec.model_dump(mode="json", include=set(asked) - {"cutover"}, exclude_defaults=True)
    return spec, {"source_conn_id": conn_id, **said, "cutover": cutover}


@contextlib.contextmanager
def _of_field(known: str = "") -> Iterator[None]:
    """A refusal by the label that the form has. It may name the option itself, and options are the command line's."""
    try:
        yield
    except WrongField:
        raise
    except Refused as error:
        field, message = named_field(error.message)
        cure = for_forms(error.cure)
        raise WrongField(message, field=known or field, cure="" if "--" in cure else cure) from None


def _told(plan: Plan) -> Data:
    refused = len(plan.refusals)
    # What refuses comes first: of many checks it is what a person has to read.
    checks = sorted(plan.checks, key=lambda check: _RANK[check.verdict])
    return {
        "table": f"{plan.source.schema}.{plan.source.name}",
        "alter": plan.clauses.text,
        "is_refused": bool(refused),
        "verdict": _verdict(plan, refused),
        "facts": _facts(plan),
        "definition": detail.changes(plan.definitions),
        "checks": [{name: for_forms(value) for name, value in check_json(check).items()} for check in checks],
        "steps": [{"name": s.name, "sentence": e.sentence, "statements": list(e.statements)} for s, e in plan.stages],
    }


def _verdict(plan: Plan, refused: int) -> str:
    if refused:
        return f"Refused: {refused} of {len(plan.checks)} checks say{'s' if refused == 1 else ''} no."
    return f"It can be done {f'in place ({plan.strategy.name})' if plan.strategy.is_in_place else 'online'}."


def _facts(plan: Plan) -> list[Data]:
    needed = f"about {size(plan.copy_bytes)} for the copy, {size(plan.log_bytes)} for the binary log"
    found = {
        "Server": str(plan.server),
        "Rows": f"about {plan.estimated_rows:,}",
        "Disk": "nothing is copied" if plan.strategy.is_in_place else needed,
        "Strategy": f"{plan.strategy.name}: {plan.strategy.reason}",
    }
    return [{"name": name, "value": value} for name, value in found.items()]


def _asked(source: Source, question: Callable[[Session], T], cure: str) -> T:
    """Raises VReplicationError, in words for a person."""
    assert source.url is not None
    with connect(source.url, read_timeout=PLAN_SECONDS) as session, _given_up(session, source, cure):
        return question(session)


@contextlib.contextmanager
def _given_up(session: Session, source: Source, cure: str) -> Iterator[None]:
    try:
        yield
    except ConnectionLost:
        assert source.url is not None
        # Both servers go on with a statement whose client is gone: a CREATE waits on for its lock.
        _end(source.url, session.id)
        raise Transient(f"{source.conn_id} did not answer within {PLAN_SECONDS:.0f} s.", cure=cure) from None


def _end(url: SourceUrl, connection: int) -> None:
    with contextlib.suppress(VReplicationError), quick(url) as session:
        session.kill(connection)

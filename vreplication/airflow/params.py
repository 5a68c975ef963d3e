"""The form of a kind's DAG: the fields of its spec with their types, limits and descriptions.

What must stay true: defaults, limits, choices, sections, labels and descriptions are the spec's own, so that form and
command line cannot drift apart; what has to be filled in has no section: that is what Airflow's form shows unfolded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Param

from vreplication.airflow.request import SINK_CONNECTION, default_connection
from vreplication.planning.fields import SECTION, own_fields
from vreplication.planning.window import CUTOVERS
from vreplication.workflows.registry import COMMANDS, KINDS, Command, WorkflowKind, connection_param

Asked = WorkflowKind | Command
_OPEN = None
"""Fields without a section are in the one that is open at first; only one can be."""
_SECTIONS = {
    "what": _OPEN,
    "when": "How the switch goes",
    "how": "How hard to work",
    "where": "Where Spark runs",
    "rare": "Rarely needed",
}
"""In this order."""
_OWN_SECTIONS = {
    ("changefeed", "how"): "How it is sent",
    ("lake", "how"): "How it is written",
    ("lake_compact", "how"): "What is given up",
}
_ASKED_FIRST = ("cutover", "cutover_window")
"""Beside what the spec has in the section `what`."""
_ENDS = {
    "source": "Airflow connection of the server; its schema is the default database.",
    "target": "Airflow connection of the server where they go; its schema is theirs there, unless another is given.",
    "replica": "Airflow connection of a replica of the source, on which the copy reads; empty: it reads on the source.",
    **{
        f"source_{number}": "Airflow connection of a further server whose changes go into the same topic."
        for number in (2, 3, 4)
    },
}
_KEPT = ("minimum", "maximum", "enum", "items", "format")
_CUTOVERS = {
    "auto": "as soon as everything is verified",
    "manual": "when somebody releases it",
    "window": "in the maintenance window",
}


def params(kind: str) -> dict[str, Param]:
    """Ids and types are relied on from outside."""
    known = KINDS[kind]
    fields = _fields(known)
    found = {connection_param(end): _connection(end) for end in known.ends}
    if known.has_sink:
        found[SINK_CONNECTION] = sink_connection()
    for part in _SECTIONS:
        mine = sorted((n for n, schema in fields.items() if _part(n, schema) == part), key=lambda n: n == "workflow")
        found |= {name: _special(known, name) or _of_spec(known, name, fields[name]) for name in mine}
        if part == "what":
            found |= {connection_param(end): _optional(_ENDS[end], title=_title(end)) for end in known.optional}
        if part == "where" and mine:
            found["spark_conn_id"] = _spark_connection()
    return found


def command_params(name: str) -> dict[str, Param]:
    """Of what is no workflow. Ids and types are relied on from outside."""
    known = COMMANDS[name]
    found = {name: _special(known, name) or _of_spec(known, name, schema) for name, schema in _fields(known).items()}
    if known.has_sink:
        topic = found.pop("topic")
        topic.description = f"{topic.description} Or the topic's name, where a connection of the brokers is given."
        found = {"topic": topic, SINK_CONNECTION: sink_connection(), **found}
    return found | {"spark_conn_id": _spark_connection()}


def _fields(kind: Asked) -> dict[str, dict[str, Any]]:
    """JSON schema of each field; the kind's own come before those that all kinds have."""
    schema = kind.spec.model_json_schema()
    own, shared = own_fields(kind.spec)
    names = [*own, *shared]
    return {name: {**schema["properties"][name], "required": name in schema.get("required", ())} for name in names}


def _part(name: str, schema: Mapping[str, Any]) -> str:
    return "what" if name in _ASKED_FIRST else str(schema[SECTION])


def _section(kind: Asked, part: str) -> str | None:
    return _OWN_SECTIONS.get((kind.name, part)) or _SECTIONS[part]


def _title(end: str) -> str:
    return f"Connection of {end.replace('_', ' ')}" if "_" in end else f"Connection of the {end}"


def sink_connection(section: str | None = _OPEN) -> Param:
    words = "Airflow connection of the brokers: their password, and where they are, if only a topic is named."
    return _optional(words, section, title="Connection of the brokers")


def _spark_connection() -> Param:
    words = "Airflow connection of the Spark master, instead of its address."
    return _optional(words, _SECTIONS["where"], title="Connection of the Spark master")


def _connection(end: str) -> Param:
    return Param(default_connection(end), type="string", title=_title(end), minLength=1, description=_ENDS[end])


def _special(kind: Asked, name: str) -> Param | None:
    """What a form asks otherwise than a spec: the window is a third way to cut over; Spark may be a connection."""
    field = kind.spec.model_fields[name]
    if name == "cutover":
        return Param(
            field.default,
            enum=list(CUTOVERS),
            type="string",
            title=field.title,
            values_display=_CUTOVERS,
            description="When the new tables take the place of the old.",
        )
    if name == "cutover_window":
        return _optional("If in the window: Sat 02:00-04:00 Europe/Berlin.", title=field.title)
    if name == "spark_master":
        examples = ["spark://spark.example:7077", "yarn"]
        return _optional(field.description or "", _SECTIONS["where"], title=field.title, examples=examples)
    return None


def _optional(description: str, section: str | None = _OPEN, **more: Any) -> Param:
    more = more if section is _OPEN else {**more, "section": section}
    return Param(None, type=["null", "string"], description=_plain(description), **more)


def _plain(text: str) -> str:
    """A form shows what would be code as it is written."""
    return text.replace("`", "")


def _such_as(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Airflow's form keeps examples for those who begin to type."""
    return [f"Such as {example}." for part in parts for example in part.get("examples", ())[:1]]


def _of_spec(kind: Asked, name: str, schema: Mapping[str, Any]) -> Param:
    """A field with the spec's default, choices and limits; where one has to be filled, an empty one does not start."""
    parts = [schema, *schema.get("anyOf", ())]
    more = {key: part[key] for part in parts for key in _KEPT if key in part}
    types = [part["type"] for part in parts if "type" in part]
    more |= {"type": types[0] if len(types) == 1 else sorted(types, key=lambda one: one != "null")}
    more |= {"title": schema["title"], "description": _plain(" ".join([schema["description"], *_such_as(parts)]))}
    section = _section(kind, _part(name, schema))
    more |= {} if section is _OPEN else {"section": section}
    if schema["required"]:
        return Param(minLength=1, **more)
    default = kind.spec.model_fields[name].default
    # Airflow keeps params as JSON, which has no tuples.
    return Param(list(default) if isinstance(default, tuple) else default, **more)

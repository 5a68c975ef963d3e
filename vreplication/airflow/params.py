"""The form of a kind's DAG: the fields of its spec with their types, limits and descriptions.

What must stay true: defaults, limits, choices, sections and descriptions are the spec's own, so that form and command
line cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from vreplication.airflow.request import SINK_CONNECTION, default_connection
from vreplication.planning.spec import SECTION, own_fields
from vreplication.planning.window import CUTOVERS
from vreplication.workflows.registry import COMMANDS, KINDS, Command, WorkflowKind, connection_param

Asked = WorkflowKind | Command
_WHAT = {
    "online_ddl": "What to change",
    "move_tables": "What to move",
    "changefeed": "What to send",
    "lake": "What to write",
    "lake_compact": "What to compact",
}
_SECTIONS = {
    "what": "",
    "when": "When to switch",
    "how": "How hard to work",
    "where": "Where Spark runs",
    "rare": "Rarely needed",
}
"""In this order; the first one is the kind's own."""
_OWN_SECTIONS = {
    ("changefeed", "how"): "How it is sent",
    ("lake", "how"): "How it is written",
    ("lake_compact", "how"): "What is given up",
}
_ENDS = {
    "source": "Airflow connection of the server; its schema is the default database.",
    "target": "Airflow connection of the server where they go; its schema is theirs there, unless another is given.",
    "replica": "Airflow connection of a replica of the source, on which the copy reads; empty: it reads on the source.",
    **{
        f"source_{number}": "Airflow connection of a further server whose changes go into the same topic."
        for number in (2, 3, 4)
    },
}
_KEPT = ("minimum", "maximum", "enum", "items", "format", "examples")


def params(kind: str) -> dict[str, Param]:
    """Ids and types are relied on from outside."""
    known = KINDS[kind]
    fields = _fields(known)
    found = {connection_param(end): _connection(known, end) for end in known.ends}
    if known.has_sink:
        found[SINK_CONNECTION] = sink_connection(_section(known, "what"))
    found |= {connection_param(end): _optional(_ENDS[end], _section(known, "what")) for end in known.optional}
    for part in _SECTIONS:
        mine = [name for name, schema in fields.items() if schema[SECTION] == part]
        found |= {name: _special(known, name) or _of_spec(known, name, fields[name]) for name in mine}
        if part == "where" and mine:
            found["spark_conn_id"] = _optional(
                "Airflow connection of the Spark master, instead of spark_master.", _SECTIONS[part]
            )
    return found


def command_params(name: str) -> dict[str, Param]:
    """Of what is no workflow. Ids and types are relied on from outside."""
    known = COMMANDS[name]
    found = {name: _special(known, name) or _of_spec(known, name, schema) for name, schema in _fields(known).items()}
    if known.has_sink:
        topic = found.pop("topic")
        topic.description = f"{topic.description} Or the topic's name, where a connection of the brokers is given."
        found = {"topic": topic, SINK_CONNECTION: sink_connection(_section(known, "what")), **found}
    words = "Airflow connection of the Spark master, instead of spark_master."
    return found | {"spark_conn_id": _optional(words, _SECTIONS["where"])}


def _fields(kind: Asked) -> dict[str, dict[str, Any]]:
    """JSON schema of each field; the kind's own come before those that all kinds have."""
    schema = kind.spec.model_json_schema()
    own, shared = own_fields(kind.spec)
    names = [*own, *shared]
    return {name: {**schema["properties"][name], "required": name in schema.get("required", ())} for name in names}


def _section(kind: Asked, part: str) -> str:
    return _OWN_SECTIONS.get((kind.name, part)) or _SECTIONS[part] or _WHAT[kind.name]


def sink_connection(section: str) -> Param:
    words = "Airflow connection of the brokers: their password, and where they are, if only a topic is named."
    return _optional(words, section)


def _connection(kind: WorkflowKind, end: str) -> Param:
    section, title = _section(kind, "what"), end.capitalize()
    return Param(
        default_connection(end), type="string", title=title, section=section, minLength=1, description=_ENDS[end]
    )


def _special(kind: Asked, name: str) -> Param | None:
    """What a form asks otherwise than a spec: the window is a third way to cut over; Spark may be a connection."""
    field, when = kind.spec.model_fields[name], _SECTIONS["when"]
    if name == "cutover":
        words = "auto: as soon as all is verified; manual: when it is released; window: in the window."
        return Param(field.default, enum=list(CUTOVERS), type="string", section=when, description=words)
    if name == "cutover_window":
        return _optional("For window: Sat 02:00-04:00 Europe/Berlin.", when)
    if name == "spark_master":
        examples = ["spark://spark.example:7077", "yarn"]
        return _optional(field.description or "", _SECTIONS["where"], examples=examples)
    return None


def _optional(description: str, section: str, **more: Any) -> Param:
    return Param(None, type=["null", "string"], section=section, description=description, **more)


def _of_spec(kind: Asked, name: str, schema: Mapping[str, Any]) -> Param:
    """A field with the spec's default, choices and limits; where one has to be filled, an empty one does not start."""
    parts = [schema, *schema.get("anyOf", ())]
    more = {key: part[key] for part in parts for key in _KEPT if key in part}
    types = [part["type"] for part in parts if "type" in part]
    more |= {"type": types[0] if len(types) == 1 else sorted(types, key=lambda one: one != "null")}
    more |= {"section": _section(kind, schema[SECTION]), "description": schema.get("description", "")}
    if schema["required"]:
        return Param(minLength=1, **more)
    default = kind.spec.model_fields[name].default
    return Param(list(default) if isinstance(default, tuple) else default, **more)

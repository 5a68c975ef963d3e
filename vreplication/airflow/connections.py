"""Airflow connections as our sources.

What must stay true: the password goes from Airflow's connection into a SourceUrl and nowhere else; a connection that
cannot be used is refused in one sentence that names it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from vreplication import masking
from vreplication.errors import Refused
from vreplication.mysql import url as urls
from vreplication.mysql.url import SourceUrl

MARK = "vreplication"
"""A connection is one of ours when its extra says so: {"vreplication": true}."""
_NOT_SINK = frozenset({MARK, "group.id", "auto.offset.reset", "enable.auto.commit"})
"""What a connection of others' consumers says in its extra, and is for a feed itself to decide."""
LAG_REPLICAS = "lag_replicas"
"""In the extra of a server's connection: URLs of its replicas, as far as they have a login of their own."""
_SSL, _MODE = "ssl", "ssl_mode"
_NOT_TLS = frozenset({MARK, LAG_REPLICAS, "conn_type", "charset", "cursor", "client", "local_infile", _SSL, _MODE})
"""Among them what Airflow's own hook for MySQL reads, and what is no matter of ours."""
_MODES: Mapping[str, Mapping[str, str]] = {
    "DISABLED": {"ssl_disabled": "true"},
    "PREFERRED": {},
    "VERIFY_CA": {"ssl_verify_cert": "true"},
    "VERIFY_IDENTITY": {"ssl_verify_cert": "true", "ssl_verify_identity": "true"},
}


def source_url(conn_id: str) -> SourceUrl:
    """For task code. Raises Refused when there is no such connection, or when it does not lead to a MySQL."""
    return to_url(_connection(conn_id, "mysql"))


def spark_master(conn_id: str) -> str:
    """For task code: the master of a Spark connection, as the Spark provider reads it. Raises Refused."""
    found = _connection(conn_id, "spark")
    if not found.host:
        raise Refused(f"Connection {conn_id!r} has no host.", cure="A Spark master has one: spark://host, yarn.")
    if not found.port:
        return str(found.host)
    return f"{'' if '://' in found.host else 'spark://'}{found.host}:{found.port}"


def sink(asked: str, conn_id: str | None) -> tuple[str, str]:
    """For task code: a sink's address and the broker's password. Raises Refused.

    asked: a kafka:// address, or the topic's name where the connection says where the brokers are. A connection of type
    kafka has librdkafka's options in its extra; else host and port are a broker's, login and password of SASL.
    """
    if not conn_id:
        return asked, ""
    return to_sink(asked, _connection(conn_id, "kafka"))


def to_sink(asked: str, connection: Any) -> tuple[str, str]:
    """Of anything that has a connection's fields. Raises Refused."""
    extra = {name: str(value) for name, value in _extra(connection).items() if name not in _NOT_SINK}
    inside = extra.pop("sasl.password", "")
    password = str(connection.password or inside)
    if password:
        masking.remember(password)
    if "://" in asked:
        return asked, password
    # What an address names itself is not asked of the connection, which may then hold a password alone.
    servers = extra.pop("bootstrap.servers", "") or _broker(connection)
    if connection.login:
        extra.setdefault("sasl.username", connection.login)
    return f"kafka://{servers}/{asked}" + (f"?{urlencode(extra)}" if extra else ""), password


def _broker(connection: Any) -> str:
    if not connection.host:
        raise Refused(
            f"Connection {connection.conn_id!r} names no broker.", cure="Give it a host, or bootstrap.servers."
        )
    return f"{connection.host}:{int(connection.port or 9092)}"


def _connection(conn_id: str, kind: str) -> Any:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

    try:
        return BaseHook.get_connection(conn_id)
    except (AirflowNotFoundException, AirflowRuntimeError, KeyError):
        raise Refused(
            f"There is no connection {conn_id!r}.", cure=f"Create it under Admin, Connections, with type {kind}."
        ) from None


async def asource_url(conn_id: str) -> SourceUrl:
    """As `source_url`, for triggers."""
    from airflow.sdk import BaseHook

    return to_url(await BaseHook.aget_connection(conn_id))


def to_url(connection: Any) -> SourceUrl:
    """Of anything that has a connection's fields: the SDK's and the metadata database's alike. Raises Refused."""
    extra = _extra(connection)
    query = {k: str(v) for k, v in extra.items() if k not in _NOT_TLS and v not in (None, "")}
    query |= _as_of_the_provider(connection.conn_id, extra)
    # A password may have @, : and / in it, where a URL would end.
    login = f"{quote(connection.login or '', safe='')}:{quote(connection.password or '', safe='')}"
    host = connection.host or "localhost"
    # Airflow's form takes an IPv6 address as it is.
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    where = f"{host}:{int(connection.port or 3306)}/{quote(connection.schema or '', safe='')}"
    built = f"mysql://{login}@{where}" + (f"?{urlencode(query)}" if query else "")
    try:
        return replace(urls.parse(built), replicas=_replicas(connection))
    except Refused as error:
        raise Refused(f"Connection {connection.conn_id!r}: {error}") from None


def _as_of_the_provider(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    """TLS as Airflow's own hook for MySQL has it, in the names of our URLs. Raises Refused."""
    inside = extra.get(_SSL) or {}
    with contextlib.suppress(ValueError):
        inside = json.loads(inside) if isinstance(inside, str) else inside
    if not isinstance(inside, Mapping):
        raise Refused(
            f"Connection {conn_id!r}: ssl in its extra is no JSON object.", cure='Write it as {"ca": "/ca.pem"}.'
        )
    files = {f"ssl_{name}": str(value) for name, value in inside.items() if value}
    mode = str(extra.get(_MODE) or "PREFERRED").upper()
    if mode not in _MODES:
        cure = f"Known: {', '.join(_MODES)}; ssl_verify_cert, with ssl_ca, demands more than REQUIRED."
        raise Refused(f"Connection {conn_id!r}: ssl_mode {mode} is not known here.", cure=cure)
    return {**files, **_MODES[mode]}


def _replicas(connection: Any) -> tuple[SourceUrl, ...]:
    found = _extra(connection).get(LAG_REPLICAS) or ""
    logins = urls.parse_replicas(found if isinstance(found, str) else " ".join(map(str, found)))
    masking.remember(*(secret for each in logins for secret in each.secrets))
    return logins


def is_marked(connection: Any) -> bool:
    return bool(_extra(connection).get(MARK))


def _extra(connection: Any) -> Mapping[str, Any]:
    try:
        return dict(connection.extra_dejson or {})
    except Exception:
        return {}


def use_own_python() -> None:
    """Spark's Python workers are to be this interpreter, whatever PATH says."""
    import sys

    # Not over what a deployment says: on a cluster the interpreter has another path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

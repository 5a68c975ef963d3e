"""Airflow connections become URLs of ours, whatever their passwords hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.airflow import connections, request
from vreplication.airflow.connections import is_marked, spark_master, to_sink, to_url
from vreplication.errors import Refused
from vreplication.feed.address import parse


def connection(**fields: Any) -> SimpleNamespace:
    known = {"conn_id": "c", "login": "u", "password": "p", "host": "h", "port": 3307, "schema": "d"}
    return SimpleNamespace(**{**known, "extra_dejson": {}, **fields})


def test_all_fields() -> None:
    found = to_url(connection(password="a:b@c/d?e#f%20 é", extra_dejson={"vreplication": True, "ssl_ca": "/x y"}))
    assert (found.host, found.port, found.user, found.database) == ("h", 3307, "u", "d")
    assert found.password == "a:b@c/d?e#f%20 é"
    assert found.tls == (("ssl_ca", "/x y"),)
    assert "a:b" not in repr(found)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address(host: str) -> None:
    assert to_url(connection(host=host)).host == "::1"


@pytest.mark.parametrize(
    ("extra", "tls"),
    [
        ({"client": "mysql-connector-python", "local_infile": True, "cursor": "SSCursor", "charset": "utf8"}, {}),
        ({"ssl": {"ca": "/ca", "cert": "/c", "key": "/k"}}, {"ssl_ca": "/ca", "ssl_cert": "/c", "ssl_key": "/k"}),
        ({"ssl": '{"ca": "/ca"}', "ssl_mode": "verify_ca"}, {"ssl_ca": "/ca", "ssl_verify_cert": "true"}),
        ({"ssl_mode": "DISABLED"}, {"ssl_disabled": "true"}),
        ({"ssl_mode": "REQUIRED"}, "ssl_mode REQUIRED is not known here"),
        ({"ssl": "yes"}, "ssl in its extra is no JSON object"),
        ({"ssl": {"cipher": "x"}}, "unknown options: ssl_cipher"),
        ({"iam": True}, "unknown options: iam"),
    ],
)
def test_what_the_hook_of_mysqls_provider_reads(extra: dict[str, Any], tls: dict[str, str] | str) -> None:
    """Nothing of TLS is left out in silence."""
    if isinstance(tls, str):
        with pytest.raises(Refused, match=f"'c': .*{tls}"):
            to_url(connection(extra_dejson=extra))
    else:
        assert dict(to_url(connection(extra_dejson=extra)).tls) == tls


@pytest.mark.parametrize("replicas", ["mysql://m:pw@r:1 mysql://n@s", ["mysql://m:pw@r:1", "mysql://n@s"]])
def test_replicas_with_logins_of_their_own(replicas: object) -> None:
    found = to_url(connection(extra_dejson={"lag_replicas": replicas}))
    theirs, shared = found.of_replica("r", 1), found.of_replica("elsewhere", 3306)
    assert (theirs.user, theirs.password, found.of_replica("s", 3306).user) == ("m", "pw", "n")
    assert (shared.user, shared.password, shared.replicas) == ("u", "p", ())
    assert "pw" in found.secrets
    assert "pw" not in repr(found)
    with pytest.raises(Refused, match=r"'c': One of the replicas") as caught:
        to_url(connection(extra_dejson={"lag_replicas": "postgres://m:hidden@r"}))
    assert "hidden" not in str(caught.value)


def test_refused_by_name_and_without_the_password() -> None:
    with pytest.raises(Refused, match="'c'") as caught:
        to_url(connection(schema=None, password="hidden"))
    assert "hidden" not in str(caught.value)


def test_marks() -> None:
    assert is_marked(connection(extra_dejson={"vreplication": True}))
    assert not is_marked(connection())


@pytest.mark.parametrize(
    ("host", "port", "master"),
    [
        ("spark.example", 7077, "spark://spark.example:7077"),
        ("spark://spark.example", 7077, "spark://spark.example:7077"),
        ("spark://spark.example:7077", None, "spark://spark.example:7077"),
        ("k8s://https://k.example", 6443, "k8s://https://k.example:6443"),
        ("yarn", None, "yarn"),
        ("local[4]", None, "local[4]"),
    ],
)
def test_masters_of_spark_connections(
    monkeypatch: pytest.MonkeyPatch, host: str, port: int | None, master: str
) -> None:
    monkeypatch.setattr(connections, "_connection", lambda *_: connection(host=host, port=port))
    assert spark_master("c") == master


def test_a_spark_connection_without_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_connection", lambda *_: connection(host=None))
    with pytest.raises(Refused, match="'c' has no host"):
        spark_master("c")


def asked(**params: Any) -> request.Request:
    known = {"source_conn_id": "c", "table": "t", "alter": "ENGINE=InnoDB", "cutover": "auto"}
    return request.read({"params": {**known, **params}, "run_id": "r1", "dag": SimpleNamespace(dag_id="online_ddl")})


def test_where_spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_connection", lambda *_: connection(host="h", port=7077))
    assert asked().spec.spark_master == "local[*]"
    assert asked(spark_master="yarn").spec.spark_master == "yarn"
    assert asked(spark_conn_id="c").spec.spark_master == "spark://h:7077"
    with pytest.raises(Refused, match="another place"):
        asked(spark_master="yarn", spark_conn_id="c")


def test_every_field_of_a_spec_reaches_it() -> None:
    given = {"apply_parallelism": 3, "xa_wait_seconds": 5, "ignore_old_snapshots": True, "copy_path": "rows"}
    spec = asked(**given).spec
    assert spec.model_dump(include=set(given)) == given


def test_a_form_names_no_command_that_a_worker_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "params": {"tables": ["t"], "on_switch": "route --to new"},
        "run_id": "r1",
        "dag": SimpleNamespace(dag_id="move_tables"),
    }
    with pytest.raises(Refused, match="a command would run on Airflow's worker"):
        request.read(given, "move_tables")
    monkeypatch.setenv(request.COMMANDS, "1")
    assert request.read(given, "move_tables").spec.on_switch == "route --to new"
    monkeypatch.delenv(request.COMMANDS)
    given["params"]["on_switch"] = "https://example.org/switch"
    found = request.read(given, "move_tables")
    assert (found.conn_id, dict(found.conn_ids)) == (
        "vreplication_target",
        {"source": "vreplication_source", "target": "vreplication_target"},
    )


def test_a_window_is_known_to_the_stages_too() -> None:
    found = asked(cutover="window", cutover_window="Sat 02:00-04:00 UTC")
    assert (found.window, found.spec.cutover_window) == ("Sat 02:00-04:00 UTC", "Sat 02:00-04:00 UTC")
    assert asked(cutover="manual", cutover_window="").spec.cutover_window is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"cutover": "soon"}, "none of auto, manual and window"),
        ({"cutover": "window"}, "is no window"),
        ({"cutover": "manual", "cutover_window": "Sat 02:00-04:00 UTC"}, "with `cutover: window` only"),
    ],
)
def test_cutover_and_window_go_together(params: dict[str, str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        asked(**params)


SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("asked", "fields", "address"),
    [
        ("kafka://b:9093/t", {}, "kafka://b:9093/t"),
        ("t", {"login": None, "port": None}, "kafka://h:9092/t"),
        ("t", {"extra_dejson": SASL}, "kafka://h:3307/t?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=u"),
        (
            "t",
            {
                "host": None, "login": None, "password": None,
                "extra_dejson": {
                    "bootstrap.servers": "a:1,b:2", "sasl.username": "x", "sasl.password": "p", "group.id": "g",
                },
            },
            "kafka://a:1,b:2/t?sasl.username=x",
        ),
    ],
)  # fmt: skip
def test_a_connection_of_brokers(asked: str, fields: dict[str, Any], address: str) -> None:
    """Ours, or one for Airflow's Kafka provider; what it says becomes an address that a feed takes."""
    found, password = to_sink(asked, connection(**fields))
    assert (found, password) == (address, "p")
    assert parse(found, password).secrets == ("p",)
    with pytest.raises(Refused, match="'c' names no broker"):
        to_sink("t", connection(host=None))

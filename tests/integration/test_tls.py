"""Servers that take no connection in the clear: every one of ours is encrypted, and the certificate is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.databases import Database, create_database
from tests.support import run_ddl
from tests.support.certificates import Certificates, make_certificates
from tests.support.flow import paused_at
from tests.support.private_server import private_server
from vreplication.mysql.session import connect

pytestmark = pytest.mark.slow
WORDS = ("online-ddl", "--table", "t", "--alter", "ADD COLUMN b INT", "--workflow", "tls", "--yes", "--json")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=binaries.FLAVORS)
def encrypted(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Database]:
    options = {"ssl-ca": certificates.ca, "ssl-cert": certificates.cert, "ssl-key": certificates.key}
    with private_server(request.param, options) as server:
        made = create_database(server)
        with server.admin() as admin:
            admin.execute_raw(f"ALTER USER '{made.user}'@'%' REQUIRE SSL")
        yield made


def url_of(database: Database, **tls: object) -> str:
    return f"{database.user_url}?" + "&".join(f"{name}={value}" for name, value in tls.items())


@pytest.mark.in_turn("mysql")
def test_a_whole_run_is_encrypted(
    encrypted: Database, certificates: Certificates, tmp_path: Path, pauses: Path
) -> None:
    with connect(encrypted.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20)) ENGINE=InnoDB")
        app.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},'v{i}')" for i in range(100)))
        source = url_of(encrypted, ssl_ca=certificates.ca, ssl_verify_cert=1, ssl_verify_identity=1)
        with paused_at(pauses, "workflow.copied"):
            command = run_ddl.start(encrypted, tmp_path, WORDS, source=source)
            run_ddl.wait_reached(pauses, "workflow.copied", command)
            app.execute_raw("UPDATE t SET a='changed' WHERE id < 5")
        ended = command.finish()
        assert (ended.code, ended.last["event"]) == (0, "complete"), ended.err
        assert app.rows("SELECT COUNT(*), SUM(a='changed') FROM t WHERE b IS NULL") == [(100, 5)]


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ({"ssl_disabled": 1}, "The server refused the connection: Access denied"),
        ({"ssl_ca": "ca.pem", "ssl_verify_cert": 1}, "The server's certificate was not accepted: "),
        ({"ssl_ca": "nowhere.pem"}, "The URL's files for TLS cannot be read: "),
        ({"ssl_ca": "key.pem"}, "The URL's files for TLS cannot be read: "),
    ],
)
@pytest.mark.in_turn
def test_wrong_tls_is_refused(encrypted: Database, tmp_path: Path, tls: dict[str, object], sentence: str) -> None:
    """Of another authority; of no file; of a file that is no certificate."""
    other = make_certificates(tmp_path).ca.parent
    source = url_of(encrypted, **{name: other / v if isinstance(v, str) else v for name, v in tls.items()})
    ended = run_ddl.start(encrypted, tmp_path, WORDS, source=source).finish()
    last = json.loads(ended.out.splitlines()[-1])
    assert (ended.code, last["event"]) == (2, "refused"), last
    assert last["reason"].startswith(sentence)
    assert "Traceback" not in ended.err
    assert encrypted.password not in ended.out + ended.err

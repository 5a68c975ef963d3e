"""A lake whose broker wants TLS and a password: librdkafka's options, as Spark's Java client takes them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from sandbox.kafka import Cluster
from tests.support.certificates import Certificates, make_certificates
from tests.support.feed_producer import FeedWriter
from tests.support.lakes import LakeCommand, need_jars
from tests.support.private_kafka import private_kafka
from vreplication.feed.lake.manifest import Store
from vreplication.feed.messages import Encoded

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PASSWORD = 'q"uite\\secret'
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = make_certificates(tmp_path / "certificates")
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return made


@pytest.fixture
def secured(certificates: Certificates, tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    """A broker, and its address where it wants both; where it is in the clear a test writes."""
    need_jars()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = tmp_path / "both.pem"
    both.write_bytes(certificates.key.read_bytes() + certificates.cert.read_bytes())
    secret = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    more = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        # Once more, for a file of properties.
        "listener.name.secured.plain.sasl.jaas.config": f'{_LOGIN} user_lake="{secret}";'.replace("\\", "\\\\"),
        "listener.name.secured.ssl.keystore.type": "PEM",
        "listener.name.secured.ssl.keystore.location": both,
    }
    with private_kafka() as cluster:
        cluster.stop(0)
        place = cluster.brokers[0].folder / "server.properties"
        text = place.read_text().replace(",CONTROLLER://", f",SECURED://127.0.0.1:{port},CONTROLLER://", 1)
        place.write_text(text + "".join(f"{name}={value}\n" for name, value in more.items()))
        cluster.start(0)
        yield cluster, f"127.0.0.1:{port}"


@pytest.mark.seldom
def test_over_tls_with_a_password(secured: tuple[Cluster, str], certificates: Certificates, tmp_path: Path) -> None:
    cluster, address = secured
    feed = FeedWriter(cluster, 1)
    with feed.transaction():
        value = b'{"update":{"id":{"type":"Long","value":1,"unique":true}}}'
        tags = [("vr-kind", b"row"), ("vr-t", b"1"), ("vr-seq", b"0"), ("vr-n", b"2"), ("vr-gen", b"1")]
        feed.send_raw(0, Encoded(key=b'{"ts":1,"type":"Row","schema":"s","table":"t"}', value=value), tags)
        feed.n[0] += 1
        feed.resolved(1)
    url = (
        f"kafka://{address}/{feed.topic}?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=lake"
        f"&ssl.ca.location={certificates.ca}"
    )
    words = ("lake", "--from", url, "--to", str(tmp_path / "lake"), "--until-caught-up")
    with LakeCommand(*words, VREPLICATION_SINK_PASSWORD=PASSWORD) as command:
        assert command.ended() == 0, command.text
    (table,) = Store(tmp_path / "lake").open().tables.values()
    assert [file.rows for file in table.files] == [1]
    logs = [path.read_text() for path in Path(os.environ["XDG_STATE_HOME"]).rglob("*.log")]
    assert not any("secret" in text for text in [command.text, *logs])

"""An address's options, which are librdkafka's, as Kafka's Java client calls them: Spark reads with that one.

What must stay true: an option is handed on, or means nothing to a reader, or is refused by name; none is dropped
without a word. What decides about exactness is set here and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path

from vreplication.errors import Refused
from vreplication.feed.address import Address

_SAME = frozenset(
    {
        *("security.protocol", "client.id", "client.rack", "sasl.kerberos.service.name", "fetch.min.bytes"),
        *("metadata.max.age.ms", "connections.max.idle.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms"),
        *("retry.backoff.ms", "check.crcs", "client.dns.lookup"),
    }
)
_IGNORED = frozenset({"log_level", "log.connection.close", "session.timeout.ms", "heartbeat.interval.ms"})
"""Of a client that is one of a group, or that speaks."""
_LOGINS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_CURE = "Leave it out, or consume the topic by vreplication consume."


def options(address: Address) -> dict[str, str]:
    """For Spark's source. Raises Refused."""
    given = dict(address.options)
    found = {
        "kafka.bootstrap.servers": address.servers,
        # D6: Spark's own default is read_uncommitted, and rows of aborted transactions would be rows of the lake.
        "kafka.isolation.level": "read_committed",
        "subscribe": address.topic,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        # A broker that is away is told of sooner than after minutes.
        "kafka.request.timeout.ms": "15000",
        "kafka.default.api.timeout.ms": "20000",
        "fetchOffset.numRetries": "1",
    }
    mapped = {**_sasl(given, address.password), **_tls(given)}
    for name, value in given.items():
        if name in _SAME:
            mapped[name] = value.upper() if name == "security.protocol" else value
        elif name not in _IGNORED:
            raise Refused(f"The option {name} has no counterpart in the Java client that Spark reads with.", cure=_CURE)
    return {**found, **{f"kafka.{name}": value for name, value in mapped.items()}}


def _sasl(given: dict[str, str], password: str) -> dict[str, str]:
    """What is read is taken out of `given`."""
    mechanism = given.pop("sasl.mechanisms", "") or given.pop("sasl.mechanism", "")
    given.pop("sasl.mechanism", None)
    user = given.pop("sasl.username", "")
    if not mechanism and not user:
        return {}
    if mechanism not in _LOGINS:
        raise Refused(f"The SASL mechanism {mechanism or 'GSSAPI'} cannot be used by a lake.", cure=_CURE)
    login = f"{_LOGINS[mechanism]} required username={_jaas(user)} password={_jaas(password)};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _jaas(text: str) -> str:
    return '"' + re.sub(r'([\\"])', r"\\\1", text) + '"'


def _tls(given: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    # librdkafka's word for the system's own certificates, which Java takes without being told.
    if (place := given.pop("ssl.ca.location", "")) and place != "probe":
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem("ssl.ca.location", place)}
    certificate, key = given.pop("ssl.certificate.location", ""), given.pop("ssl.key.location", "")
    if certificate and key:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _pem("ssl.certificate.location", certificate),
            "ssl.keystore.key": _pem("ssl.key.location", key),
        }
    elif certificate or key:
        raise Refused("A client's certificate needs ssl.certificate.location and ssl.key.location.")
    if (name := given.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        # Java leaves the host's name unchecked where this is empty.
        found["ssl.endpoint.identification.algorithm"] = "" if name == "none" else name
    if given.pop("enable.ssl.certificate.verification", "true").lower() != "true":
        raise Refused("The Java client cannot leave the broker's certificate unchecked.", cure="Give ssl.ca.location.")
    return found


def _pem(option: str, place: str) -> str:
    try:
        text = Path(place).read_text(encoding="ascii", errors="strict")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"The file of {option} cannot be read: {getattr(error, 'strerror', '') or 'it is no PEM'}."
        ) from None
    # The Java client takes a key in PKCS#8 alone.
    if "RSA PRIVATE KEY" in text or "EC PRIVATE KEY" in text:
        raise Refused(f"The key of {option} is not in PKCS#8.", cure="Convert it: openssl pkcs8 -topk8 -nocrypt.")
    return text

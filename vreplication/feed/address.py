"""Where a feed goes: `kafka://host:9092[,host:9092]/topic?option=value`.

Options are librdkafka's own by name (security.protocol, sasl.mechanism, ssl.ca.location, …), handed on as they are.
What is secret among them never stands in the address: it comes from VREPLICATION_SINK_PASSWORD or a file, and is never
shown.

What must stay true: a wrong address is one sentence, before anything is connected; what decides about exactly-once
(idempotence, transactions, isolation, offsets) is not for an address to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from vreplication.errors import Refused

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_OURS = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "transactional.id", "transaction.timeout.ms", "acks"),
        *("enable.idempotence", "max.in.flight", "max.in.flight.requests.per.connection", "retries", "group.id"),
        *("message.send.max.retries", "request.required.acks", "isolation.level", "enable.auto.commit"),
        *("auto.offset.reset", "enable.auto.offset.store", "message.timeout.ms", "delivery.timeout.ms"),
        *("partitioner", "plugin.library.paths"),
        # Not librdkafka's but its Python client's, which takes no text for them.
        *("default.topic.config", "delivery.report.only.error", "on_delivery", "on_commit"),
    }
)
_NAME = re.compile(r"[a-z0-9._]+")
_SECRET = frozenset({"sasl.password", "ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """servers: host:port, … options: librdkafka's. password: for SASL."""

    servers: str
    topic: str
    options: tuple[tuple[str, str], ...] = ()
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Without secrets."""
        shown = "&".join(f"{name}={value}" for name, value in self.options)
        return f"kafka://{self.servers}/{self.topic}" + (f"?{shown}" if shown else "")

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.password,) if self.password else ()

    def settings(self, **more: Any) -> dict[str, Any]:
        """For a client of librdkafka. more: with _ for each dot."""
        secret = {"sasl.password": self.password} if self.password else {}
        own = {name.replace("_", "."): value for name, value in more.items()}
        # librdkafka writes what it logs to standard error; what matters reaches us by its calls.
        quiet = {"log_level": 2}
        # Our own settings last: nothing in an address may take the place of what exactly-once rests on.
        return {"bootstrap.servers": self.servers, **quiet, **dict(self.options), **secret, **own}


def parse(text: str, password: str = "") -> Address:
    """Raises Refused."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise Refused(f"The topic's address cannot be read ({error}).", cure="Use kafka://host:9092/topic.") from None
    if parts.fragment:
        raise Refused("The topic's address holds a #.", cure="Use kafka://host:9092/topic?option=value.")
    if parts.scheme != "kafka":
        raise Refused("The topic's address does not begin with kafka://.", cure="Use kafka://host:9092/topic.")
    if "@" in parts.netloc:
        raise Refused(
            "The topic's address holds a user.", cure="Use ?sasl.username=… and VREPLICATION_SINK_PASSWORD instead."
        )
    servers = [server for server in parts.netloc.split(",") if server]
    if not servers or not all(map(_is_server, servers)):
        raise Refused("The topic's address names no broker as host:port.", cure="Use kafka://host:9092/topic.")
    topic = parts.path.removeprefix("/")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise Refused(f"{topic!r} is no name of a topic.", cure="Use letters, digits, dot, dash and underscore.")
    return Address(servers=",".join(servers), topic=topic, options=_options(parts.query), password=password)


def _is_server(text: str) -> bool:
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):(\d{1,5})", text)
    return found is not None and 0 < int(found.group(1)) < 65_536


def _options(query: str) -> tuple[tuple[str, str], ...]:
    found = parse_qsl(query, keep_blank_values=True)
    for name, _ in found:
        # The client reads a name as far as its first zero byte, and would take what stands before it.
        if not _NAME.fullmatch(name):
            raise Refused(f"The sink has no option {name!r}.", cure="Use the names of librdkafka.")
        if name in _SECRET or re.search(r"password|secret|\.pem$|oauthbearer\.config", name):
            raise Refused(
                f"The topic's address holds a secret ({name}).",
                cure="Put it into VREPLICATION_SINK_PASSWORD or a file.",
            )
        if name in _OURS or name.endswith("_cb") or name == "logger":
            raise Refused(f"The option {name} of the sink is set by the feed itself.", cure="Leave it out.")
    return tuple(found)

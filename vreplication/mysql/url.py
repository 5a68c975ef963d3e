"""Where a server is and how to log in: a SQLAlchemy URL, read once, with the password kept out of every repr.

What must stay true: `str()` and `repr()` of a SourceUrl never show the password; only `mysql.session` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from vreplication.errors import Refused

_CURE = "Use mysql+pymysql://user:password@host:port/database."
_DRIVERS = ("mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql")
_TLS = (
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "ssl_key_password",
    "ssl_verify_cert",
    "ssl_verify_identity",
    "ssl_disabled",
)
_YES_OR_NO = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUrl:
    """A server, a user and a default database. replicas: of it, as far as they have a login of their own."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    unix_socket: str | None = None
    tls: tuple[tuple[str, str], ...] = ()
    replicas: tuple[SourceUrl, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.place}/{self.database}"

    @property
    def place(self) -> str:
        """Of the server, whichever schema: its socket, or host and port. Two of them may be one server."""
        return self.unix_socket or f"{self.host}:{self.port}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be shown nowhere."""
        of_tls = (value for name, value in self.tls if name == "ssl_key_password")
        return (self.password, *of_tls, *(secret for each in self.replicas for secret in each.secrets))

    def of_replica(self, host: str, port: int) -> SourceUrl:
        """With its own login, or this server's."""
        known = (each for each in self.replicas if (each.host, each.port) == (host, port))
        # The socket would lead to the source whatever host is named, and the database need not be on the replica.
        shared = replace(self, host=host, port=port, unix_socket=None, database="", replicas=())
        return next(known, shared)

    def with_password(self, password: str) -> SourceUrl:
        return replace(self, password=password)

    def connect_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `pymysql.connect`."""
        where = {"unix_socket": self.unix_socket} if self.unix_socket else {"host": self.host, "port": self.port}
        return {**where, "user": self.user, "password": self.password, **dict(map(_tls_argument, self.tls))}


def _tls_argument(item: tuple[str, str]) -> tuple[str, Any]:
    name, text = item
    return name, text.lower() in _YES if name in _YES_OR_NO else text


def parse_replicas(text: str) -> tuple[SourceUrl, ...]:
    """URLs of replicas with white space between them; their databases do not matter. Raises Refused."""
    try:
        found = tuple(parse(each, needs_database=False) for each in text.split())
    except Refused as error:
        message = error.message.replace("The source", "One of the replicas", 1)
        raise Refused(message, cure="Use mysql+pymysql://user:password@host:port, one a line.") from None
    if len({(each.host, each.port) for each in found}) < len(found):
        raise Refused("One of the replicas is named twice.", cure="Name it once, with one login.")
    return found


def parse(text: str, *, needs_database: bool = True) -> SourceUrl:
    """Read a URL. Raises Refused (never quoting the text, which may hold a password)."""
    # A secret that is mounted or put into a variable often ends with a new line.
    text = text.strip()
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise Refused("The source is not a database URL.", cure=_CURE) from None
    if url.drivername not in _DRIVERS:
        raise Refused(f"The source's URL is of kind {url.drivername!r}, not MySQL or MariaDB.", cure=_CURE)
    if (needs_database and not url.database) or not (url.host or "unix_socket" in url.query):
        raise Refused("The source's URL names no host or no database.", cure=_CURE)
    _check_place(url)
    _check_values(text)
    return _build(url)


def _check_place(url: Any) -> None:
    """Raises Refused."""
    if "@" in (url.host or ""):
        # What stands before it is the end of a password, which would be shown as a part of the host.
        raise Refused("The source's URL has an @ in its user or its password.", cure="Write it as %40.")
    if url.port is not None and not 1 <= url.port <= _MAX_PORT:
        # The system takes what is left of a greater one, and 0 would be the default.
        raise Refused(f"The source's URL has the port {url.port}.", cure=f"A port is from 1 to {_MAX_PORT:,}.")


def _check_values(text: str) -> None:
    """Of the options. Raises Refused where one is empty: SQLAlchemy leaves it out, and TLS with it."""
    # Behind the password, in which a ? may be, too.
    words = text.rpartition("@")[2].partition("?")[2].split("&")
    if empty := sorted(word.rstrip("=") for word in words if re.fullmatch(r"\w+=?", word)):
        raise Refused(f"The source's URL has options without a value: {', '.join(empty)}.", cure="Give them one.")


def _build(url: Any) -> SourceUrl:
    query = {k: v if isinstance(v, str) else v[-1] for k, v in url.query.items()}
    socket = query.pop("unix_socket", None)
    # Our sessions are in utf8mb4, whatever a URL asks for.
    query.pop("charset", None)
    # Not passed over: a certificate would go unchecked for the sake of one misspelled letter.
    unknown = sorted(set(query) - set(_TLS))
    if unknown:
        known = ", ".join((*_TLS, "unix_socket"))
        raise Refused(f"The source's URL has unknown options: {', '.join(unknown)}.", cure=f"Known: {known}.")
    _check_words(query)
    if dict(map(_tls_argument, query.items())).get("ssl_verify_identity") and not query.get("ssl_ca"):
        # PyMySQL takes any host's certificate then.
        raise Refused(
            "The source's URL asks for ssl_verify_identity without ssl_ca: no host's name would be checked.",
            cure="Add ssl_ca with the file of the authority, or of the system's (/etc/ssl/certs/ca-certificates.crt).",
        )
    return SourceUrl(
        host=url.host or "",
        port=url.port or 3306,
        user=url.username or "",
        password=str(url.password or ""),
        database=url.database or "",
        unix_socket=socket,
        tls=tuple(sorted(query.items())),
    )


def _check_words(query: dict[str, str]) -> None:
    """Raises Refused: a word that is not known would mean no, and no certificate would be looked at."""
    for name in _YES_OR_NO:
        if query.get(name, "no").lower() not in (*_YES, *_NO):
            raise Refused(f"The source's URL has {name}={query[name]}.", cure=f"Write {name}=true or {name}=false.")

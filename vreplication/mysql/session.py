"""One connection to the server: a raw PyMySQL connection with our session settings and our errors.

What must stay true: every connection of ours goes through `connect`, so each has the session settings of
docs/correctness.md (UTC, strict mode without value mangling, READ COMMITTED, all warnings kept, messages in English),
whatever the server's defaults and its init_connect say; a lost COMMIT is Ambiguous, a lost anything else Transient; no
exception text holds a password. No connection waits without an end: a host that has vanished is noticed within half a
minute (keepalive), a server that is silent inside a statement within the connection's read timeout, and the server ends
what stays idle.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT
from pymysql.protocol import FieldDescriptorPacket, MysqlPacket

from vreplication import names, settings
from vreplication.errors import Ambiguous, Refused, Terminal, Transient, VReplicationError
from vreplication.mysql import variables
from vreplication.mysql.url import SourceUrl

# Tables hold zeros in AUTO_INCREMENT columns, days of zero and 30 February: without two of these modes the copy would
# number such rows anew, or be refused.
SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"
_MODES_OF_VALUES = ("TIME_TRUNCATE_FRACTIONAL", "TIME_ROUND_FRACTIONAL", "NO_UNSIGNED_SUBTRACTION")
"""Modes that decide which value a conversion or an expression gives: ours are the server's, as a plain ALTER's are."""
_UNKNOWN_VARIABLE = 1193
# Not the client's own codes alone (2006, 2013): a server that shuts down, or ends a session, may say so first (1053,
# 1927, 4031).
_LOST = frozenset(
    {2002, 2003, 2006, 2013, 2014, 2055, 1053, 1077, 1079, 1158, 1159, 1160, 1161, 1927, 4031, 3168, 3169, 0}
)
# Too many connections, or transactions (1040, 1203, 1637), are a matter of time; of an account with a limit of its
# own, too (1226).
_RETRY = frozenset({1040, 1203, 1226, 1637, 3572})
_AGAIN = frozenset({1205, 1213, 1020})
# With a schema's name that no server takes: too long (1059, 1102), or with characters that names cannot have (1300).
_LOGIN = frozenset({1044, 1045, 1049, 1059, 1102, 1130, 1300, 1698, 1251, 2059})
_LOGIN_SECONDS = 10.0
_NOT_REACHED = frozenset({2002, 2003})
_PLACE_CURE = "Check that it runs, and the URL's host and port."
_URL_CURE = "Check its host, user and password: what is in them cannot be sent."
_TLS_CURE = "Check ssl_ca, ssl_cert and ssl_key in the URL."
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
"""Seconds, but for the last: milliseconds that sent data may stay unacknowledged. Not every system has all of them."""

Row = tuple[Any, ...]
T = TypeVar("T")
_Base: Any = pymysql.connections.Connection


class Connection(_Base):  # type: ignore[misc]
    """PyMySQL's, with one TLS context for all connections without TLS options: to build one costs 24 ms.

    And it takes the descriptions of a result's columns apart once: that is most of what reading a short result costs.
    """

    _shared_context: Any = None

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        return super()._read_packet(_column if packet_type is FieldDescriptorPacket else packet_type)

    def _create_ssl_ctx(self, options: Any) -> Any:
        if options:
            return super()._create_ssl_ctx(options)
        if Connection._shared_context is None:
            Connection._shared_context = super()._create_ssl_ctx({})
        return Connection._shared_context


@functools.lru_cache(2048)
def _column(data: bytes, encoding: str) -> Any:
    """Nobody changes what it returns."""
    return FieldDescriptorPacket(data, encoding)


DUPLICATE, NO_SUCH_TABLE, NO_SUCH_SCHEMA, QUERY_KILLED = 1062, 1146, 1049, 1317
"""Codes of a SqlError; the first: a row with that key is there already."""


class SqlError(Terminal):
    """A statement that the server refused; `code` is its error number, `text` its own words."""

    def __init__(self, message: str, *, cure: str = "", code: int = 0) -> None:
        super().__init__(message, cure=cure)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.cure, self.code))


def _rebuild(message: str, cure: str, code: int) -> SqlError:
    """Spark pickles what its tasks raise."""
    return SqlError(message, cure=cure, code=code)


class LockWait(Transient):
    """1205, 1213 or 1020 (a row has changed since): the whole transaction is to be done again."""


def is_passing(error: VReplicationError) -> bool:
    """The whole transaction is to be done again: a lock was in its way, or somebody has ended a statement of it."""
    # KILL QUERY takes back the statement alone, and leaves the connection.
    return isinstance(error, LockWait) or (isinstance(error, SqlError) and error.code == QUERY_KILLED)


class ConnectionLost(Transient):
    """The connection is gone; what it was doing is rolled back, unless it was a COMMIT (then: Ambiguous)."""


class ServerFull(ConnectionLost):
    """The server answers, and takes no further connection at the moment."""


class Silent(ConnectionLost):
    """The server let us in, and has said nothing since, or ended it."""


class Session:
    """A connection. Not thread-safe. Autocommit is on outside `transaction()`."""

    def __init__(self, connection: Any, url: SourceUrl) -> None:
        self._connection = connection
        self.url = url
        self.id: int = connection.thread_id()
        self._lasting: dict[str, Any] = {}
        self.is_in_transaction = False
        self.is_signed = False
        """It holds its sign, as all of ours on this server do."""

    def lasting(self, name: str, ask: Callable[[], T]) -> T:
        """What `ask` returns, asked for once: an answer that stays the same as long as this connection lasts."""
        if name not in self._lasting:
            self._lasting[name] = ask()
        return self._lasting[name]  # type: ignore[no-any-return]

    def _translated(self, sql: str) -> contextlib.AbstractContextManager[None]:
        return translated(sql, self._connection)

    def rows(self, sql: str, args: Sequence[Any] | None = None) -> list[Row]:
        """Run a query and return all of its rows."""
        with self._translated(sql), self._connection.cursor() as cursor:
            cursor.execute(sql, args)
            return list(cursor.fetchall())

    def bytes_rows(self, sql: str) -> list[Row]:
        """As `rows`, with text left as bytes: what other clients wrote may be valid in no encoding."""
        self._connection.use_unicode = False
        try:
            return self.rows(sql)
        finally:
            self._connection.use_unicode = True

    def row(self, sql: str, args: Sequence[Any] | None = None) -> Row | None:
        found = self.rows(sql, args)
        return found[0] if found else None

    def value(self, sql: str, args: Sequence[Any] | None = None) -> Any:
        """First column of the first row, or None."""
        found = self.row(sql, args)
        return found[0] if found else None

    def named_rows(self, sql: str, args: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        """Rows as dictionaries, column names in lower case (information_schema differs between servers)."""
        with self._translated(sql), self._connection.cursor() as cursor:
            cursor.execute(sql, args)
            names = [d[0].lower() for d in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def stream(self, sql: str) -> Iterator[Row]:
        """Rows one at a time, never all in memory. Nothing else may run on this session until they are read to the
        end; who stops before that loses the connection.
        """
        with contextlib.ExitStack() as undo, self._translated(sql):
            # PyMySQL reads a result that is forgotten to its end: of a large table that would take hours, in a
            # destructor.
            undo.callback(self._abandon)
            cursor = self._connection.cursor(pymysql.cursors.SSCursor)
            cursor.execute(sql)
            while (row := cursor.fetchone()) is not None:
                yield row
            cursor.close()
            undo.pop_all()

    def execute(self, sql: str, args: Sequence[Any] | None = None) -> int:
        """Run a statement and return the number of affected rows."""
        with self._translated(sql), self._connection.cursor() as cursor:
            return int(cursor.execute(sql, args))

    def execute_raw(self, sql: str | bytes) -> int:
        """As `execute`, for text that we built ourselves: no placeholders, no escaping."""
        with self._translated(sql if isinstance(sql, str) else ""):
            return int(self._connection.query(sql))

    @property
    def warning_count(self) -> int:
        """Warnings of the last `execute_raw` statement."""
        result = self._connection._result
        return int(result.warning_count) if result is not None else 0

    @property
    def info(self) -> bytes:
        """The server's own words on the last `execute_raw` statement: `Records: 3  Duplicates: 1  Warnings: 0`."""
        result = self._connection._result
        return (result.message or b"") if result is not None else b""

    def warnings(self) -> list[tuple[str, int, str]]:
        """(level, code, message) of the last statement."""
        return [(str(a), int(b), str(c)) for a, b, c in self.rows("SHOW WARNINGS")]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN … COMMIT; any exception rolls the whole transaction back. Raises Ambiguous on a lost COMMIT."""
        with self._translated("BEGIN"):
            self._connection.begin()
        self.is_in_transaction = True
        try:
            yield
        except BaseException:
            # All of it: at a lock wait (1205) the server takes back the statement alone, and the next BEGIN would
            # commit what is left (chunk protocol, rule 3).
            self.rollback()
            raise
        finally:
            self.is_in_transaction = False
        self._commit()

    def _commit(self) -> None:
        try:
            with self._translated("COMMIT"):
                self._connection.commit()
        except ConnectionLost as error:
            raise Ambiguous(f"The connection was lost while committing: {error.message}") from None
        except Transient as error:
            # Refused by a limit of our account it is open yet, and the next transaction would commit it.
            if not isinstance(error, LockWait):
                self.abort()
            raise

    def rollback(self) -> None:
        """Roll back; on a connection that is gone the server has done so already."""
        with contextlib.suppress(VReplicationError), self._translated("ROLLBACK"):
            self._connection.rollback()

    def kill(self, connection_id: int) -> None:
        """KILL another connection; one that is gone already is fine."""
        try:
            self.execute_raw(f"KILL {int(connection_id)}")
        except SqlError as error:
            if error.code != 1094:
                raise

    @contextlib.contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Wait for so long for an answer inside the block."""
        before = self._connection._read_timeout
        # PyMySQL puts it on the socket with each read.
        self._connection._read_timeout = seconds
        try:
            yield
        finally:
            self._connection._read_timeout = before

    @contextlib.contextmanager
    def as_the_server(self) -> Iterator[None]:
        """Inside the block SQL mode and time zone are the server's own: what a plain ALTER in a new session has."""
        mode, zone = self.rows("SELECT @@sql_mode, @@time_zone")[0]
        self.execute_raw("SET SESSION sql_mode=@@GLOBAL.sql_mode, time_zone=@@GLOBAL.time_zone")
        try:
            yield
        finally:
            with contextlib.suppress(ConnectionLost):
                # Of a lost connection there is no session to put back, and its error would hide the block's.
                self.execute("SET SESSION sql_mode=%s, time_zone=%s", (mode, zone))

    @contextlib.contextmanager
    def in_the_servers_zone(self) -> Iterator[None]:
        """Inside the block the time zone is the server's own; what it computes from a TIMESTAMP depends on it."""
        self.execute_raw("SET SESSION time_zone=@@GLOBAL.time_zone")
        try:
            yield
        finally:
            with contextlib.suppress(ConnectionLost):
                self.execute_raw("SET SESSION time_zone='+00:00'")

    def is_alive(self) -> bool:
        """Asks the server."""
        with contextlib.suppress(Transient):
            return bool(self.value("SELECT 1"))
        return False

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.close()

    def abort(self) -> None:
        """Drop the socket without a word to the server: for use while another thread waits on this session."""
        with contextlib.suppress(Exception):
            self._connection._force_close()

    def _abandon(self) -> None:
        """In the middle of a streamed result, which would be read to its end when it is forgotten."""
        self.abort()
        if (result := self._connection._result) is not None:
            result.unbuffered_active = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    url: SourceUrl,
    *,
    use_database: bool = True,
    read_timeout: float | None = None,
    lock_wait_seconds: int | None = None,
    idle_seconds: int = settings.IDLE_SECONDS,
    found_rows: bool = False,
    connection_class: type[Any] = Connection,
) -> Session:
    """Open a session. Raises Refused (login, unknown database) or Transient (server not reachable).

    read_timeout: how long a statement may go unanswered, `settings.ANSWER_SECONDS` unless given; a row lock is waited
    for `settings.LOCK_WAIT_SECONDS` unless told otherwise.
    """
    patience = settings.ANSWER_SECONDS if read_timeout is None else read_timeout
    lock_wait = settings.LOCK_WAIT_SECONDS if lock_wait_seconds is None else lock_wait_seconds
    with translated("connect", where=url.place):
        connection = connection_class(
            **url.connect_arguments(),
            database=url.database if use_database else None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_LOGIN_SECONDS,
            # While we log in. A server that takes the connection and says nothing would hold us for as long as a
            # statement may take (test_a_server_that_takes_the_connection_and_says_nothing).
            read_timeout=min(_LOGIN_SECONDS, patience),
            write_timeout=patience,
            # So that an UPDATE that finds its row as it is to be counts, too: a step that comes again is no lost row.
            client_flag=CLIENT.FOUND_ROWS if found_rows else 0,
        )
    _keep_alive(connection._sock)
    session = Session(connection, url)
    try:
        _set_up(session, _settings(session, lock_wait, idle_seconds))
        session.is_signed = _sign(session)
    except ConnectionLost as error:
        session.abort()
        raise Silent(error.message, cure=error.cure) from None
    except BaseException:
        session.abort()
        raise
    connection._read_timeout = patience
    return session


def _set_up(session: Session, assignments: tuple[str, ...]) -> None:
    """In one statement where that can be. MySQL wants SESSION_VARIABLES_ADMIN for max_error_count; a login without it
    may still look (planning names the grant)."""
    # F3: so that INSERT … SELECT reads the source without locks, and each look sees what has been committed by then.
    isolation = f"{'tx' if _is_mariadb(session) else 'transaction'}_isolation='READ-COMMITTED'"
    try:
        # F6: a chunk reads the warnings of all its rows. With the default, 64 duplicates hid a value that was cut
        # (measured).
        session.execute_raw(f"SET SESSION {', '.join((*assignments, isolation))}, max_error_count=65535")
    except SqlError:
        _set_up_one_by_one(session, assignments)


def _set_up_one_by_one(session: Session, assignments: tuple[str, ...]) -> None:
    """For a server that does not know one of the variables: an older or a newer one."""
    session.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    for assignment in assignments:
        try:
            session.execute_raw(f"SET SESSION {assignment}")
        except SqlError as error:
            if error.code != _UNKNOWN_VARIABLE:
                raise
    with contextlib.suppress(SqlError):
        session.execute_raw("SET SESSION max_error_count=65535")


def _sign(session: Session) -> bool:
    """False on a server that knows no such locks. Raises ConnectionLost where it was not given, as it is to others."""
    try:
        is_given = session.value(f"SELECT GET_LOCK('{names.sign(session.id)}',0)") == 1
    except SqlError as error:
        if error.code != QUERY_KILLED:
            return False
        is_given = False
    if not is_given:
        raise ConnectionLost("The server did not give a new connection its lock.")
    return True


def _is_mariadb(session: Session) -> bool:
    return "mariadb" in session._connection.get_server_info().lower()


def _keep_alive(connected: socket.socket) -> None:
    """PyMySQL asks for keepalive, which by itself begins after two hours."""
    options = [(getattr(socket, name), value) for name, value in _KEEPALIVE if hasattr(socket, name)]
    for option, value in options:
        # A Unix socket has none of these, and no host that could vanish.
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _settings(session: Session, lock_wait_seconds: int, idle_seconds: int) -> tuple[str, ...]:
    # rowcopy/warned.py and apply/writer.py read rows and keys out of the server's words, which a server may translate.
    return (
        "time_zone='+00:00'",
        f"sql_mode={_sql_mode()}",
        "lc_messages='en_US'",
        f"innodb_lock_wait_timeout={int(lock_wait_seconds)}",
        # By default GROUP_CONCAT cuts what it puts together at 1,024 bytes (MySQL), with no more than a warning.
        "group_concat_max_len=1073741824",
        f"wait_timeout={int(idle_seconds)}",
        "net_write_timeout=600",
        "net_read_timeout=600",
        *variables.BOTH,
        *(variables.MARIADB if _is_mariadb(session) else variables.MYSQL),
    )


def _sql_mode() -> str:
    """SQL of the mode: ours, with what decides values taken over from the server."""
    # Under MariaDB's EMPTY_STRING_IS_NULL '' is NULL, and of that CONCAT makes no mode at all, without an error.
    taken = (f"IF(FIND_IN_SET('{mode}',@@GLOBAL.sql_mode),'{mode}',NULL)" for mode in _MODES_OF_VALUES)
    return f"CONCAT_WS(',','{SQL_MODE}',{','.join(taken)})"


@contextlib.contextmanager
def translated(sql: str, connection: Any = None, where: str = "") -> Iterator[None]:
    """Turn PyMySQL's exceptions into ours. connection: PyMySQL's, once there is one; where: the server, until then."""
    try:
        yield
    except pymysql.err.Error as error:
        raise _translate(error, sql, where) from None
    except OSError as error:
        if sql == "connect" and isinstance(error, (FileNotFoundError, PermissionError, ssl.SSLError)):
            # What is wrong with the socket PyMySQL tells in its own words; it has not come to that.
            raise Refused(f"The URL's files for TLS cannot be read: {error}.", cure=_TLS_CURE) from None
        raise _lost(error) from None
    except (AttributeError, ValueError) as error:
        if connection is None or connection.open:
            _give_up(connection, sql, error)
            raise
        # PyMySQL's own state after a dropped socket: 'NoneType' object has no attribute 'read', closed file.
        raise _lost(error) from None


def _lost(error: Exception) -> ConnectionLost:
    return ConnectionLost(f"The connection to the server was lost ({type(error).__name__}).")


def _give_up(connection: Any, sql: str, error: Exception) -> None:
    """A value that cannot be sent or read, or a fault: taken for a lost connection it would be tried again for ever.

    Raises Refused where it is the URL's.
    """
    if connection is not None:
        # The rest of an answer that could not be read would be taken for the next one's.
        connection._force_close()
    elif sql == "connect" and isinstance(error, ValueError):
        # Its words may quote the password.
        raise Refused(f"The URL cannot be used ({type(error).__name__}).", cure=_URL_CURE) from None


def _translate(error: pymysql.err.Error, sql: str, where: str) -> VReplicationError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    words = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code in _LOGIN and sql == "connect":
        return Refused(
            f"The server refused the connection: {words} ({code}).", cure="Check user, password and database."
        )
    if isinstance(cause := getattr(error, "original_exception", None), ssl.SSLCertVerificationError):
        return Refused(f"The server's certificate was not accepted: {cause.verify_message}.", cure=_TLS_CURE)
    if code in _AGAIN:
        return LockWait(f"{words} ({code})")
    if code in _NOT_REACHED and sql == "connect":
        return ConnectionLost(f"The server at {where} cannot be reached: {words} ({code}).", cure=_PLACE_CURE)
    if code in _RETRY:
        full = f"The server takes no connection at the moment: {words} ({code})."
        return ServerFull(full) if sql == "connect" else Transient(f"{words} ({code})")
    if isinstance(error, pymysql.err.InterfaceError) or code in _LOST:
        return ConnectionLost(f"The connection to the server was lost: {words} ({code}).")
    return SqlError(f"{words} ({code})", code=code)

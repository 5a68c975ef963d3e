"""A schema with its two users: vreplication's, made from sql/grants/, and the application's.

What must stay true: what is tested runs as the user of sql/grants/, never as root; `drop` leaves nothing of ours on
the server, whatever a test left open (transactions, prepared branches, locks), but for the sidecar's own tables, empty,
on a server of ours: MySQL takes a fifth of a second to make them. Who needs a server without them says `drop_sidecar`.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.servers import RunningServer
from vreplication.mysql.processes import processes
from vreplication.mysql.quoting import binary, ident
from vreplication.mysql.server import prepared_branches
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.url import SourceUrl
from vreplication.settings import SIDECAR
from vreplication.state import layout

GRANTS = Path(__file__).resolve().parent.parent / "sql" / "grants"


@dataclass(slots=True, kw_only=True)
class Database:
    """A schema of its own on a server."""

    server: RunningServer
    name: str
    user: str
    app_user: str
    password: str = field(repr=False)
    had_sidecar: bool
    _admin: Session | None = field(default=None, repr=False)

    @property
    def url(self) -> SourceUrl:
        """The least-privilege user of sql/grants/, unencrypted. `str()` of it is a URL without the password."""
        return self.server.plain(self.user_url)

    @property
    def user_url(self) -> SourceUrl:
        """The same as a user has it: encrypted where the server offers that."""
        return self.server.url(self.name, user=self.user, password=self.password)

    @property
    def app_url(self) -> SourceUrl:
        """The application's user: all privileges on this schema, none elsewhere. Unencrypted."""
        return self.server.plain(self.server.url(self.name, user=self.app_user, password=self.password))

    @property
    def admin(self) -> Session:
        """The administrator's session in this schema, autocommit, opened when first asked for."""
        if self._admin is None:
            self._admin = self.server.admin(self.name)
        return self._admin

    def reconnect(self) -> Session:
        """A new administrator's session, after a restart of the server."""
        self.close()
        return self.admin

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def drop_sidecar(self) -> None:
        """As on a server on which nothing of ours has ever run."""
        self.admin.execute(f"DROP DATABASE IF EXISTS {ident(SIDECAR)}")

    def drop(self) -> None:
        """Remove the schema, its users and what the sidecar holds."""
        self.close()
        with self.server.admin() as session:
            session.execute("SET SESSION lock_wait_timeout=30")
            self._end_sessions(session)
            if self.server.is_ours:
                # Before DROP, which would wait for the metadata lock that a prepared branch keeps without a
                # connection.
                _roll_back_branches(session, is_mariadb=self.server.is_mariadb)
            session.execute(f"DROP DATABASE IF EXISTS {ident(self.name)}")
            if self.server.is_ours:
                _empty_sidecar(session)
            elif not self.had_sidecar:
                session.execute(f"DROP DATABASE IF EXISTS {ident(SIDECAR)}")
            for user in (self.user, self.app_user):
                session.execute_raw(f"DROP USER IF EXISTS '{user}'@'%'")

    def _end_sessions(self, session: Session) -> None:
        """Kill whoever is still in the schema, and wait until they are gone: an open transaction blocks DROP."""
        deadline = time.monotonic() + 30
        while open_ids := self._open_ids(session):
            for connection_id in open_ids:
                session.kill(connection_id)
            if time.monotonic() > deadline:
                raise TimeoutError(f"connections {open_ids} did not end")
            time.sleep(0.02)

    def _open_ids(self, session: Session) -> list[int]:
        users = (self.user, self.app_user)
        found = processes(session).values()
        return [p.id for p in found if p.id != session.id and (p.user in users or p.schema == self.name)]


def create_database(server: RunningServer, name: str = "", *, grants: str = "") -> Database:
    """Make a schema (of a name not used before, unless one is given) and its users.

    grants: what our user may, as sql/grants/ has it: '' for an online DDL, or move_source, feed_target and so on.
    """
    token = secrets.token_hex(4)
    with server.admin() as session:
        database = Database(
            server=server,
            name=name or f"vrt{token}",
            user=f"vr{token}",
            app_user=f"app{token}",
            password=secrets.token_hex(12),
            had_sidecar=session.row("SHOW DATABASES LIKE %s", (SIDECAR,)) is not None,
        )
        session.execute(f"CREATE DATABASE {ident(database.name)}")
        for statement in _accounts(database, f"{grants}.{server.flavor}" if grants else server.flavor):
            session.execute_raw(statement)
    return database


def grant_statements(name: str, *, user: str, host: str, password: str, schema: str) -> list[str]:
    """The statements of sql/grants/<name>.sql for this user."""
    text = (GRANTS / f"{name}.sql").read_text()
    for word, value in {"user": user, "host": host, "password": password, "schema": schema}.items():
        text = text.replace(f"<{word}>", value)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]


def _accounts(database: Database, grants: str) -> list[str]:
    app = f"'{database.app_user}'@'%'"
    # The test-side application connects through the same `connect`, which sets max_error_count.
    session = [] if database.server.is_mariadb else [f"GRANT SESSION_VARIABLES_ADMIN ON *.* TO {app}"]
    return [
        *grant_statements(grants, user=database.user, host="%", password=database.password, schema=database.name),
        f"CREATE USER {app} IDENTIFIED BY '{database.password}'",
        f"GRANT ALL PRIVILEGES ON {ident(database.name)}.* TO {app}",
        *session,
    ]


def _empty_sidecar(session: Session) -> None:
    """A whole one keeps its tables; any other goes."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema=%s"
    there = {str(name) for (name,) in session.rows(sql, (SIDECAR,))}
    is_whole = layout.names() <= there
    if not is_whole or session.rows(f"SELECT version FROM {SIDECAR}.schema_version") != [(layout.VERSION,)]:
        session.execute(f"DROP DATABASE IF EXISTS {ident(SIDECAR)}")
        return
    for name in there - layout.names():
        session.execute(f"DROP TABLE {SIDECAR}.{ident(name)}")
    for name in layout.names() - {"schema_version"}:
        session.execute(f"DELETE FROM {SIDECAR}.{name}")


def _roll_back_branches(session: Session, *, is_mariadb: bool) -> None:
    """A branch outlives its connection with its locks; it can be ended a moment after that one is gone."""
    deadline = time.monotonic() + 30
    while branches := _branches(session, is_mariadb=is_mariadb):
        for branch in branches:
            try:
                session.execute_raw(f"XA ROLLBACK {branch}")
            except SqlError:
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.02)


def _branches(session: Session, *, is_mariadb: bool) -> list[str]:
    """Prepared branches as text that XA ROLLBACK takes."""
    if is_mariadb:
        return [str(row[3]) for row in session.rows("XA RECOVER FORMAT='SQL'")]
    found = prepared_branches(session, is_mariadb=False)
    return [f"{binary(gtrid)},{binary(bqual)},{format_id}" for format_id, gtrid, bqual in found]

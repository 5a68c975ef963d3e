"""How the sidecar's tables come about: made on a new server, brought up to date where an earlier release made them.

`sql/sidecar` holds today's layout. `sql/migrations` holds what leads to it, a file a version: `0002_*.sql` leads from
version 1 to version 2.

What must stay true: one process at a time changes the layout (a named lock of the server), and none while a process of
an earlier release is at work, which would not know the new one. A migration that was cut off anywhere goes on where it
stopped: DDL cannot be rolled back, so each statement that is done is noted, and one that was done and not noted does no
harm when it comes again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from vreplication.errors import LeaseHeld, Refused, Terminal, Transient
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import LockWait, Session, SqlError
from vreplication.settings import SIDECAR
from vreplication.state import lease

T = TypeVar("T")
VERSION = 5
_VERSION_ROW, _STEP_ROW = 1, 2
"""Rows of schema_version: the layout's version, and how many statements of the migration under way are done."""
_DENIED = frozenset({1044, 1142, 1143})
_DONE_BEFORE = frozenset({1050, 1060, 1061, 1091})
"""The table, column or key is there already, or is gone already."""
_LOCK, _LOCK_SECONDS = "vreplication.layout", 60
_DEADLOCKS = 5
"""In a row, before one is raised."""


def exists(session: Session) -> bool:
    """True when a sidecar was installed on this server; cut off, or of an earlier release, it may lack some tables."""
    sql = "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name='workflow'"
    return session.row(sql, (SIDECAR,)) is not None


def look(session: Session, query: Callable[[], T]) -> T | None:
    """What the query finds; None where no sidecar was installed. Where one was, it costs nothing to ask so.

    Asked again when it failed and the sidecar is there: it may have been installed in between, or is of an earlier
    release, and is brought up to date, maybe by another process, whose DDL can end a query of several tables as a
    deadlock. Raises Refused where the user may not read it.
    """
    with contextlib.suppress(SqlError):
        try:
            return query()
        except LockWait:
            # It has taken back what came before in a transaction, which is to begin again.
            if session.is_in_transaction:
                raise
    try:
        if not exists(session):
            return None
        complete(session)
        return query()
    except SqlError as error:
        if error.code not in _DENIED:
            raise
        raise _unreadable(error) from None


def check_readable(session: Session) -> None:
    """Raises Refused where the user may not see whether a sidecar was installed: to `look` there is none."""
    try:
        session.rows(f"SELECT id FROM {SIDECAR}.workflow LIMIT 0")
    except SqlError as error:
        if error.code in _DENIED:
            raise _unreadable(error) from None


def _unreadable(error: SqlError) -> Refused:
    return Refused(
        f"The user may not read our own schema {SIDECAR}: {error.message}.",
        cure=f"GRANT SELECT ON {ident(SIDECAR)}.* TO the user; (sql/grants/ has all that is needed)",
    )


def complete(session: Session) -> None:
    """Bring a sidecar of an earlier release up to date; a look is enough where nothing is missing."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema=%s"
    there = {str(name) for (name,) in session.rows(sql, (SIDECAR,))}
    # There may be more: the key tables of workflows are in this schema as well.
    if not names() <= there or _version(session) != VERSION:
        install(session)


def unlike(session: Session) -> str:
    """How the sidecar that is there differs from this release's, as a sentence; '' where it does not. Reads only."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema=%s"
    there = {str(name) for (name,) in session.rows(sql, (SIDECAR,))}
    found = _version(session) if "schema_version" in there else None
    if found is not None and found > VERSION:
        return f"It is of version {found}, newer than the {VERSION} that this program knows."
    if found != VERSION:
        return f"It is of version {found or 'unknown'}, older than the {VERSION} of this program."
    missing = sorted(names() - there)
    return f"It has no table {', '.join(missing)}." if missing else ""


def install(session: Session) -> None:
    """Create what is missing and run the migrations that are missing.

    Begun again behind a deadlock: between our DDL and a look of another process at several of these tables the server
    may choose ours to end. Raises Terminal where the sidecar is of a newer release, LeaseHeld while an earlier release
    is at work on it, and Refused where the user may not make it.
    """
    for _ in range(_DEADLOCKS):
        with contextlib.suppress(LockWait):
            return _install(session)
    _install(session)


def _install(session: Session) -> None:
    try:
        session.execute_raw(f"CREATE DATABASE IF NOT EXISTS {ident(SIDECAR)}")
    except SqlError as error:
        if error.code not in _DENIED:
            raise
        raise Refused(
            f"The user may not make our own schema {SIDECAR}: {error.message}.",
            cure=f"Grant what sql/grants/ has for {ident(SIDECAR)}.*.",
        ) from None
    with _alone(session):
        session.execute_raw(_definition("schema_version"))
        found = _version(session)
        if found is None:
            # First of all, so that an installation that is cut off is not taken for one of an earlier release.
            session.execute_raw(f"INSERT INTO {SIDECAR}.schema_version VALUES ({_VERSION_ROW},{VERSION})")
        elif found > VERSION:
            raise Terminal(
                f"The sidecar schema {SIDECAR} is of version {found}; this program knows {VERSION}.",
                cure="Use the newer vreplication that made it.",
            )
        elif found < VERSION:
            _migrate(session, found)
        # Only now: a migration is written for the tables as the release before left them.
        for name in sorted(names()):
            session.execute_raw(_definition(name))


@contextlib.contextmanager
def _alone(session: Session) -> Iterator[None]:
    # A named lock: one of a row would be given back by the first DDL, which commits.
    if session.value("SELECT GET_LOCK(%s,%s)", (_LOCK, _LOCK_SECONDS)) != 1:
        raise Transient(f"Another process has been changing the tables of {SIDECAR} for {_LOCK_SECONDS} s.")
    try:
        yield
    finally:
        session.value("SELECT RELEASE_LOCK(%s)", (_LOCK,))


def _version(session: Session) -> int | None:
    found = session.value(f"SELECT version FROM {SIDECAR}.schema_version WHERE id={_VERSION_ROW}")
    return None if found is None else int(found)


def _migrate(session: Session, found: int) -> None:
    _check_idle(session, found)
    for version in range(found + 1, VERSION + 1):
        done = session.value(f"SELECT version FROM {SIDECAR}.schema_version WHERE id={_STEP_ROW}") or 0
        for number, statement in enumerate(statements(version), start=1):
            if number > int(done):
                _run(session, statement)
                # DDL commits by itself, so this note comes a moment later. A crash in between runs the statement again,
                # and what that says then is in _DONE_BEFORE.
                session.execute_raw(f"REPLACE INTO {SIDECAR}.schema_version VALUES ({_STEP_ROW},{number})")
        with session.transaction():
            session.execute_raw(f"UPDATE {SIDECAR}.schema_version SET version={version} WHERE id={_VERSION_ROW}")
            session.execute_raw(f"DELETE FROM {SIDECAR}.schema_version WHERE id={_STEP_ROW}")


def _run(session: Session, statement: str) -> None:
    try:
        session.execute_raw(statement)
    except SqlError as error:
        if error.code not in _DONE_BEFORE:
            raise


def _check_idle(session: Session, version: int) -> None:
    # This reads the earlier release's tables. No migration has changed `lease` and `heartbeat`; one that does has to
    # ask otherwise here.
    for workflow, role in session.rows(f"SELECT workflow, role FROM {SIDECAR}.heartbeat"):
        holder = lease.holder_of(session, str(workflow), str(role))
        if holder and holder.is_alive:
            raise LeaseHeld(
                f"An earlier release of vreplication is at work on workflow {workflow} ({holder.name}), and this one"
                f" needs other tables in {SIDECAR} (version {version}, needed {VERSION}).",
                cure=f"Let it end or stop it there; `vreplication resume {workflow}` goes on from where it stands.",
            )


def statements(version: int) -> list[str]:
    """Of the migration that leads to this version."""
    # Cut at the semicolons that end a line, so none may end a line within a statement.
    (path,) = _folder("migrations").glob(f"{version:04}_*.sql")
    return [text for part in _bare(path).split(";\n") if (text := part.strip().removesuffix(";"))]


@functools.cache
def names() -> frozenset[str]:
    """The tables that every sidecar has."""
    return frozenset(path.stem for path in _folder("sidecar").glob("*.sql"))


def _definition(name: str) -> str:
    return definition_of("sidecar", name)


def definition_of(folder: str, name: str) -> str:
    """CREATE TABLE IF NOT EXISTS out of sql/FOLDER, with the schema's name."""
    create = "CREATE TABLE IF NOT EXISTS "
    return _bare(_folder(folder) / f"{name}.sql").replace(create, f"{create}{ident(SIDECAR)}.", 1)


def _bare(path: Path) -> str:
    """The file's text without its comments."""
    return "\n".join(line for line in path.read_text().splitlines() if not line.startswith("--")) + "\n"


def _folder(name: str) -> Path:
    """`sql/NAME` of the repository, or its copy inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_sql" / name, package.parent / "sql" / name):
        if folder.is_dir():
            return folder
    raise Terminal("The sidecar's table definitions are missing from this installation.", cure="Install it again.")

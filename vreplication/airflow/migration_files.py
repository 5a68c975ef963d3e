"""Files under migrations/: what they ask for, checked as the command line checks it.

What must stay true: importing this imports nothing of Airflow; a file with a mistake asks for nothing and is named with
one sentence; only what safe YAML can say is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vreplication.airflow.folder import chosen
from vreplication.errors import Refused
from vreplication.planning.fields import own_fields
from vreplication.scheduler import queueing
from vreplication.state import queue
from vreplication.state.queue import Entry
from vreplication.workflows.registry import WorkflowKind, connection_param

OTHER_FILES = frozenset({"backfills.yaml"})
"""Files of that folder that are not ours to read."""
SOURCES = "source_conn_ids"


def _keys(kind: WorkflowKind) -> tuple[str, ...]:
    own, shared = own_fields(kind.spec)
    return (*map(connection_param, (*kind.ends, *kind.optional)), *own, *shared, *queueing.QUEUE_FIELDS, queue.KIND)


class MigrationFileError(Refused):
    """A file under migrations/ that cannot be used; the message begins with its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One migration of a file. conn_id: of the server where its state is; `given`: its other keys."""

    file: str
    conn_id: str
    given: Mapping[str, Any]

    def entry(self, default_schema: str) -> Entry:
        """Raises MigrationFileError."""
        try:
            return queueing.make_entry(default_schema, self.given, conn_id=self.conn_id)
        except Refused as error:
            raise MigrationFileError(f"{self.file}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What the files ask for; `sources`: connections whose queues are looked after; `problems`: sentences."""

    wanted: tuple[Wanted, ...] = ()
    sources: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


def read_files(default: str) -> Files:
    """Every *.yaml of the folder, in the order of names. A missing folder is an empty one."""
    wanted: list[Wanted] = []
    sources: set[str] = set()
    problems: list[str] = []
    for path in sorted(chosen(default).glob("*.yaml")):
        if path.name in OTHER_FILES:
            continue
        try:
            found, named = _read_file(path)
        except Refused as error:
            problems.append(str(error))
            continue
        wanted += found
        sources |= named | {w.conn_id for w in found}
    return Files(wanted=tuple(wanted), sources=frozenset(sources), problems=tuple(problems))


def _read_file(path: Path) -> tuple[list[Wanted], set[str]]:
    """A list of migrations, one migration, or `source_conn_ids: [...]`. Raises MigrationFileError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MigrationFileError(f"{path.name}: it cannot be read: {' '.join(str(error).split())}") from None
    items = content if isinstance(content, list) else [] if content is None else [content]
    sources = [
        _sources(item[SOURCES], path.name) for item in items if isinstance(item, dict) and set(item) == {SOURCES}
    ]
    wanted = [_wanted(item, path.name) for item in items if not (isinstance(item, dict) and set(item) == {SOURCES})]
    return wanted, set().union(*sources)


def _sources(given: object, file: str) -> set[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise MigrationFileError(f"{file}: {SOURCES} is not a list of connection ids.")
    return set(given)


def _wanted(item: object, file: str) -> Wanted:
    if not isinstance(item, dict):
        raise MigrationFileError(f"{file}: {item!r} is not a migration.", cure="Write keys and values: table: orders …")
    kind = _kind(item, file)
    if extra := sorted(str(key) for key in set(item) - set(_keys(kind))):
        raise MigrationFileError(f"{file}: key {extra[0]!r} is not known.", cure=f"There are {', '.join(_keys(kind))}.")
    home = connection_param(kind.home)
    for key in (*map(connection_param, kind.ends), "workflow"):
        if not isinstance(item.get(key), str) or not item[key]:
            raise MigrationFileError(f"{file}: a migration has no {key}.")
    found = Wanted(file=file, conn_id=item[home], given={k: v for k, v in item.items() if k != home})
    # Made once, with any schema: a mistake is told now, and not when the entry is due.
    found.entry("schema")
    return found


def _kind(item: dict[str, Any], file: str) -> WorkflowKind:
    try:
        return queueing.kind_of(item)
    except Refused as error:
        raise MigrationFileError(f"{file}: {error}") from None

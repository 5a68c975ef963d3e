"""The tables that one command changes, as the command line or a file names them.

What must stay true: whatever is wrong with the file is one sentence that says which of its tables; nothing is taken
from it that the command line could not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vreplication.errors import Refused
from vreplication.planning.spec import Spec, make_spec

_KEYS = frozenset({"table", "alter", "options"})
_FIELDS = {"xa_wait": "xa_wait_seconds", "verify_every": "verify_every_minutes"}
"""Options whose field has another name."""
_OF_ALL = frozenset({"table", "alter", "workflow", "spark_master"})
_SHAPE = "It is a YAML list, a table each: `- table: NAME`, `alter: CLAUSES`, and `options:` as on the command line."


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A table to change; options: fields of its Spec that are its own."""

    table: str
    alter: str
    options: Mapping[str, Any] = field(default_factory=dict)
    number: int | None = None
    """Which table of the file; None: the command line names it."""


def named(tables: Sequence[str], alter: str | None, file: Path | None) -> list[Named]:
    """By --table and --alter, or by --tables-file. Raises Refused."""
    if file is not None:
        if tables or alter:
            raise Refused("--tables-file names tables and ALTERs itself.", cure="Leave --table and --alter out.")
        return _of_file(file)
    if not tables:
        raise Refused("No table is given.", cure="Pass --table NAME, several times for several, or --tables-file FILE.")
    if alter is None:
        raise Refused("No ALTER is given.", cure="Pass --alter CLAUSES: what would follow ALTER TABLE name.")
    return [Named(table=table, alter=alter) for table in tables]


def spec_of(table: Named, common: Mapping[str, Any]) -> Spec:
    """common: what holds for all tables. Raises Refused, which says which table of a file is wrong."""
    try:
        return make_spec(**{**common, **table.options, "table": table.table, "alter": table.alter})
    except Refused as error:
        if table.number is None:
            raise
        # What is wrong for all of them is wrong with none of the file's.
        make_spec(**{**common, "table": "t", "alter": "FORCE"})
        raise Refused(f"Table {table.number} of the file, {table.table}: {error.message}", cure=error.cure) from None


def _of_file(path: Path) -> list[Named]:
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise Refused(f"The file {str(path)!r} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Refused(f"The file {str(path)!r} is not YAML: {' '.join(str(error).split())}.", cure=_SHAPE) from None
    if not isinstance(found, list) or not found:
        raise Refused(f"The file {str(path)!r} lists no tables.", cure=_SHAPE)
    return [_named(number, entry) for number, entry in enumerate(found, start=1)]


def _named(number: int, entry: object) -> Named:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("table", "alter")):
        raise Refused(f"Table {number} of the file lacks `table` or `alter`.", cure=_SHAPE)
    # An option that stands one level too high would be passed over, and the table copied by other rules.
    if unknown := sorted(map(str, entry.keys() - _KEYS)):
        raise Refused(f"Table {number} of the file has {unknown[0]!r}, which says nothing.", cure=_SHAPE)
    options = _options(number, entry.get("options") or {})
    return Named(table=entry["table"], alter=entry["alter"], options=options, number=number)


def _options(number: int, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Refused(f"The options of table {number} of the file are not names with values.", cure=_SHAPE)
    found = {}
    for name, value in given.items():
        plain = str(name).replace("-", "_")
        column = _FIELDS.get(plain, plain)
        if column not in Spec.model_fields or column in _OF_ALL:
            raise Refused(f"{name!r} is no option of a single table (table {number} of the file).", cure=_SHAPE)
        # `auto` is what holds where nothing is given.
        if not (column == "copy_parallelism" and str(value).lower() == "auto"):
            found[column] = value
    return found

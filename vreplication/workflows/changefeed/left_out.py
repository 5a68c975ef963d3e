"""What the filters of a replica have kept out of it: such a transaction has its GTID there, and is empty.

What must stay true: a filter that may concern a followed table of today refuses; one that cannot be read does. Whether
a server tells the case of these names depends on its flavor, its version and the filter: a name that differs in case
alone is taken for left out either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vreplication.mysql.replica import channels
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.planning.facts import Check, ok, refuse

Named = tuple[str, str]
NAME = "replication filters"
_KINDS = tuple(f"replicate_{kind}" for kind in ("do_db", "ignore_db", "do_table", "ignore_table"))
_ALL = (*_KINDS, "replicate_wild_do_table", "replicate_wild_ignore_table", "replicate_rewrite_db")
_WILD = re.compile(r"\\(.)|([%_])|(.)", re.DOTALL)


def check(session: Session, tables: Sequence[Named]) -> Check:
    """tables: those that are followed."""
    for name, value in _filters(session):
        if left := _left_out(name, value, tables):
            return refuse(
                NAME,
                f"{name}={value} on {session.url.host}:{session.url.port} may have kept changes of {'.'.join(left)} out"
                " of it: they have their GTIDs there, and no rows.",
                "Go on with a server that replicates all followed tables. Where it has all of their changes, take the"
                " filter away first.",
            )
    return ok(NAME, "No replication filter is known to have kept changes out.")


def _filters(session: Session) -> Iterator[tuple[str, str]]:
    """Of channels that are still there; MariaDB remembers those of the default one without it."""
    found: list[Mapping[str, str]] = [*channels(session)]
    if is_mariadb(session):
        names = ",".join(f"'{name}'" for name in _ALL)
        rows = session.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        found.append({str(name).lower(): str(value) for name, value in rows})
    return ((name, channel[name]) for channel in found for name in _ALL if channel.get(name))


def _left_out(name: str, value: str, tables: Sequence[Named]) -> Named | None:
    """The first that the filter may leave out."""
    # Rows of any schema may come here under another name.
    if name.endswith("rewrite_db"):
        return next(iter(tables), None)
    listed, is_ignoring = [each.strip().strip("`") for each in value.split(",")], "_ignore_" in name
    is_named = {table: _is_listed(name, listed, *table, is_folded=is_ignoring) for table in tables}
    return next((table for table, is_in in is_named.items() if is_in == is_ignoring), None)


def _is_listed(name: str, listed: Iterable[str], schema: str, table: str, *, is_folded: bool) -> bool:
    what = schema if name.endswith("_db") else f"{schema}.{table}"
    flags = re.DOTALL | (re.IGNORECASE if is_folded else 0)
    patterns = (_pattern(each) if "_wild_" in name else re.escape(each) for each in listed)
    return any(re.fullmatch(each, what, flags) for each in patterns)


def _pattern(text: str) -> str:
    """Of LIKE."""
    signs = {"%": ".*", "_": "."}
    return _WILD.sub(lambda m: signs.get(m.group(2) or "") or re.escape(m.group(1) or m.group(3)), text)

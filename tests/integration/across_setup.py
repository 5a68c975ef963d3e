"""Tables that are ready to be copied to another server: their state at home, on the target, our table on the source."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from rowcopy_setup import WORKFLOW, CopyCase, workflow_row

from sandbox.databases import Database
from tests.support.pairs import Pair
from vreplication import names
from vreplication.mysql.ends import Route
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.mapping import map_tables
from vreplication.schema.model import TableMapping
from vreplication.settings import SIDECAR
from vreplication.state import keytables, layout, lease, source_marks, workflows

TABLE = f"{WORKFLOW}.1"


@dataclass(kw_only=True)
class AcrossCase(CopyCase):
    """`database` and `session` are the target's; `source`, `reading` and `app` the source's."""

    source: Database
    reading: Session

    @property
    def route(self) -> Route:
        return Route(source=self.source.url, target=self.database.url, home=self.database.url)

    @property
    def reader(self) -> Session:
        return self.reading

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        key = ",".join(ident(p.target.name) for p in self.mapping.key)
        admin = self.database.admin if table == self.shadow else self.source.admin
        return admin.rows(f"SELECT {columns} FROM {ident(table)} ORDER BY {key}")

    def marks(self) -> list[tuple[int, int, int]]:
        """(split, ordinal, attempt) of the chunks that the source has been told of, the last one of each split."""
        sql = f"SELECT detail FROM {SIDECAR}.stream_marker WHERE kind='open' AND stream=%s ORDER BY id"
        told = [json.loads(detail) for (detail,) in self.source.admin.rows(sql, (WORKFLOW,))]
        return [(mark["split"], mark["ordinal"], mark["attempt"]) for mark in told if mark["table"] == self.table]


def make_across(pair: Pair, create: str, fill: tuple[str, ...] = (), target: str = "") -> AcrossCase:
    """Source table `t` from `create`, filled; its target from `target`, else alike. {t} stands for the name."""
    session, reading = connect(pair.target.url), connect(pair.source.url)
    layout.install(session)
    source_marks.install(reading)
    workflows.create(session, workflow_row(pair.source.name, names.shadow_table("t")))
    case = AcrossCase(
        database=pair.target,
        source=pair.source,
        session=session,
        reading=reading,
        app=connect(pair.source.app_url),
        mapping=_tables(pair, "t", create, fill, target),
        driver=lease.acquire(session, WORKFLOW, lease.DRIVER),
        replicate=lease.acquire(session, WORKFLOW, lease.REPLICATE),
        table=TABLE,
    )
    keytables.create_all(session, case.mapping, TABLE)
    case.beat()
    return case


def another_table(case: AcrossCase, pair: Pair, name: str, create: str, fill: tuple[str, ...]) -> AcrossCase:
    """The workflow's second table."""
    other = replace(case, mapping=_tables(pair, name, create, fill), table=f"{WORKFLOW}.2")
    keytables.create_all(case.session, other.mapping, other.table)
    return other


def _tables(pair: Pair, name: str, create: str, fill: tuple[str, ...], target: str = "") -> TableMapping:
    shadow = names.shadow_table(name)
    for statement in (create.replace("{t}", name), *fill):
        pair.source.admin.execute_raw(statement)
    pair.target.admin.execute_raw((target or create).replace("{t}", ident(shadow)))
    return map_tables(
        introspect(pair.source.admin, pair.source.name, name),
        introspect(pair.target.admin, pair.target.name, shadow),
        parse_alter("ENGINE=InnoDB"),
        is_mariadb=pair.target.server.is_mariadb,
    )

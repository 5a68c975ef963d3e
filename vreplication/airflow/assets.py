"""Assets: a migrated table as something that other DAGs can be scheduled on.

What must stay true: a table has one address however its migration named it, so that a schedule which was written
years ago still meets it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

ANY_TABLE = Asset("vreplication_table_migrated")
EACH_TABLE = AssetAlias("vreplication_tables")
"""Resolved when the table is known: to `table_asset` of it."""


def table_asset(conn_id: str, schema: str, table: str) -> Asset:
    """vreplication://shop/shop/orders: connection, schema, table."""
    # A slash in a name would be another part of the address, and so another table's.
    return Asset("vreplication://" + "/".join(quote(part, safe="") for part in (conn_id, schema, table)))


def note_migrated(context: Any, conn_id: str, schema: str, table: str, workflow: str) -> None:
    """By the task that has EACH_TABLE among its outlets."""
    about = {"conn_id": conn_id, "table": f"{schema}.{table}", "workflow": workflow}
    context["outlet_events"][EACH_TABLE].add(table_asset(conn_id, schema, table), extra=about)
    context["outlet_events"][ANY_TABLE].extra.update(about)

"""The hook of connection type mysql: what the Test button asks."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from vreplication.airflow import connections
from vreplication.errors import VReplicationError
from vreplication.mysql.session import Session, connect


class SourceHook(BaseHook):
    """A session of ours for a connection."""

    conn_name_attr = "source_conn_id"
    default_conn_name = "vreplication_source"
    conn_type = "mysql"
    hook_name = "MySQL or MariaDB"

    def __init__(self, source_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source_conn_id = source_conn_id

    def get_conn(self) -> Session:
        """Raises Refused or Transient."""
        return connect(connections.source_url(self.source_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        try:
            with self.get_conn() as session:
                return True, f"Connected to {session.value('SELECT VERSION()')}."
        except VReplicationError as error:
            return False, str(error)

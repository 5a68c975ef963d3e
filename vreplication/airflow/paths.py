"""Where Airflow is reached from outside."""

from __future__ import annotations

from urllib.parse import urlsplit


def outside() -> str:
    """The prefix that a proxy puts in front of Airflow, without a slash at its end."""
    from airflow.configuration import conf

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")

"""Where a browser finds our page: behind whatever path Airflow's base_url has."""

from __future__ import annotations

from urllib.parse import urlsplit

PREFIX = "/vreplication"


def page() -> str:
    """The page's path, without a slash at its end."""
    return f"{outside()}{PREFIX}"


def outside() -> str:
    """The path of Airflow itself, without a slash at its end: what a proxy in front of it puts there."""
    from airflow.configuration import conf

    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")

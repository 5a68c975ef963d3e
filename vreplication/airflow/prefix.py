"""Where a browser finds our page: behind whatever path Airflow's base_url has."""

from __future__ import annotations

from urllib.parse import urlsplit

PREFIX = "/vreplication"


def page() -> str:
    """The page's path, without a slash at its end."""
    from airflow.configuration import conf

    outside = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    return f"{outside}{PREFIX}"

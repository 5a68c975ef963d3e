"""Who may look and who may act, as Airflow says; and that an act was meant.

What must stay true: looking takes a login that may read the DAG `online_ddl`, acting one that may edit it (also for
workflows of the command line); an act that rides on the browser's cookie comes from our own page, with its token.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import HTTPException, Request, Response

from vreplication.ui import DAG

COOKIE = "vreplication_csrf"
HEADER = "x-csrf-token"

may_look = requires_access_dag(method="GET", param_dag_id=DAG)
may_act = requires_access_dag(method="PUT", param_dag_id=DAG)


def is_editor(user: GetUserDep) -> bool:
    """Whether the buttons are of use to this person; `may_act` decides when one is pressed."""
    details = DagDetails(id=DAG, team_name=DagModel.get_team_name(DAG))
    return bool(get_auth_manager().is_authorized_dag(method="PUT", details=details, user=user))


def token_of(request: Request) -> str:
    """The browser's token, or a new one."""
    return request.cookies.get(COOKIE) or secrets.token_urlsafe(24)


def give_token(request: Request, response: Response, token: str) -> None:
    path = request.scope.get("root_path") or "/"
    is_secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, path=path, httponly=True, samesite="strict", secure=is_secure)


def was_meant(request: Request) -> None:
    """Raises 403 for a request that another site made the browser send."""
    if not _is_same_site(request):
        raise HTTPException(403, "This act came from another site and was not done.")
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        # No browser adds this header by itself, so whoever sent it knows the secret.
        return
    cookie, sent = request.cookies.get(COOKIE, ""), request.headers.get(HEADER, "")
    if not cookie or not hmac.compare_digest(cookie.encode(), sent.encode()):
        raise HTTPException(403, "The page's token is missing or old; reload the page and try again.")


def _is_same_site(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")

"""Who may look and who may act, as Airflow says; and that an act was meant.

What must stay true: looking takes a login that may read the DAG `online_ddl`, acting one that may edit the DAG of the
workflow's kind (also for workflows of the command line), starting one that may trigger it; an act that rides on the
browser's cookie comes from our own page, with its token.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, Response

from vreplication.ui import DAG, DAGS

COOKIE = "vreplication_csrf"
HEADER = "x-csrf-token"
NOT_ALLOWED = "Acting takes the right to edit the workflow's DAG."

may_look = requires_access_dag(method="GET", param_dag_id=DAG)


def editable(user: GetUserDep) -> frozenset[str]:
    """The kinds of workflows that this person may act on: for them the buttons are of use."""
    return frozenset(kind for kind in DAGS if _may_edit(user, kind))


def _may_edit(user: BaseUser, kind: str) -> bool:
    details = DagDetails(id=kind, team_name=DagModel.get_team_name(kind))
    return bool(get_auth_manager().is_authorized_dag(method="PUT", details=details, user=user))


def can_start(user: GetUserDep) -> bool:
    """As Airflow asks before it triggers the DAG: for them the button is of use."""
    details = DagDetails(id=DAG, team_name=DagModel.get_team_name(DAG))
    manager = get_auth_manager()
    return bool(manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user))


def may_start(can: Annotated[bool, Depends(can_start)]) -> None:
    """Raises 403. Definitions of tables are shown to nobody else."""
    if not can:
        raise HTTPException(403, "Starting a migration takes the right to trigger the DAG online_ddl.")


def may_act(kinds: Annotated[frozenset[str], Depends(editable)]) -> None:
    """Raises 403 for who may act on nothing. Which kind it is, is known when the workflow has been found."""
    if not kinds:
        raise HTTPException(403, NOT_ALLOWED)


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

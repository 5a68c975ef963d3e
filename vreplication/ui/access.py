"""Who may look and who may act, as Airflow says; and that an act was meant.

What must stay true: looking at a workflow takes a login that may read the DAG of its kind, acting one that may edit it
(both also for workflows of the command line), starting one that may trigger it; who may act may look; who may look at
no kind sees nothing; an act that rides on the browser's cookie comes from our own page, with its token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, Response

from vreplication.ui import DAG, DAGS, LAKES

COOKIE = "vreplication_csrf"
HEADER = "x-csrf-token"
NOT_ALLOWED = "Acting takes the right to edit the workflow's DAG."

_SHOWN = (*DAGS, LAKES)
_TO_LOOK = f"Looking takes the right to read one of the DAGs {', '.join(_SHOWN)}."
_Teams = Mapping[str, str | None]


class Rights(NamedTuple):
    """reader, editor: kinds whose workflows this person may look at, and act on: for them the buttons are of use.

    starter: they may trigger the DAG that begins a migration.
    """

    reader: frozenset[str]
    editor: frozenset[str]
    starter: bool


def teams() -> _Teams:
    """Whose each DAG is, where Airflow has teams."""
    return DagModel.get_dag_id_to_team_name_mapping(list(_SHOWN))


# A dependency, which FastAPI resolves once a request and not once a DAG.
TeamsDep = Annotated[_Teams, Depends(teams)]


def _may(
    user: BaseUser, method: Literal["GET", "PUT", "POST"], kind: str, of: _Teams, entity: DagAccessEntity | None = None
) -> bool:
    # Auth managers that know teams decide by the name that they are handed, and look none up.
    details = DagDetails(id=kind, team_name=of.get(kind))
    found = get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user)
    return bool(found)


def editable(user: GetUserDep, of: TeamsDep) -> frozenset[str]:
    return frozenset(kind for kind in DAGS if _may(user, "PUT", kind, of))


def readable(user: GetUserDep, of: TeamsDep, editor: Annotated[frozenset[str], Depends(editable)]) -> frozenset[str]:
    # An auth manager may grant PUT without GET: who acts has to see what they act on.
    return editor | {kind for kind in _SHOWN if kind not in editor and _may(user, "GET", kind, of)}


def can_start(user: GetUserDep, of: TeamsDep) -> bool:
    """As Airflow asks before it triggers the DAG."""
    return _may(user, "POST", DAG, of, DagAccessEntity.RUN)


def rights(
    reader: Annotated[frozenset[str], Depends(readable)],
    editor: Annotated[frozenset[str], Depends(editable)],
    starter: Annotated[bool, Depends(can_start)],
) -> Rights:
    return Rights(reader, editor, starter)


RightsDep = Annotated[Rights, Depends(rights)]


def may_look(reader: Annotated[frozenset[str], Depends(readable)]) -> None:
    """Raises 403 for who may look at nothing. Which kind it is, is known when the workflow has been found."""
    if not reader:
        raise HTTPException(403, _TO_LOOK)


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
    # The same again: the tabs of a browser share the cookie, and a new one would refuse the acts of those that are
    # open.
    return request.cookies.get(COOKIE) or secrets.token_urlsafe(24)


def give_token(request: Request, response: Response, token: str) -> None:
    path = request.scope.get("root_path") or "/"
    is_secure = request.url.scheme == "https"
    # Scripts read the token from the page (data-token), which no other site can; the cookie is for the browser alone.
    response.set_cookie(COOKIE, token, path=path, httponly=True, samesite="strict", secure=is_secure)


def was_meant(request: Request) -> None:
    """Raises 403 for a request that another site made the browser send."""
    if not _is_same_site(request):
        raise HTTPException(403, "This act came from another site and was not done.")
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        # No browser adds this header by itself, so whoever sent it knows the secret.
        return
    cookie, sent = request.cookies.get(COOKIE, ""), request.headers.get(HEADER, "")
    # As bytes: `compare_digest` takes no text beyond ASCII, and a header may have any.
    if not cookie or not hmac.compare_digest(cookie.encode(), sent.encode()):
        raise HTTPException(403, "The page's token is missing or old; reload the page and try again.")


def _is_same_site(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        # "none" is an address that a person typed. "same-site" is not enough: another host of the domain is not ours.
        return site in ("same-origin", "none")
    # A browser too old for Sec-Fetch-Site names the origin of a POST; what names neither still needs the token.
    origin = request.headers.get("origin")
    # By host alone: behind a proxy that ends TLS the scheme that we see is not the browser's.
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")

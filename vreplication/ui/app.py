"""The app at /vreplication: JSON for programs, HTML for people, and four acts.

What must stay true: every route asks for a login, also the one for what does not exist; an act is a POST that passes
`may_act` and `was_meant`; links are relative, so that any prefix in front of Airflow works; every text is escaped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Protocol

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from vreplication import names
from vreplication.errors import Refused, Transient, VReplicationError
from vreplication.ui import access, reading, view
from vreplication.ui.acts import ACTS
from vreplication.ui.asking import Answer, Asker, Source
from vreplication.ui.masking import masked

STATIC = {"page.css": "text/css", "page.js": "text/javascript", "charts.js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'",
}
_SMALL = 100


class Home(Protocol):
    """What the page has to be told: where the sources are, and which workflow a DAG run is about."""

    def sources(self) -> list[Source]:
        """Every connection that is marked as ours."""

    def source(self, conn_id: str) -> Source | None:
        """One connection, marked or not; None when it is none of ours."""

    def workflow_of_run(self, run_id: str) -> tuple[str | None, str] | None:
        """Connection and workflow of a run of `online_ddl`; None when there is no such run."""


class NotFound(Exception):
    """`status` 404: it does not exist; 409: in several places; 503: a source that may have it does not answer."""

    def __init__(self, status: int, title: str, problems: list[dict[str, Any]]) -> None:
        super().__init__(title)
        self.status, self.title, self.problems = status, title, problems


def create_app(home: Home) -> FastAPI:
    """The whole app. Airflow's auth manager must be there when the first request comes."""
    app = FastAPI(title="vreplication", docs_url=None, redoc_url=None, openapi_url=None)
    page = Page(home)
    app.include_router(page.api())
    app.include_router(page.html())
    app.include_router(_nothing_else())
    app.middleware("http")(_with_headers)
    return app


async def _with_headers(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _nothing_else() -> APIRouter:
    """Who is not logged in does not learn what exists."""
    router = APIRouter(dependencies=[Depends(access.may_look)])

    @router.api_route("/{rest:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    def nothing(rest: str) -> None:
        raise HTTPException(404, "There is nothing here.")

    return router


class Page:
    """The routes, with what they share."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._asker = Asker()
        loader = PackageLoader("vreplication.ui", "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)

    def api(self) -> APIRouter:
        router = APIRouter(prefix="/api", dependencies=[Depends(access.may_look)])
        router.get("/workflows")(self.api_list)
        router.get("/workflows/{workflow}")(self.api_detail)
        guards = [Depends(access.may_act), Depends(access.was_meant)]
        router.post("/workflows/{workflow}/{act}", dependencies=guards)(self.api_act)
        return router

    def html(self) -> APIRouter:
        router = APIRouter(dependencies=[Depends(access.may_look)])
        router.get("/")(self.html_list)
        router.get("/workflows/{workflow}")(self.html_detail)
        router.get("/runs/{dag_id}/{run_id:path}")(self.html_run)
        router.get("/static/{name}")(self.static)
        return router

    # -- JSON

    def api_list(self, conn_id: str | None = None) -> JSONResponse:
        return JSONResponse(self._list(conn_id))

    def api_detail(self, workflow: str, conn_id: str | None = None) -> JSONResponse:
        try:
            return JSONResponse(view.detail(self._find(workflow, conn_id)))
        except NotFound as error:
            return _problem(error.status, error.title, sources=error.problems)

    async def api_act(self, workflow: str, act: str, user: GetUserDep, conn_id: str | None = None) -> JSONResponse:
        if act not in ACTS:
            return _problem(404, f"There is no act {act!r}.")
        return await run_in_threadpool(self._act, workflow, act, f"{user.get_name()} (Airflow)", conn_id)

    def _act(self, workflow: str, act: str, by: str, conn_id: str | None) -> JSONResponse:
        try:
            source = self._find(workflow, conn_id).source
        except NotFound as error:
            return _problem(error.status, error.title, sources=error.problems)
        assert source.url is not None
        try:
            done = ACTS[act](source.url, workflow, by)
        except VReplicationError as error:
            status = 503 if isinstance(error, Transient) else 409
            return _problem(status, masked(str(error), (source.url,)))
        finally:
            self._asker.forget()
        return JSONResponse({"workflow": workflow, "act": act, "done": masked(done, (source.url,))})

    # -- HTML

    def html_list(
        self, request: Request, editor: Annotated[bool, Depends(access.is_editor)], conn_id: str | None = None
    ) -> HTMLResponse:
        data = self._list(conn_id)
        poll = 3000 + 1000 * (len(data["workflows"]) // _SMALL)
        return self._render(request, "list.html", poll=poll, editor=editor, **data)

    def html_detail(
        self,
        request: Request,
        workflow: str,
        editor: Annotated[bool, Depends(access.is_editor)],
        conn_id: str | None = None,
    ) -> HTMLResponse:
        try:
            found = view.detail(self._find(workflow, conn_id))
        except NotFound as error:
            return self._message(request, error)
        return self._render(request, "detail.html", poll=2000, editor=editor, w=found)

    def html_run(self, request: Request, dag_id: str, run_id: str) -> Response:
        """The tab of a DAG run: the workflow's page, or why there is none."""
        found = self._home.workflow_of_run(run_id) if dag_id == access.DAG else None
        if found is None:
            return self._message(request, NotFound(404, f"This run of {dag_id} is no migration.", []))
        conn_id, workflow = found
        where = view.workflow_url(workflow, conn_id)
        return RedirectResponse(f"{_root(request)}{where}", status_code=302)

    def static(self, name: str) -> FileResponse:
        if name not in STATIC:
            raise HTTPException(404, "There is nothing here.")
        return FileResponse(Path(__file__).parent / "static" / name, media_type=STATIC[name])

    # -- what they share

    def _message(self, request: Request, error: NotFound) -> HTMLResponse:
        shown = {"title": error.title, "problems": error.problems}
        return self._render(request, "message.html", status=error.status, poll=3000, editor=False, **shown)

    def _render(self, request: Request, template: str, *, status: int = 200, **data: Any) -> HTMLResponse:
        token = access.token_of(request)
        text = self._templates.get_template(template).render(root=_root(request), token=token, **data)
        response = HTMLResponse(text, status_code=status)
        access.give_token(request, response, token)
        return response

    def _list(self, conn_id: str | None) -> view.Data:
        return view.listing(self._asker.ask(self._sources(conn_id), "list", reading.overview))

    def _sources(self, conn_id: str | None) -> list[Source]:
        if not conn_id:
            return self._home.sources()
        found = self._home.source(conn_id)
        return [found or Source(conn_id=conn_id, problem="There is no such connection of type mysql.")]

    def _find(self, workflow: str, conn_id: str | None) -> Answer:
        """The answer of the one source that has it. Raises NotFound."""
        try:
            names.check_workflow(workflow)
        except Refused as error:
            raise NotFound(404, str(error), []) from None
        sources = self._sources(conn_id)
        answers = self._asker.ask(sources, ("detail", workflow), lambda session: reading.detail(session, workflow))
        found = [a for a in answers if a.problem is None and a.value is not None]
        if len(found) == 1:
            return found[0]
        raise _not_found(workflow, answers, [a.source.conn_id for a in found])


def _not_found(workflow: str, answers: list[Answer], places: list[str]) -> NotFound:
    if places:
        return NotFound(409, f"Workflow {workflow} exists on {', '.join(places)}: say ?conn_id=.", [])
    silent = view.problems(answers)
    if silent:
        return NotFound(503, f"Workflow {workflow} cannot be read now.", silent)
    if not answers:
        return NotFound(404, f'There is no workflow {workflow}: no connection is marked {{"vreplication": true}}.', [])
    return NotFound(404, f"There is no workflow {workflow} (yet).", [])


def _problem(status: int, detail: str, **more: Any) -> JSONResponse:
    return JSONResponse({"detail": detail, **more}, status_code=status)


def _root(request: Request) -> str:
    """The way from this page to the app's root, for relative links: as many steps up as the browser sees slashes."""
    prefix = str(request.scope.get("root_path") or "")
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    inside = raw.decode("latin-1").removeprefix(prefix).lstrip("/")
    return "../" * inside.count("/") or "./"

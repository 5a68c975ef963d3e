"""The app at /vreplication: JSON for programs, HTML for people, and a handful of acts.

What must stay true: every route asks for a login, also the one for what does not exist; what is shown is of kinds that
this person may look at; an act is a POST that passes `may_act` and `was_meant`; links are relative, so that any prefix
in front of Airflow works; every text is escaped.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from vreplication import __version__, names
from vreplication.errors import Refused, Transient, VReplicationError
from vreplication.masking import mask, masked
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.progress import metrics
from vreplication.state import queue
from vreplication.ui import (
    DAGS,
    FEEDS,
    LAKES,
    MOVES,
    Run,
    access,
    answers,
    detail,
    lakes,
    live,
    pulse,
    reading,
    view,
    web,
)
from vreplication.ui.access import Rights
from vreplication.ui.acts import ACTS, AT_BOTH_ENDS, QUEUE_ACTS, WITH_VALUES, in_queue
from vreplication.ui.asking import Answer, Asker, Question, Source
from vreplication.ui.home import Home
from vreplication.ui.live import Shown
from vreplication.ui.missing import LOOKING, SOON, NotFound, hidden, message, not_found
from vreplication.ui.new import NewMigration

STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "new.js": "text/javascript",
    "charts.js": "text/javascript",
    "uplot/uPlot.min.css": "text/css",
    "uplot/uPlot.iife.min.js": "text/javascript",
}
_DESCRIPTION = (
    "Migrations, moves and feeds of every marked connection. Every route takes a login: `Authorization: Bearer …` with"
    " a token of Airflow's `POST /auth/token`. Figures are for programs; `words` are for people, and may change."
)
_SMALL = 100
_FIRST_SECONDS = 0.3
_WAITED_FOR = ("release", "resume", "cancel")
"""Acts that a task of Airflow's is to carry out."""


def create_app(home: Home) -> FastAPI:
    """The whole app. Airflow's auth manager must be there when the first request comes."""
    app = FastAPI(
        title="vreplication",
        version=__version__,
        description=_DESCRIPTION,
        # FastAPI's own routes for these ask for no login.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    page = Page(home)
    app.include_router(page.api())
    app.include_router(page.html())
    # Last: it takes whatever no other route has.
    app.include_router(_nothing_else())
    app.add_middleware(web.WithHeaders)
    app.exception_handler(RequestValidationError)(web.in_a_sentence)
    # Added last, so it is asked first: routes are looked for by the path that it has corrected.
    app.add_middleware(web.WithPrefix)
    return app


def _nothing_else() -> APIRouter:
    """Who is not logged in does not learn what exists."""
    router = APIRouter(dependencies=[Depends(access.may_look)], include_in_schema=False)

    @router.api_route("/{rest:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    def nothing(rest: str) -> None:
        raise HTTPException(404, "There is nothing here.")

    return router


class Page:
    """The routes, with what they share."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._asker, self._live = Asker(), live.Live()
        loader = PackageLoader("vreplication.ui", "templates")
        self._templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        self._new = NewMigration(self._asker, self._sources, self._render)

    def api(self) -> APIRouter:
        """Each with a summary, and a model of its answer: `/api/openapi.json` is made from them."""
        look = [Depends(access.may_look)]
        router = APIRouter(prefix="/api", dependencies=look, responses=answers.PROBLEMS, tags=["Workflows"])
        router.get("/openapi.json", include_in_schema=False)(self.api_schema)
        router.get("/workflows", summary="List all", responses=answers.told(answers.Listing))(self.api_list)
        router.get("/lakes", summary="List lakes", responses=answers.told(answers.Lakes))(self.api_lakes)
        self._new.add_api(router)
        one = "/workflows/{workflow}"
        router.get(one, summary="One, with its history", responses=answers.told(answers.Detailed))(self.api_detail)
        words, told = "Its history alone", answers.told(answers.Remembered)
        router.get(f"{one}/history", summary=words, responses=told)(self.api_history)
        guards, words = [Depends(access.may_act), Depends(access.was_meant)], "Pause, resume, release, tune, cancel, …"
        router.post(f"{one}/{{act}}", dependencies=guards, summary=words, responses=answers.told(answers.Done))(
            self.api_act
        )
        words, done = "Move what waits in a queue, or remove it", answers.told(answers.Done)
        router.post("/queue/{workflow}/{act}", dependencies=guards, summary=words, responses=done)(self.api_queue)
        return router

    def html(self) -> APIRouter:
        router = APIRouter(dependencies=[Depends(access.may_look)], include_in_schema=False)
        router.get("/")(self.html_list)
        router.get("/workflows/{workflow}")(self.html_detail)
        router.get("/metrics")(self.metrics)
        self._new.add_html(router)
        router.get("/runs/{dag_id}/{run_id:path}")(self.html_run)
        router.get("/static/{name:path}")(self.static)
        return router

    # -- JSON

    def api_schema(self, request: Request) -> JSONResponse:
        """Where this app is, only a request tells."""
        return JSONResponse(request.app.openapi() | {"servers": [{"url": request.scope.get("root_path") or "/"}]})

    def api_list(self, who: access.RightsDep, conn_id: str | None = None) -> JSONResponse:
        return JSONResponse(self._list(conn_id, who) | {"pulse": self._pulse()})

    def api_detail(
        self,
        workflow: str,
        who: access.RightsDep,
        conn_id: str | None = None,
        history: Literal["hour", "whole"] = "hour",
        after: int | None = None,
    ) -> JSONResponse:
        """`after`: only what the history has behind this slot."""
        try:
            answer = self._find(workflow, conn_id, who)
        except NotFound as error:
            return _problem(error.status, error.title, sources=error.problems)
        found = self._detail(answer, workflow, None)
        return JSONResponse(found | {"history": self._past(answer.source, workflow, history, after)})

    def api_history(
        self,
        workflow: str,
        conn_id: str,
        who: access.RightsDep,
        history: Literal["hour", "whole"] = "hour",
        after: int | None = None,
    ) -> JSONResponse:
        """Of a workflow that does not exist it is empty. Costs who may look at every kind one statement."""
        if not conn_id:
            return _problem(422, "Say which server it is on: conn_id.")
        try:
            names.check_workflow(workflow)
            if not who.reader.issuperset(DAGS):
                self._find(workflow, conn_id, who)
        except Refused as error:
            return _problem(404, str(error))
        except NotFound as error:
            return _problem(error.status, error.title, sources=error.problems)
        [source] = self._sources(conn_id)
        return JSONResponse({"history": self._past(source, workflow, history, after)})

    def _past(self, source: Source, workflow: str, history: str, after: int | None) -> view.Data:
        question = functools.partial(reading.past, workflow=workflow, after=after, is_whole=history == "whole")
        [answer] = self._asker.ask([source], ("past", workflow, history, after), question)
        return detail.past(answer)

    def _detail(self, answer: Answer, workflow: str, seconds: float | None) -> view.Data:
        """What Airflow does not act on is for those whose run it is, and advice for those who wait for it."""
        run = self._run_of(answer, workflow)
        found = detail.detail(answer, run, self._consumers(answer, seconds))
        told = self._pulse() if run else []
        needs_advice = found["unheeded"] or (told and found["phase"] in reading.AT_THE_GATE and not found["is_driven"])
        return found | {"pulse": told, "advice": self._advice(answer, workflow) if needs_advice else None}

    def _advice(self, answer: Answer, workflow: str) -> str:
        assert answer.source.url is not None
        is_move = answer.value.item.about.kind == MOVES
        return pulse.advice(workflow, answer.source.url, self._other_end(answer, workflow) if is_move else None)

    def _pulse(self) -> list[str]:
        return pulse.sentences(self._home.silent())

    def api_lakes(self, who: access.RightsDep) -> JSONResponse:
        return JSONResponse({"lakes": self._lakes(who)})

    def _lakes(self, who: Rights) -> list[view.Data]:
        found = lakes.newest(self._home.lakes()) if LAKES in who.reader else []
        return [lakes.shown(each, time.time()) for each in found]

    def _consumers(self, answer: Answer, seconds: float | None = None) -> list[Answer]:
        """Of every server that we know: who consumes a feed's topic writes into any of them."""
        if answer.value.item.about.fed is None:
            return []
        return self._asker.ask(self._home.sources(), "consumers", reading.consumers, seconds)

    def _run_of(self, answer: Answer, workflow: str) -> Run | None:
        return self._home.run_of_workflow(answer.source.conn_id, workflow)

    async def api_act(
        self,
        request: Request,
        workflow: str,
        act: str,
        user: GetUserDep,
        who: access.RightsDep,
        conn_id: str | None = None,
    ) -> JSONResponse:
        if act not in ACTS:
            return _problem(404, f"There is no act {act!r}.")
        more = [await _body(request)] if act in WITH_VALUES else []
        by = f"{user.get_name()} (Airflow)"
        # An act waits for servers, and here it would keep Airflow's event loop from everything else.
        return await run_in_threadpool(self._act, workflow, act, by, who, conn_id, *more)

    def _act(self, workflow: str, act: str, by: str, who: Rights, conn_id: str | None, *more: object) -> JSONResponse:
        try:
            answer = self._find(workflow, conn_id, who)
        except NotFound as error:
            return _problem(error.status, error.title, sources=error.problems)
        source, kind = answer.source, answer.value.item.about.kind
        if kind not in who.editor:
            return _problem(403, access.NOT_ALLOWED)
        assert source.url is not None
        if act in AT_BOTH_ENDS and kind == MOVES:
            more = (*more, self._other_end(answer, workflow))
        if act in AT_BOTH_ENDS and kind == FEEDS:
            more = (*more, None, self._sink_password(answer, workflow))
        url = source.url

        def do() -> str:
            done = ACTS[act](url, workflow, by, *more)
            told = self._pulse() if act in _WAITED_FOR and self._run_of(answer, workflow) else []
            return " ".join([done, *told])

        return self._done(do, url, workflow=workflow, act=act)

    def api_queue(
        self,
        workflow: str,
        act: str,
        user: GetUserDep,
        who: access.RightsDep,
        conn_id: str | None = None,
    ) -> JSONResponse:
        """Move what waits in a queue, or take it out."""
        if act not in QUEUE_ACTS:
            return _problem(404, f"There is no act {act!r}.")
        try:
            answer = self._find(workflow, conn_id, who, question=functools.partial(queue.find, workflow=workflow))
        except NotFound as error:
            return _problem(error.status, error.title, sources=error.problems)
        if answer.value.kind not in who.editor:
            return _problem(403, access.NOT_ALLOWED)
        url = answer.source.url
        assert url is not None
        do = functools.partial(in_queue, url, workflow, act, f"{user.get_name()} (Airflow)")
        return self._done(do, url, workflow=workflow, act=act)

    def _done(self, do: Callable[[], str], url: SourceUrl, **about: str) -> JSONResponse:
        try:
            done = do()
        except VReplicationError as error:
            status = 503 if isinstance(error, Transient) else 409
            return _problem(status, mask(str(error), url.secrets))
        finally:
            self._asker.forget()
        return JSONResponse({**about, "done": masked(done, url.secrets)})

    def _other_end(self, answer: Answer, workflow: str) -> SourceUrl | None:
        run = self._run_of(answer, workflow)
        source = self._home.source_of_run(run) if run else None
        return source.url if source else None

    def _sink_password(self, answer: Answer, workflow: str) -> str:
        run = self._run_of(answer, workflow)
        return self._home.sink_password(run) if run else ""

    # -- HTML

    def html_list(self, request: Request, who: access.RightsDep, conn_id: str | None = None) -> Response:
        draw = functools.partial(self._listed, conn_id, who)
        return self._shown(request, ("list", conn_id, who), draw)

    def _listed(self, conn_id: str | None, who: Rights, seconds: float | None) -> Shown:
        data = self._list(conn_id, who, seconds)
        poll = SOON if data["asking"] else 3000 + 1000 * (len(data["workflows"]) // _SMALL)
        groups = data.pop("consumers")
        more = {"groups": groups, "lakes": self._lakes(who), "starter": who.starter, "editor": who.editor}
        return Shown("list.html", {**data, **more}, poll=poll)

    def html_detail(
        self,
        request: Request,
        workflow: str,
        who: access.RightsDep,
        conn_id: str | None = None,
    ) -> Response:
        draw = functools.partial(self._detailed, workflow, who, conn_id)
        return self._shown(request, ("detail", workflow, who, conn_id), draw)

    def _detailed(self, workflow: str, who: Rights, conn_id: str | None, seconds: float | None) -> Shown:
        try:
            answer = self._find(workflow, conn_id, who, seconds)
        except NotFound as error:
            return message(self._explained(error, workflow, conn_id))
        found = self._detail(answer, workflow, seconds)
        return Shown("detail.html", {"editor": who.editor, "w": found, "pulse": found["pulse"]}, poll=2000)

    def _explained(self, error: NotFound, workflow: str, conn_id: str | None) -> NotFound:
        """A workflow that does not exist because its run has not begun it so far, or was refused."""
        run = self._home.run_of_workflow(conn_id, workflow) if error.status == 404 and conn_id else None
        if run is None:
            return error
        if self._home.has_failed(run):
            return NotFound(404, "This run began no migration.", [], run=run)
        return NotFound(LOOKING, f"Airflow has the run of {workflow}; it has not planned it yet.", [], run=run)

    def html_run(self, request: Request, dag_id: str, run_id: str, who: access.RightsDep) -> Response:
        """The tab of a DAG run: the workflow's page, the list of its workflows, a lake's, or why there is none."""
        run = Run(dag_id, run_id)
        if dag_id == LAKES and LAKES in who.reader and self._home.lakes(run):
            return self._shown(request, ("lake", run), lambda _: self._lake(run))
        found = self._home.workflows_of_run(run)
        if found and len(found) == 1:
            return RedirectResponse(f"{_root(request)}{view.workflow_url(found[0][1], found[0][0])}", status_code=302)
        if found:
            draw = functools.partial(self._of_run, found, who)
            return self._shown(request, ("run", run, who), draw)
        if found is None:
            return self._render(request, message(NotFound(404, f"This run of {dag_id} has no migration.", [])))
        title = f"This run of {dag_id} has planned no migration yet."
        return self._render(request, message(NotFound(LOOKING, title, [], run=run)))

    def _of_run(self, places: list[tuple[str, str]], who: Rights, seconds: float | None) -> Shown:
        """Several groups of tasks in somebody's own DAG."""
        answers = self._asker.ask(self._known(places), "list", reading.overview, seconds)
        data = view.only(view.listing(answers, kinds=who.reader, is_final=seconds is None), places)
        more = {"groups": [], "lakes": [], "starter": who.starter, "editor": who.editor}
        return Shown("list.html", {**data, **more}, poll=SOON if data["asking"] else 3000)

    def _known(self, places: list[tuple[str, str]]) -> list[Source]:
        return [source for conn_id in sorted({conn_id for conn_id, _ in places}) for source in self._sources(conn_id)]

    def _lake(self, run: Run) -> Shown:
        return Shown("lake.html", {"l": lakes.shown(self._home.lakes(run)[0], time.time())}, poll=4000)

    def metrics(self, who: access.RightsDep, conn_id: str | None = None) -> Response:
        """For Prometheus, which has a login as everybody."""
        question = functools.partial(_metrics, kinds=who.reader)
        # The rights are part of the question: an answer serves all who ask the same.
        answers = self._asker.ask(self._sources(conn_id), ("metrics", who.reader), question)
        # First those that have answered: a server is up, also where another connection to it cannot log in.
        answers.sort(key=lambda answer: answer.problem is not None)
        samples = [s for a in answers for s in (metrics.down(_server(a)) if a.problem is not None else a.value)]
        if LAKES in who.reader and not conn_id:
            samples += lakes.samples(lakes.newest(self._home.lakes()), time.time())
        return Response(metrics.exposition(samples), media_type=metrics.CONTENT_TYPE)

    def static(self, name: str) -> FileResponse:
        if name not in STATIC:
            raise HTTPException(404, "There is nothing here.")
        return FileResponse(Path(__file__).parent / "static" / name, media_type=STATIC[name])

    # -- what they share

    def _shown(self, request: Request, what: tuple[object, ...], draw: Callable[[float | None], Shown]) -> Response:
        """At once; to who asks for events, whenever it has changed. what: names it, with the rights of who looks."""
        root = _root(request)
        if live.is_asked(request):
            # What is drawn has links, which depend on the way to the root.
            return self._live.answer(request, (*what, root), lambda: self._drawn(draw(None), root))
        return self._render(request, draw(_patience(request)))

    def _drawn(self, shown: Shown, root: str) -> live.Drawn:
        """For all who have these rights, so without anybody's token."""
        return live.Drawn(status=shown.status, html=self._text(shown, root, token=""), poll=shown.poll)

    def _text(self, shown: Shown, root: str, token: str) -> str:
        data = shown.data if "pulse" in shown.data else {"pulse": self._pulse(), **shown.data}
        return self._templates.get_template(shown.template).render(root=root, token=token, poll=shown.poll, **data)

    def _render(self, request: Request, shown: Shown) -> HTMLResponse:
        token = access.token_of(request)
        response = HTMLResponse(self._text(shown, _root(request), token), status_code=shown.status)
        access.give_token(request, response, token)
        return response

    def _list(self, conn_id: str | None, who: Rights, seconds: float | None = None) -> view.Data:
        answers = self._asker.ask(self._sources(conn_id), "list", reading.overview, seconds)
        runs = [run for run in self._home.asked_runs() if conn_id in (None, run.place[0])]
        return view.listing(answers, runs, kinds=who.reader, is_final=seconds is None)

    def _sources(self, conn_id: str | None) -> list[Source]:
        if not conn_id:
            return self._home.sources()
        found = self._home.source(conn_id)
        return [found or Source(conn_id=conn_id, problem="There is no such connection of type mysql.")]

    def _find(
        self,
        workflow: str,
        conn_id: str | None,
        who: Rights,
        seconds: float | None = None,
        question: Question | None = None,
    ) -> Answer:
        """The answer of the one source that has it. question: that finds it; None: a workflow. Raises NotFound, also
        where this person may not look at it.
        """
        try:
            names.check_workflow(workflow)
        except Refused as error:
            raise NotFound(404, str(error), []) from None
        sources = self._sources(conn_id)
        about = "detail" if question is None else "queue"
        question = question or functools.partial(reading.detail, workflow=workflow)
        answers = self._asker.ask(sources, (about, workflow), question, seconds)
        there = [a for a in answers if a.problem is None and a.value is not None]
        # By kind only here: which one it is, no route can know before the sidecar has told.
        found = [a for a in there if a.value.kind in who.reader]
        if len(found) == 1:
            return found[0]
        if there and not found:
            raise hidden(workflow, there[0].value.kind)
        if not found and seconds is not None and any(a.is_late for a in answers):
            raise NotFound(LOOKING, f"Looking for workflow {workflow} …", [])
        raise not_found(workflow, answers, [a.source.conn_id for a in found])


def _metrics(session: Session, *, kinds: frozenset[str]) -> list[metrics.Sample]:
    return metrics.of_server(session, session.url.place, kinds)


def _server(answer: Answer) -> str:
    url = answer.source.url
    return url.place if url else answer.source.conn_id


def _patience(request: Request) -> float | None:
    """A person who comes to the page sees at once what is known, and that the rest is asked for; None: the budget."""
    is_coming = request.headers.get("sec-fetch-mode") == "navigate"
    return _FIRST_SECONDS if is_coming else None


async def _body(request: Request) -> object:
    """What was sent as JSON; None where it is none."""
    try:
        return await request.json()
    except ValueError:
        return None


def _problem(status: int, detail: str, **more: Any) -> JSONResponse:
    return JSONResponse({"detail": detail, **more}, status_code=status)


def _root(request: Request) -> str:
    """The way from this page to the app's root, for relative links: as many steps up as the browser sees slashes."""
    # As it was sent: an encoded slash in the id of a run is none to the browser.
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    inside = raw.decode("latin-1").removeprefix(str(request.scope.get("root_path") or "")).lstrip("/")
    return "../" * inside.count("/") or "./"

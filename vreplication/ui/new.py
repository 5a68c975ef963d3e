"""The routes of a new migration: its form, the tables to choose from, the plan.

What must stay true: each takes the right to trigger the DAG, for it shows definitions; a wrong value is one sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from vreplication.errors import Transient, VReplicationError
from vreplication.masking import mask
from vreplication.ui import DAG, access, answers, starting
from vreplication.ui.asking import Asker, Source
from vreplication.ui.live import Shown
from vreplication.ui.starting import WrongField
from vreplication.ui.view import Data

_GUARDS = [Depends(access.may_start)]
_NEW: list[str | Enum] = ["New migrations"]
_SELDOM = 15_000
"""Milliseconds; nothing on this page moves but what is said of Airflow itself."""


class Asked(BaseModel):
    """What a plan is asked for. Beside these any option of `vreplication online-ddl`, called as the DAG's param."""

    model_config = ConfigDict(extra="allow")

    conn_id: str = Field(description="Connection of the server.", examples=["vreplication_source"])
    table: str = Field(description="The table, name or schema.name.", examples=["orders"])
    alter: str = Field(default="", description="What would follow ALTER TABLE name.", examples=["ADD COLUMN note TEXT"])

    @property
    def options(self) -> Data:
        return {**(self.model_extra or {}), "table": self.table, "alter": self.alter}


class NewMigration:
    """sources: every marked connection, or the one of an id. render: a template as a page's answer."""

    def __init__(
        self, asker: Asker, sources: Callable[[str | None], list[Source]], render: Callable[..., HTMLResponse]
    ) -> None:
        self._asker, self._sources, self._render = asker, sources, render

    def add_html(self, router: APIRouter) -> None:
        router.get("/new", dependencies=_GUARDS)(self.html_form)
        router.post("/new", dependencies=[*_GUARDS, Depends(access.was_meant)])(self.html_part)

    def add_api(self, router: APIRouter) -> None:
        tables, plan = answers.told(answers.Tables), answers.told(answers.Planned)
        guards, words = [*_GUARDS, Depends(access.was_meant)], "Plan a new migration; touches nothing"
        router.get("/tables", dependencies=_GUARDS, tags=_NEW, summary="Tables of a connection", responses=tables)(
            self.api_tables
        )
        router.post("/plan", dependencies=guards, tags=_NEW, summary=words, responses=plan)(self.api_plan)

    def html_form(self, request: Request, conn_id: str | None = None, table: str = "") -> HTMLResponse:
        known = [source for source in self._sources(None) if source.url is not None]
        chosen = conn_id or next((s.conn_id for s in known if s.conn_id == "vreplication_source"), "")
        shown = {"sources": known, "chosen": chosen, "table": table, "sections": starting.sections()}
        return self._render(request, Shown("new.html", {"dag": DAG, **shown}, poll=_SELDOM))

    def html_part(self, request: Request, asked: Asked) -> Response:
        """The plan of what was asked for; without an ALTER the table's definition, as it is."""
        # The form asks as it is filled in: a table without an ALTER is no mistake yet.
        make, template = (starting.planned, "plan.html") if asked.alter.strip() else (_current, "now.html")

        def drawn() -> Response:
            data = {"p": make(self._source(asked), asked.options), "dag": DAG}
            return self._render(request, Shown(template, data, poll=_SELDOM))

        return _answered(drawn)

    def api_plan(self, asked: Asked) -> Response:
        return _answered(lambda: JSONResponse(starting.planned(self._source(asked), asked.options)))

    def api_tables(self, conn_id: str) -> JSONResponse:
        if not conn_id:
            return JSONResponse({"detail": "Choose a server: conn_id."}, status_code=422)
        [answer] = self._asker.ask(self._sources(conn_id), "tables", starting.tables)
        if answer.problem is not None:
            return JSONResponse({"detail": f"{conn_id} cannot be asked: {answer.problem}"}, status_code=503)
        return JSONResponse({"conn_id": conn_id, "tables": answer.value})

    def _source(self, asked: Asked) -> Source:
        if not asked.conn_id:
            raise WrongField("Choose a server.", field="conn_id")
        [found] = self._sources(asked.conn_id)
        return starting.usable(found)


def _current(source: Source, options: Data) -> Data:
    return starting.current(source, str(options["table"]))


def _answered(make: Callable[[], Response]) -> Response:
    try:
        return make()
    except VReplicationError as error:
        status = 503 if isinstance(error, Transient) else 409
        return JSONResponse({"detail": mask(str(error)), "field": getattr(error, "field", "")}, status_code=status)

"""What the JSON routes answer, as models: for OpenAPI, and for whoever writes a program against them.

What must stay true: what is named here is in every answer, with this type (tests/dags/test_page_rights.py validates
answers); an answer may have more, which may change from one release to the next. Words are for people, figures for
programs.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Source(BaseModel):
    """A connection that was asked. problem: why it did not answer. workflows: how many it has."""

    conn_id: str
    reachable: bool
    problem: str | None
    workflows: int | None


class Button(BaseModel):
    """What may be done now. url: from the app's root, to POST to. will, wont: what changes, and what does not."""

    act: str
    label: str
    question: str
    will: str
    wont: str
    url: str


class Reason(BaseModel):
    """code: as docs/throttling.md lists them. A figure that is not known, or that there is not, is `null`."""

    code: str
    what: str | None
    value: float | None
    limit: float | None
    unit: str | None
    sentence: str


class Workflow(BaseModel):
    """As `vreplication status --json` has it, and what the page adds. A figure that is `null` is not known, and
    `unknown` says why.
    """

    workflow: str
    conn_id: str
    kind: str = Field(description="online_ddl, move_tables or changefeed.")
    title: str
    change: str
    phase: str
    paused: bool
    state: str = Field(description="running, waiting (for a person), failed, done or cancelled.")
    percent: float | None
    rows_copied: int
    rows_total: int | None
    rows_per_second: float | None
    lag_seconds: float | None
    backlog: int | None
    converging: bool | None
    eta_seconds: float | None = Field(description="Until it has ended, or waits at the gate (eta_of).")
    eta_low_seconds: float | None
    eta_high_seconds: float | None
    eta_of: str | None
    throttled: str | None = Field(description="What holds it back.")
    throttle_reasons: list[Reason] | None
    waiting_for: str | None
    gate_reasons: list[Reason] | None
    verdict: str | None
    side_table: str | None = Field(description="Of --on-duplicate: where the rows are that did not stay.")
    side_rows: int | None
    strategy: str | None
    reason: str | None
    cutover: str = Field(description="auto, manual or window.")
    cutover_window: str | None
    cutover_attempts: int
    released_by: str | None
    cancel_requested: bool
    created_at: str | None
    ended_at: str | None
    unknown: dict[str, str]
    words: dict[str, Any]
    gate: dict[str, Any] | None = Field(description="What holds it, and who would block it; of one that stands there.")
    buttons: list[Button]
    url: str = Field(description="Its page, from the app's root.")


class Listing(BaseModel):
    """Every workflow of every marked connection, those that wait for a person first. pulse: what is silent.

    pending: what has not begun: queued, not started by Airflow yet, refused.
    """

    sources: list[Source]
    workflows: list[Workflow]
    pending: list[dict[str, Any]]
    counts: list[dict[str, Any]]
    consumers: list[dict[str, Any]]
    pulse: list[str]


class Line(BaseModel):
    """mark: `-` goes, `+` comes, a space stays; `…`: the text says how many lines are left out."""

    mark: str
    text: str


class Difference(BaseModel):
    """Of a table's definition; foreign keys are left out."""

    lines: list[Line]
    words: str
    has_foreign: bool


class Entry(BaseModel):
    """Of the journal."""

    at: str
    actor: str
    event: str
    details: str


class History(BaseModel):
    """columns: what each point has, `at` in seconds since 1970. last: for `?after=`."""

    columns: list[str]
    points: list[list[Any]]
    last: int | None


class Remembered(BaseModel):
    """The past of one workflow."""

    history: History


class LeftOut(BaseModel):
    """Rows that gave way to others under a new unique key. command: drops their table."""

    table: str
    rows: int
    nbytes: int
    command: str
    words: str


class Detailed(Workflow):
    """One workflow."""

    steps: list[dict[str, str]]
    is_driven: bool = Field(description="Some process works on it now.")
    unheeded: str | None = Field(description="Released for a while, and nobody acts on it.")
    advice: str | None = Field(description="The command that carries it on without Airflow.")
    journal: list[Entry] = Field(description="The newest first.")
    definition: Difference | None
    left_out: LeftOut | None = Field(description="Behind the end, as long as its table is there.")
    spec: dict[str, Any] = Field(description="What was asked for.")
    run: dict[str, Any] | None = Field(description="The DAG run that works on it.")
    history: History
    pulse: list[str]


class Lakes(BaseModel):
    """Lakes that DAG runs fill."""

    lakes: list[dict[str, Any]]


class Done(BaseModel):
    """done: what has come of the act, in a sentence."""

    workflow: str
    act: str
    done: str


class Tables(BaseModel):
    """Those of the connection's database by their bare names, first; then `schema.name`."""

    conn_id: str
    tables: list[str]


class Check(BaseModel):
    """verdict: ok, warn or refuse."""

    name: str
    verdict: str
    sentence: str
    cure: str


class Planned(BaseModel):
    """What `vreplication plan online-ddl` says. conf: of the DAG run that does it. workflow: a free id, for the run."""

    table: str
    alter: str
    conn_id: str
    is_refused: bool
    verdict: str
    definition: Difference
    checks: list[Check]
    steps: list[dict[str, Any]]
    facts: list[dict[str, str]]
    conf: dict[str, Any]
    workflow: str


class Problem(BaseModel):
    """detail: one sentence."""

    detail: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"description": "Nobody is logged in.", "model": Problem},
    403: {"description": "The login may not.", "model": Problem},
    404: {"description": "There is none.", "model": Problem},
    409: {"description": "It is refused, or the id exists on several sources.", "model": Problem},
    422: {"description": "A value that no route takes.", "model": Problem},
    503: {"description": "A source that may have it does not answer.", "model": Problem},
}


def told(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that makes its answer itself."""
    return {200: {"model": model, "description": (model.__doc__ or "").split("\n")[0]}}

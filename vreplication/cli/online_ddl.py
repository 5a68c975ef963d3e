"""`online-ddl` and `plan online-ddl`: the same options, read once; one runs, the other says what would happen.

What must stay true: no default of a request is decided here (an option that is not given is not passed on); nothing is
touched before the person, or --yes, has agreed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vreplication import names
from vreplication.cli import asked, invocation, logs, options, outcome, show
from vreplication.cli.attend import attend
from vreplication.cli.operate import by
from vreplication.cli.say import json_line, say
from vreplication.cli.tables_file import Named, named, spec_of
from vreplication.cli.watcher import watch
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.request import check_limit
from vreplication.planning.spec import Spec
from vreplication.settings import TABLE_SECONDS, TABLES_AT_ONCE

if TYPE_CHECKING:
    from vreplication.planning.plan import Plan

RUN_HELP = """
Alter a live table: copy, catch up, verify, switch.

The table stays readable and writable; until the cut-over it is untouched. Ctrl-C stops cleanly; the same command with
the same --workflow goes on.

Examples:

  export VREPLICATION_SOURCE=mysql+pymysql://user@db.example:3306/shop VREPLICATION_PASSWORD=…

  vreplication online-ddl --table orders --alter "ADD COLUMN note TEXT, ADD INDEX (customer_id)"

  vreplication online-ddl --table orders --alter "MODIFY id BIGINT UNSIGNED NOT NULL" --cutover manual --yes

  vreplication online-ddl --table orders --table items --alter "ENGINE=InnoDB" --atomic
"""
PLAN_HELP = """
Say what `online-ddl` would do, with the verdict of every check; touches nothing. Exits with 2 when a check refuses.

Example:

  vreplication plan online-ddl --table orders --alter "ADD INDEX (customer_id)"
"""

_Table = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="The table, `name` or `schema.name`. Several times: several tables."),
]
_Alter = Annotated[
    str | None,
    typer.Option("--alter", metavar="CLAUSES", help="What would follow ALTER TABLE name, several clauses too."),
]
_TablesFile = Annotated[
    Path | None,
    typer.Option(
        "--tables-file", metavar="FILE", help="Tables, each with its ALTER and options, in YAML (docs/cli.md)."
    ),
]
_AtOnce = Annotated[
    int | None,
    typer.Option(
        "--tables-at-once",
        metavar="N",
        min=1,
        max=64,
        help=f"Of several tables, how many are copied at a time. [default: {TABLES_AT_ONCE}]",
    ),
]
_Atomic = Annotated[
    bool,
    typer.Option("--atomic", help="Of several tables: switch all in one statement when each is ready, or none."),
]
_TABLES = ("table", "alter", "workflow")
"""What of a spec is of one table alone: here it may be several."""
_BEFORE = {
    "table": _Table,
    "alter": _Alter,
    "tables_file": _TablesFile,
    "tables_at_once": _AtOnce,
    "atomic": _Atomic,
    "workflow": Annotated[
        str | None,
        typer.Option("--workflow", metavar="ID", help="Name the workflow, or go on with this one. [default: made]"),
    ],
    "source": options.SourceOption,
    "source_file": options.SourceFileOption,
    "lag_replicas_file": options.LagReplicasFileOption,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An online DDL as asked for on the command line."""

    url: SourceUrl
    specs: tuple[Spec, ...]
    args: tuple[str, ...]
    is_yes: bool
    is_json: bool
    group: str | None = None
    """Id of what has several tables, or is to be as if it had."""
    at_once: int = TABLES_AT_ONCE
    is_atomic: bool = False

    @property
    def spec(self) -> Spec:
        """Of the one table."""
        (spec,) = self.specs
        return spec


def command(act: Callable[[Request], int]) -> Callable[..., None]:
    """A command with the options of an online DDL that hands what it read to `act`."""

    def online_ddl(context: typer.Context, *, yes: bool, is_json: bool, **values: Any) -> None:
        # First: it takes the secrets out of the environment, whatever is refused behind it.
        url = options.resolve(values["source"], values["source_file"], values["lag_replicas_file"])
        tables = named(values["table"] or (), values["alter"], values["tables_file"])
        is_one = len(tables) == 1 and values["tables_file"] is None
        workflow = values["workflow"]
        name = names.check_workflow(workflow) if workflow is not None else names.new_workflow(_stem(tables))
        given = asked.given(Spec, {field: value for field, value in values.items() if field not in _TABLES})
        # One that is named may have begun with an earlier release, and goes on by the same command.
        for own in (table.options for table in tables if workflow is None):
            check_limit(own.get("lag_replicas", given["lag_replicas"]), own.get("max_lag", given["max_lag"]))
        if given["lag_replicas"] is None:
            # Whose login is given is meant to be looked at.
            given["lag_replicas"] = options.named(url.replicas)
        # A plan of no workflow makes none up: what it would be called is then known by its shape.
        is_named = is_one and (workflow is not None or act is not plan)
        common = {**given, "workflow": name if is_named else None}
        request = Request(
            url=url,
            specs=tuple(spec_of(each, common) for each in tables),
            args=invocation.of(context).args,
            is_yes=yes,
            is_json=is_json,
            group=None if is_one else name,
            at_once=values["tables_at_once"] or TABLES_AT_ONCE,
            is_atomic=values["atomic"],
        )
        raise typer.Exit(act(request))

    after = {"yes": options.YesOption, "is_json": options.JsonOption}
    return asked.with_options(online_ddl, Spec, before=_BEFORE, after=after)


def _stem(tables: Sequence[Named]) -> str:
    """What a made-up id begins with."""
    return tables[0].table if len(tables) == 1 else f"{len(tables)}-tables"


def run(request: Request) -> int:
    """Alter the table, or the tables; returns the exit code."""
    from vreplication.workflows.online_ddl import ending
    from vreplication.workflows.online_ddl import run as online_ddl

    if request.group:
        from vreplication.cli import several

        _agree(request)
        return several.run(several.tables(request), request.url, request.args, is_json=request.is_json)
    _agree(request)
    workflow = _workflow(request)
    logs.start(workflow)
    stop = threading.Event()
    display = show.choose(is_json=request.is_json)
    watcher = watch(request.url, workflow, request.spec.table)
    result = attend(
        lambda: online_ddl.run(request.spec, request.url, stop=stop, notify=display.note, by=by()),
        stop=stop,
        display=display,
        watcher=watcher,
    )
    again = outcome.same_command(request.args, workflow)
    code = outcome.finish(result, is_json=request.is_json, again=again)
    # Behind the last line: killed before it, the same command finds that nobody was told, and tells it.
    ending.note_told(request.url, result)
    return code


def _workflow(request: Request) -> str:
    """Always set by `command`."""
    assert request.spec.workflow
    return request.spec.workflow


def _agree(request: Request) -> None:
    """Ask in a terminal; in a script the command itself is the agreement. Raises Refused when the answer is no."""
    # Who asks for JSON is a program, also where it was started from a terminal.
    if request.is_yes or request.is_json or not invocation.is_terminal():
        return
    alters = "\n".join(f"ALTER TABLE {spec.table} {spec.alter}" for spec in request.specs)
    name = request.group or _workflow(request)
    stays = "Each table stays" if request.group else "The table stays"
    until = "one cut-over of all" if request.group and request.is_atomic else "cut-over"
    words = f"{alters}\non {request.url}, workflow {name}.\n{stays} in use and is untouched until the {until}. Go on?"
    if not typer.confirm(mask(words), err=True):
        raise Refused("Not started.")


def plan(request: Request) -> int:
    """Print the plan; returns 2 when a check refuses."""
    from vreplication.planning.explain import explain, plan_json
    from vreplication.planning.plan import make_plan

    if request.group:
        from vreplication.cli import several

        return several.plan(several.tables(request), request.url, is_json=request.is_json)
    with connect(request.url, read_timeout=TABLE_SECONDS) as session:
        made: Plan = make_plan(session, request.spec, is_dry=True)
    if request.is_json:
        json_line({"event": "plan", **plan_json(made)})
    else:
        say(explain(made))
    return Refused.exit_code if made.refusals else 0

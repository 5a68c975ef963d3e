"""`move-tables` and `plan move-tables`: the same options, read once; one runs, the other says what would happen.

What must stay true: as of `online-ddl`: no default of a request is decided here, and nothing is touched on either
server before the person, or --yes, has agreed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vreplication import names
from vreplication.cli import invocation, logs, online_ddl, options, outcome, show
from vreplication.cli.attend import attend
from vreplication.cli.say import json_line, say, warn
from vreplication.cli.watcher import watch
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.ends import Route
from vreplication.settings import TABLE_SECONDS

if TYPE_CHECKING:
    from vreplication.workflows.move_tables.spec import MoveSpec

RUN_HELP = f"""
Move live tables to another server, MySQL or MariaDB: copy, catch up, verify, switch; and back, if it must be.

The tables stay readable and writable where they are until the switch. After it the source is kept level until
`complete`, so that `reverse` may switch back. Ctrl-C stops cleanly; the same command with the same --workflow goes on.
Passwords come from {options.PASSWORD} and {options.TARGET_PASSWORD}.

Examples:

  export VREPLICATION_SOURCE=mysql+pymysql://user@old.example:3306/shop VREPLICATION_PASSWORD=…

  export VREPLICATION_TARGET=mysql+pymysql://user@new.example:3306/shop VREPLICATION_TARGET_PASSWORD=…

  vreplication move-tables --table orders --table items --on-switch "/usr/local/bin/route-shop"

  vreplication move-tables --all-tables --exclude audit --cutover manual --workflow shop-1 --yes
"""
PLAN_HELP = """
Say what `move-tables` would do, with the verdict of every check on both servers; touches nothing. Exits with 2 when a
check refuses.

Example:

  vreplication plan move-tables --all-tables
"""

_Table = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="NAME", help="A table of the source's database. Several times: several tables."),
]
_AllTables = Annotated[bool, typer.Option("--all-tables", help="All tables of the source's database.")]
_Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="NAME", help="With --all-tables: a table that stays.")
]
_TargetSchema = Annotated[
    str | None,
    typer.Option("--target-schema", metavar="NAME", help="Where they go on the target. [default: its URL's database]"),
]
_Cutover = Annotated[
    str | None,
    typer.Option(
        "--cutover", metavar="auto|manual", help="manual: hold before the switch until `release`. [default: auto]"
    ),
]
_Window = Annotated[
    str | None,
    typer.Option("--cutover-window", metavar="WINDOW", help="Switch in a window: 'Sat 02:00-04:00 Europe/Berlin'."),
]
_OnSwitch = Annotated[
    str | None,
    typer.Option(
        "--on-switch",
        metavar="COMMAND|URL",
        help="Tells the application at a switch where to write: a command line, or an https:// URL (docs/cli.md).",
    ),
]
_Reverse = Annotated[
    bool | None,
    typer.Option(
        "--reverse/--no-reverse",
        help="Keep the source level after the switch, for the way back. [default: reverse]",
        show_default=False,
    ),
]
_Deny = Annotated[
    str | None,
    typer.Option(
        "--deny",
        metavar="fail|wait",
        help="What the switch does to writers until it is decided: an error at once, or a wait. [default: fail]",
    ),
]
_ResumeInto = Annotated[
    bool,
    typer.Option("--resume-into", help="Take tables that are on the target: empty, and defined like the source's."),
]
_Retired = Annotated[
    str | None,
    typer.Option(
        "--retired", metavar="keep|drop", help="What becomes of the source's tables at `complete`. [default: keep]"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A move as asked for on the command line. Its spec has an id."""

    route: Route
    spec: MoveSpec
    args: tuple[str, ...]
    is_yes: bool
    is_json: bool

    @property
    def workflow(self) -> str:
        assert self.spec.workflow
        return self.spec.workflow


def command(act: Callable[[Request], int]) -> Callable[..., None]:
    """A command with the options of a move that hands what it read to `act`."""

    def move_tables(
        context: typer.Context,
        table: _Table = None,
        all_tables: _AllTables = False,
        exclude: _Exclude = None,
        source: options.SourceOption = None,
        source_file: options.SourceFileOption = None,
        target: options.TargetOption = None,
        target_file: options.TargetFileOption = None,
        target_schema: _TargetSchema = None,
        workflow: online_ddl._Workflow = None,
        cutover: _Cutover = None,
        cutover_window: _Window = None,
        on_switch: _OnSwitch = None,
        reverse: _Reverse = None,
        deny: _Deny = None,
        resume_into: _ResumeInto = False,
        retired: _Retired = None,
        copy_parallelism: online_ddl._Parallelism = None,
        chunk_rows: online_ddl._ChunkRows = None,
        chunk_millis: online_ddl._ChunkMillis = None,
        latency_factor: online_ddl._LatencyFactor = None,
        apply_parallelism: online_ddl._ApplyParallelism = None,
        spark_master: options.SparkMasterOption = None,
        xa_wait: online_ddl._XaWait = None,
        verify_every: online_ddl._VerifyEvery = None,
        yes: options.YesOption = False,
        is_json: options.JsonOption = False,
    ) -> None:
        at_source, at_target = options.both(source, source_file, target, target_file)
        given = {
            "tables": tuple(table) if table else None, "all_tables": all_tables or None,
            "exclude": tuple(exclude) if exclude else None, "target_schema": target_schema,
            "cutover": cutover, "cutover_window": cutover_window, "on_switch": on_switch, "reverse": reverse,
            "deny": deny, "resume_into": resume_into or None, "retired": retired,
            "copy_parallelism": options.number_or_auto(copy_parallelism), "chunk_rows": chunk_rows,
            "chunk_millis": chunk_millis, "latency_factor": latency_factor, "apply_parallelism": apply_parallelism,
            "spark_master": spark_master, "xa_wait_seconds": xa_wait, "verify_every_minutes": verify_every,
        }  # fmt: skip
        request = Request(
            route=Route(source=at_source, target=at_target, home=at_target),
            spec=_spec(given, workflow, at_source.database),
            args=invocation.of(context).args,
            is_yes=yes,
            is_json=is_json,
        )
        raise typer.Exit(act(request))

    return move_tables


def _spec(given: dict[str, Any], workflow: str | None, schema: str) -> MoveSpec:
    from vreplication.workflows.move_tables.spec import make_move_spec

    tables = given["tables"] or (schema,)
    stem = tables[0] if len(tables) == 1 else f"{len(tables)}-tables"
    name = names.check_workflow(workflow) if workflow is not None else names.new_workflow(stem)
    return make_move_spec(**given, workflow=name)


def run(request: Request) -> int:
    """Move the tables; returns the exit code."""
    from vreplication.workflows import moving
    from vreplication.workflows.move_tables import run as flow

    if words := moving.check_begin(request.spec, request.route):
        warn(words)
    _agree(request)
    logs.start(request.workflow)
    stop, display = threading.Event(), show.choose(is_json=request.is_json)
    result = attend(
        lambda: flow.run(request.spec, request.route, stop=stop, notify=display.note),
        stop=stop,
        display=display,
        watcher=watch(request.route.home, request.workflow),
    )
    again = outcome.same_command(request.args, request.workflow)
    return outcome.finish(result, is_json=request.is_json, again=again, is_move=True)


def _agree(request: Request) -> None:
    """Ask in a terminal; in a script the command itself is the agreement. Raises Refused when the answer is no."""
    if request.is_yes or request.is_json or not invocation.is_terminal():
        return
    spec, route = request.spec, request.route
    what = ", ".join(spec.tables) if spec.tables else f"all tables of {route.source.database}"
    but = f" but {', '.join(spec.exclude)}" if spec.exclude else ""
    words = (
        f"Move {what}{but}\nfrom {route.source}\nto   {route.target}, workflow {request.workflow}.\n"
        "They stay in use, and are untouched until the switch. Go on?"
    )
    if not typer.confirm(mask(words), err=True):
        raise Refused("Not started.")


def plan(request: Request) -> int:
    """Print the plan; returns 2 when a check refuses."""
    from vreplication.workflows.move_tables.explain import explain, plan_json
    from vreplication.workflows.move_tables.plan import make_move_plan

    with request.route.open(read_timeout=TABLE_SECONDS) as ends:
        made = make_move_plan(ends.source, ends.target, request.spec)
    if request.is_json:
        json_line({"event": "plan", **plan_json(made)})
    else:
        say(explain(made))
    return Refused.exit_code if made.refusals else 0

"""`move-tables` and `plan move-tables`: the same options, read once; one runs, the other says what would happen.

What must stay true: as of `online-ddl`: no default of a request is decided here, and nothing is touched on either
server before the person, or --yes, has agreed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from vreplication import names
from vreplication.cli import asked, invocation, logs, options, outcome, show
from vreplication.cli.attend import attend
from vreplication.cli.operate import by
from vreplication.cli.say import json_line, say, warn
from vreplication.cli.watcher import watch
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.ends import Route
from vreplication.planning.request import check_limit
from vreplication.settings import TABLE_SECONDS
from vreplication.workflows.move_tables.spec import MoveSpec, make_move_spec

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

_SERVERS = {
    "source": options.SourceOption,
    "source_file": options.SourceFileOption,
    "target": options.TargetOption,
    "target_file": options.TargetFileOption,
}
_REPLICA = {"replica": options.ReplicaOption, "replica_file": options.ReplicaFileOption}
_LOGINS = {"lag_replicas_file": options.LagReplicasFileOption}


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

    def move_tables(context: typer.Context, *, yes: bool, is_json: bool, **values: Any) -> None:
        # First: who reads the other servers' options clears the environment of all of them.
        replica = options.replica(*(values[name] for name in _REPLICA))
        at_source, at_target = options.both(*(values[name] for name in (*_SERVERS, *_LOGINS)))
        given = asked.given(MoveSpec, values)
        # One that is named may have begun with an earlier release, and goes on by the same command.
        if values["workflow"] is None:
            check_limit(given["lag_replicas"], given["max_lag"])
        if given["lag_replicas"] is None:
            # Whose login is given is meant to be looked at; of a move they are the target's, which is what is written.
            given["lag_replicas"] = options.named(at_target.replicas)
        request = Request(
            route=Route(source=at_source, target=at_target, home=at_target, replica=replica),
            spec=_spec(given, at_source.database),
            args=invocation.of(context).args,
            is_yes=yes,
            is_json=is_json,
        )
        raise typer.Exit(act(request))

    after = {"yes": options.YesOption, "is_json": options.JsonOption}
    return asked.with_options(move_tables, MoveSpec, before=_SERVERS | _REPLICA | _LOGINS, after=after)


def _spec(given: dict[str, Any], schema: str) -> MoveSpec:
    tables, workflow = given["tables"] or (schema,), given["workflow"]
    stem = tables[0] if len(tables) == 1 else f"{len(tables)}-tables"
    name = names.check_workflow(workflow) if workflow is not None else names.new_workflow(stem)
    return make_move_spec(**{**given, "workflow": name})


def run(request: Request) -> int:
    """Move the tables; returns the exit code."""
    from vreplication.workflows.move_tables import operate as moving
    from vreplication.workflows.move_tables import run as flow

    # Before the person is asked: what is refused is not to be agreed to first.
    if words := moving.check_begin(request.spec, request.route):
        warn(words)
    _agree(request)
    logs.start(request.workflow)
    stop, display = threading.Event(), show.choose(is_json=request.is_json)
    result = attend(
        lambda: flow.run(request.spec, request.route, stop=stop, notify=display.note, by=by()),
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
    read = f",\nread on the replica {route.replica}" if route.replica else ""
    words = (
        f"Move {what}{but}\nfrom {route.source}\nto   {route.target}, workflow {request.workflow}{read}.\n"
        "They stay in use, and are untouched until the switch. Go on?"
    )
    if not typer.confirm(mask(words), err=True):
        raise Refused("Not started.")


def plan(request: Request) -> int:
    """Print the plan; returns 2 when a check refuses."""
    from vreplication.workflows.move_tables.explain import explain, plan_json
    from vreplication.workflows.move_tables.plan import make_move_plan

    route = request.route
    with route.open(read_timeout=TABLE_SECONDS) as ends, route.open_replica(read_timeout=TABLE_SECONDS) as replica:
        made = make_move_plan(ends.source, ends.target, request.spec, replica)
    if request.is_json:
        json_line({"event": "plan", **plan_json(made)})
    else:
        say(explain(made))
    return Refused.exit_code if made.refusals else 0

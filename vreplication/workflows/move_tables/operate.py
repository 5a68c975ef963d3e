"""What an operator does to tables that move: begin, resume, reverse, complete, cancel, verify, clean up.

A way back and its end are requests in the move's row: whoever drives the workflow does them. Where nobody does, it is
driven here, until the request is done.

What must stay true: what makes no sense is refused before anything is written, on either server, and so are servers
other than those that the workflow began with; a request that was noted stands, whatever ends the command that asked.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vreplication.cutover import deny
from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import drop_table
from vreplication.engine.result import Result
from vreplication.errors import Ambiguous, Interrupted, Refused, Transient
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import identity, inspect, is_mariadb
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import ENDED, OVER, Phase
from vreplication.schema.introspect import exists
from vreplication.spark.session import SparkStart
from vreplication.state import journal, lease, moves, verdicts, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow
from vreplication.verify.verify import Caller
from vreplication.verify.verify import verify as verify_rows
from vreplication.workflows import lookup
from vreplication.workflows.lookup import MOVE
from vreplication.workflows.move_tables import ending, replica_checks, run, streams
from vreplication.workflows.move_tables.sides import tables_on
from vreplication.workflows.move_tables.spec import MoveSpec

_POLL_SECONDS = 0.2
_AGAIN_SECONDS = 1.0
_SWITCHING = frozenset({Decision.DECIDED, Decision.OPENED})
_WHAT_MOVES = ("tables", "all_tables", "exclude", "target_schema")
"""Fields of a spec by which a workflow is told from another one of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who acts on which workflow, and from where. source None: it is not given, and somebody else has to drive.

    replica: of the source, where what is left of the copy is to be read.
    """

    home: SourceUrl
    source: SourceUrl | None
    workflow: str
    by: str
    stop: threading.Event = field(default_factory=threading.Event)
    notify: Callable[[str], None] = lambda text: None
    replica: SourceUrl | None = None

    def find_route(self) -> Route:
        """Raises Refused."""
        return route_of(self.home, self.source, self.workflow, self.replica)


def route_of(home: SourceUrl, source: SourceUrl | None, workflow: str, replica: SourceUrl | None = None) -> Route:
    """Raises Refused where a server is missing, or is another one than the workflow began with."""
    if source is None:
        raise Refused(
            f"Workflow {workflow} moves tables between two servers, and this needs both.",
            cure="Pass --source URL (where they come from) and --target URL (where they go), or set VREPLICATION_SOURCE"
            " and VREPLICATION_TARGET.",
        )
    route = Route(source=source, target=home, home=home, replica=replica)
    with route.open() as ends:
        row, move = workflows.load(ends.home, workflow), moves.load(ends.home, workflow)
        # By another server of the same tables catch-up would read a log that has nothing to do with the copy.
        _check_same_place(row, move, ends.source)
        # Past the copy nothing is read there: a workflow goes on whatever its replica does.
        if row.phase in (Phase.PREPARING, Phase.COPYING):
            names = [table.source_table for table in workflows.tables(ends.home, workflow)]
            replica_checks.check_fit(ends, route, names)
    return route


def _check_same_place(row: WorkflowRow, move: Move, source: Session) -> None:
    if identity(inspect(source)) != move.source_server:
        end = "complete" if move.serving is Side.TARGET else "cancel"
        raise Refused(
            f"Workflow {row.id} began with another source server than this one: {move.source_at}.",
            cure="Use the URLs that it began with; where that server is gone for good,"
            f" `vreplication {end} {row.id} --source-lost` ends the move without it.",
        )
    if source.url.database.lower() != row.source_schema.lower():
        raise Refused(
            f"Workflow {row.id} moves tables of {row.source_schema}, and the source's URL names {source.url.database}.",
            cure="Use the URLs that it began with.",
        )


def check_begin(spec: MoveSpec, route: Route) -> str:
    """Raises Refused where the workflow exists for something else; returns what is to be known of one that goes on."""
    with connect(route.home) as session:
        row = workflows.find(session, spec.workflow or "")
    if row is None or row.kind != MOVE or row.phase in OVER:
        return ""
    words = _check_same_request(row, spec)
    route_of(route.home, route.source, row.id, route.replica)
    return words


def _check_same_request(row: WorkflowRow, spec: MoveSpec) -> str:
    began = MoveSpec.model_validate(row.spec)
    differing = [name for name in MoveSpec.model_fields if getattr(began, name) != getattr(spec, name)]
    if spec.on_switch and "on_switch" in differing:
        # That one is taken (run.take_hook).
        differing.remove("on_switch")
    if any(name in _WHAT_MOVES for name in differing):
        raise Refused(
            f"Workflow {row.id} exists for other tables: {_tables(began)}.",
            cure="Repeat its own arguments to go on with it, or give the new one another --workflow id.",
        )
    # A preparation that was cut short is undone and begun anew, by what is asked for now.
    if not differing or row.phase is Phase.PREPARING:
        return ""
    return f"What it began with holds on: {', '.join(f'{name} {getattr(began, name)}' for name in differing)}."


def _tables(spec: MoveSpec) -> str:
    if not spec.all_tables:
        return ", ".join(spec.tables)
    return "all tables" + (f" but {', '.join(spec.exclude)}" if spec.exclude else "")


def check_resume(
    home: SourceUrl, source: SourceUrl | None, workflow: str, replica: SourceUrl | None = None
) -> Route | None:
    """None: somebody drives it. Raises Refused."""
    with connect(home) as session:
        row = lookup.live(session, workflow, "resumed")
        is_driven = lease.is_alive(session, row.id, lease.DRIVER)
    return None if is_driven else route_of(home, source, workflow, replica)


def resume(operator: Operator) -> Result | None:
    """Unpause; run it on when nobody does. None: somebody does. Raises Refused."""
    route = check_resume(operator.home, operator.source, operator.workflow, operator.replica)
    with connect(operator.home) as session:
        row = workflows.load(session, operator.workflow)
        workflows.set_paused(session, row.id, False)
        journal.write(session, row.id, "resumed", actor=operator.by)
    return None if route is None else _run(operator, row, route, operator.stop)


def _run(operator: Operator, row: WorkflowRow, route: Route, stop: threading.Event) -> Result:
    spec = MoveSpec.model_validate({**row.spec, "workflow": row.id})
    return run.run(spec, route, stop=stop, notify=operator.notify)


def refuse_release(session: Session, workflow: str) -> None:
    """Where the target serves there is nothing to release; it would be remembered for the switch after the next."""
    move = moves.load(session, workflow)
    if move.serving is Side.TARGET:
        raise _has_switched(workflow)
    if move.decision in _SWITCHING:
        raise Refused(f"Workflow {workflow} is being switched at this moment.", cure=_to_its_end(workflow))


def refuse_switched(row: WorkflowRow) -> None:
    """Of a cancel."""
    if row.phase is Phase.COMPLETE:
        raise Refused(f"Workflow {row.id} has ended ({row.phase}) and cannot be cancelled.")
    if row.is_cut:
        raise _has_switched(row.id)


def _has_switched(workflow: str) -> Refused:
    return Refused(
        f"The tables of workflow {workflow} have been switched.",
        cure=f"`vreplication reverse {workflow}` goes back, `vreplication complete {workflow}` ends it.",
    )


# -- the way back, and its end ----------------------------------------------------------------------------------------


def reverse(operator: Operator) -> Callable[[], Result]:
    """Ask for traffic to go back to the source; returns what sees to it. Raises Refused.

    Its result's event is `reversed`, or how the workflow ended instead.
    """
    move = ask(operator, moves.REVERSE)
    outcome = functools.partial(_reversed, operator, move.number)
    return functools.partial(_carry_out, operator, outcome, is_end=False)


def complete(operator: Operator) -> Callable[[], Result]:
    """Ask for the way back to end, and with it the workflow; returns what sees to it. Raises Refused."""
    ask(operator, moves.COMPLETE)
    return functools.partial(_carry_out, operator, functools.partial(_completed, operator), is_end=True)


def ask(operator: Operator, what: str) -> Move:
    """Note what whoever drives the workflow is to do, REVERSE or COMPLETE; returns the move before. Raises Refused."""
    with connect(operator.home) as session:
        row, move = check_ask(session, operator.workflow, what)
        _note(session, operator, row, what)
    return move


def check_ask(session: Session, workflow: str, what: str) -> tuple[WorkflowRow, Move]:
    """Raises Refused where REVERSE or COMPLETE makes no sense now."""
    row, move = _asked_of(session, workflow)
    if what == moves.REVERSE:
        _check_reverse(row, move)
        _check_alone(session, row)
    else:
        _check_complete(row, move)
    return row, move


def _asked_of(session: Session, workflow: str) -> tuple[WorkflowRow, Move]:
    row = workflows.load(session, workflow)
    if row.kind != MOVE:
        raise Refused(f"Workflow {workflow} moves no tables: there is no way back, and none to complete.")
    if row.phase in OVER:
        raise Refused(f"Workflow {workflow} has ended ({row.phase}).")
    return row, moves.load(session, workflow)


def _check_reverse(row: WorkflowRow, move: Move) -> None:
    if move.serving is Side.SOURCE:
        raise _not_switched(row, move)
    if not row.spec.get("reverse", True):
        raise Refused(f"Workflow {row.id} was begun with --no-reverse: there is no way back.")
    if move.asked == moves.COMPLETE:
        raise Refused(
            f"Workflow {row.id} is being completed, as {move.asked_by} has asked: there is no way back any more.",
            cure=f"`vreplication complete {row.id}` goes on with that.",
        )


def _check_alone(session: Session, row: WorkflowRow) -> None:
    """Asked of the switch back it would end the workflow."""
    if words := deny.not_alone(session, tables_on(session, row.id, Side.TARGET), workflow=row.id):
        raise Refused(words, cure=f"Drop them on the target, then `vreplication reverse {row.id}` again.")


def _check_complete(row: WorkflowRow, move: Move) -> None:
    if move.serving is Side.SOURCE:
        raise _not_switched(row, move)
    if move.decision in _SWITCHING:
        by = f", as {move.asked_by} has asked" if move.asked_by else ""
        raise Refused(f"Workflow {row.id} is being switched back at this moment{by}.", cure=_to_its_end(row.id))


def _not_switched(row: WorkflowRow, move: Move) -> Refused:
    if move.decision in _SWITCHING:
        return Refused(
            f"Workflow {row.id} is being switched at this moment.",
            cure=f"Ask again when `vreplication status {row.id}` says that the target serves. {_to_its_end(row.id)}",
        )
    words = "have not been switched yet" if move.number == 1 else "have been switched back: the source serves"
    return Refused(
        f"The tables of workflow {row.id} {words}.",
        cure=f"`vreplication release {row.id}` lets it switch, `vreplication cancel {row.id}` ends it.",
    )


def _to_its_end(workflow: str) -> str:
    return f"Where no process works on it, `vreplication resume {workflow}` brings the switch to its end."


def _note(session: Session, operator: Operator, row: WorkflowRow, what: str) -> None:
    """Whoever is to carry it out must be there before it is noted."""
    if not lease.is_alive(session, row.id, lease.DRIVER):
        if operator.source is None:
            raise Refused(
                f"No process works on workflow {row.id}, so this command does, and it needs both servers.",
                cure="Pass --source URL, too, or set VREPLICATION_SOURCE; or start what works on it (in Airflow: clear"
                " its task reverse_stream) and ask again.",
            )
        operator.find_route()
    moves.ask(session, row.id, what, operator.by)
    journal.write(session, row.id, f"{what} asked", actor=operator.by)


def _carry_out(operator: Operator, outcome: Callable[[], Result | None], *, is_end: bool) -> Result:
    """Wait for whoever drives the workflow, or drive it. outcome: None while it is not done."""
    try:
        while True:
            if found := _waited(operator, outcome):
                return found
            if found := _driven(operator, outcome, is_end=is_end):
                return found
    except Interrupted as error:
        again = f"vreplication status {operator.workflow} --watch"
        reason = (
            f"{error} What was asked for stands; the process that drives the workflow does it. Watch it with `{again}`."
        )
        return Result(event="interrupted", workflow=operator.workflow, reason=reason, exit_code=error.exit_code)


def _waited(operator: Operator, outcome: Callable[[], Result | None]) -> Result | None:
    """None: nobody drives it, and it is not done. Raises Interrupted."""
    while not operator.stop.is_set():
        try:
            with connect(operator.home) as session:
                # First: a driver that ends in between has done it before it lets go.
                is_driven = lease.is_alive(session, operator.workflow, lease.DRIVER)
            if (found := outcome()) or not is_driven:
                return found
        except (Transient, Ambiguous) as error:
            operator.notify(f"{error.message} Asking again.")
            operator.stop.wait(_AGAIN_SECONDS)
        operator.stop.wait(_POLL_SECONDS)
    raise Interrupted("Interrupted.")


def _driven(operator: Operator, outcome: Callable[[], Result | None], *, is_end: bool) -> Result | None:
    """Run it here until it is done. None: somebody was faster, or took over."""
    with connect(operator.home) as session:
        row = workflows.load(session, operator.workflow)
    # One of its own: the operator ends his command by his, and a reversal that is done ends the run by this one.
    stop = threading.Event()
    # A completion ends the run by itself. Behind a reversal the run would go on for ever: it is stopped when that is
    # done.
    with _stopping(operator, stop, (lambda: None) if is_end else outcome):
        result = _run(operator, row, operator.find_route(), stop)
    if result.event == "complete":
        return result
    if found := outcome():
        return found
    if operator.stop.is_set() and result.event == "interrupted":
        reason = f"{result.reason or ''} What was asked for stands: whoever resumes the workflow does it.".strip()
        return Result(
            event="interrupted",
            workflow=row.id,
            reason=reason,
            resume_command=result.resume_command,
            exit_code=result.exit_code,
        )
    with connect(operator.home) as session:
        return None if lease.is_alive(session, row.id, lease.DRIVER) else result


@contextlib.contextmanager
def _stopping(operator: Operator, stop: threading.Event, outcome: Callable[[], Result | None]) -> Iterator[None]:
    """Meanwhile `stop` is set when the operator's is, or when it is done."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            with contextlib.suppress(Transient, Ambiguous):
                if operator.stop.is_set() or outcome():
                    stop.set()
                    return

    thread = threading.Thread(target=watch, name="until reversed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _reversed(operator: Operator, number: int) -> Result | None:
    """number: of the switch that was asked for. The phase comes last."""
    with connect(operator.home) as session:
        row, move = workflows.load(session, operator.workflow), moves.load(session, operator.workflow)
        if row.phase in ENDED:
            return _ended(session, row)
        is_told = row.phase not in (Phase.SWITCHED, Phase.CUTTING_OVER)
        if move.number <= number or (move.number == number + 1 and not is_told):
            return None
        is_driven = lease.is_alive(session, row.id, lease.DRIVER)
    stall = move.stall_millis
    return Result(
        event="reversed",
        workflow=row.id,
        cutover_millis=stall,
        write_stall_millis=stall,
        resume_command=None if is_driven else f"vreplication resume {row.id}",
    )


def _completed(operator: Operator) -> Result | None:
    with connect(operator.home) as session:
        row, move = workflows.load(session, operator.workflow), moves.load(session, operator.workflow)
        if row.phase in ENDED:
            return _ended(session, row)
    if move.serving is Side.SOURCE:
        reason = f"Workflow {row.id} was switched back before it could be completed: the source serves."
        return Result(event="failed", workflow=row.id, reason=reason, exit_code=1)
    return None


def _ended(session: Session, row: WorkflowRow) -> Result | None:
    """One that has failed, and that nobody drives, is gone on with."""
    if row.phase is Phase.COMPLETE:
        return ending.completed_of(session, row.id)
    if row.phase is Phase.FAILED and not lease.is_alive(session, row.id, lease.DRIVER):
        return None
    if row.phase is Phase.CANCELLED:
        return Result(event="cancelled", workflow=row.id, reason=row.reason, exit_code=3)
    reason = f"{row.reason} ({ending.who_serves(moves.load(session, row.id), row.id)})"
    return Result(event="failed", workflow=row.id, reason=reason, exit_code=1)


# -- other acts -------------------------------------------------------------------------------------------------------


def cancel(home: SourceUrl, source: SourceUrl | None, workflow: str) -> Result:
    """Remove what a workflow that nobody drives has made, on both servers. Raises Refused."""
    return run.cancel(route_of(home, source, workflow), workflow)


def verify(
    home: SourceUrl, source: SourceUrl | None, workflow: str, spark_master: str, stop: threading.Event
) -> Verdict:
    """Compare both sides of every table now; repairs nothing. The workflow's catch-up must be running.

    Returns one verdict of all tables. Raises Refused.
    """
    route = route_of(home, source, workflow)
    with connect(home) as session:
        row, move = workflows.load(session, workflow), moves.load(session, workflow)
        stream = streams.stream_id(workflow, move.number)
        if not lease.is_alive(session, stream, lease.REPLICATE):
            raise Refused(f"Catch-up of workflow {workflow} is not running.", cure=f"`vreplication resume {workflow}`.")
    way = route if streams.is_forward(move.number) else route.turned()
    with way.open() as ends:
        job = streams.load(ends, workflow, move.number)
    parallelism = MoveSpec.model_validate(row.spec).tasks
    spark = SparkStart(spark_master, parallelism)

    def check() -> None:
        if stop.is_set():
            raise Interrupted("Interrupted.")

    compare = functools.partial(
        verify_rows, spark.context(check), way, stream=stream, is_mariadb=job.is_mariadb, repair=None,
        parallelism=parallelism,
    )  # fmt: skip
    try:
        return summed_up([compare(table.mapping, Caller(check=check), workflow=table.id) for table in job.tables])
    finally:
        spark.stop()


def summed_up(found: list[Verdict]) -> Verdict:
    """One of several tables: bad where one is."""
    return Verdict(
        verdict=next((v.verdict for v in found if v.verdict != verdicts.CLEAN), verdicts.CLEAN),
        rows_compared=sum(v.rows_compared for v in found),
        mismatches=sum(v.mismatches for v in found),
        repaired=sum(v.repaired for v in found),
        hot_keys=tuple(key for v in found for key in v.hot_keys),
        details="; ".join(v.details for v in found if v.details),
    )


def cleanup(home: SourceUrl, source: SourceUrl | None, workflow: str, by: str) -> list[str]:
    """Drop what the source's tables have become; returns what was dropped. Raises Refused."""
    route = route_of(home, source, workflow)
    with route.open() as ends:
        _check_originals(ends, workflow)
        dropped = [
            f"{table.source_schema}.{table.retired_table}"
            for table in workflows.tables(ends.home, workflow)
            if exists(ends.source, table.source_schema, table.retired_table)
            and drop_table(
                ends.source,
                table.source_schema,
                table.retired_table,
                table.source_identity or "",
                is_mariadb=is_mariadb(ends.source),
            )
        ]
        for name in dropped:
            journal.write(ends.home, workflow, "dropped", f"retired table {name} on the source", actor=by)
    return dropped


def _check_originals(ends: Ends, workflow: str) -> None:
    """Before one of them is dropped. Raises Refused where one was rebuilt, which is not known for the original then."""
    here = is_mariadb(ends.source)
    for table in workflows.tables(ends.home, workflow):
        found = table_identity(ends.source, table.source_schema, table.retired_table, here)
        if found not in (None, table.source_identity):
            raise Refused(
                f"{table.source_schema}.{table.retired_table} on the source is not the table that workflow {workflow}"
                " moved: it was rebuilt or replaced since.",
                cure=f"Drop it yourself if it is not needed, then `vreplication cleanup {workflow}` drops the others.",
            )

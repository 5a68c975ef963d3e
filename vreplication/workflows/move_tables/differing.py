"""What is said where rows of tables that move differ and are not copied again: on the way back, and there once more.

What must stay true: what the crash of a server may have done is not told as somebody's write; what is advised is done
where the application writes, from where it comes to the other server by the log.
"""

from __future__ import annotations

from vreplication.engine import recheck
from vreplication.mysql.ends import Ends
from vreplication.state import journal, verdicts
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import streams


def started_since(ends: Ends, workflow: str, number: int, table: str) -> tuple[Side, ...]:
    """Sides whose server was started since the rows of both were equal for certain: since the last clean verification
    or the switch. ends: of the way that rows go; table: its id at home.
    """
    age = _age(ends, workflow, table)
    side = streams.serving(number)
    both = ((side, ends.source), (side.other, ends.target))
    return tuple(side for side, session in both if age is None or recheck.was_started_within(session, age))


def _age(ends: Ends, workflow: str, table: str) -> float | None:
    # A verdict that is not clean says that rows differ, and nothing of when they were equal.
    if recheck.is_clean(ends.home, table):
        return verdicts.age_seconds(ends.home, table)
    return journal.age_seconds(ends.home, workflow, "switched")


def cure(workflow: str, number: int, started: tuple[Side, ...]) -> str:
    serving = streams.serving(number)
    end = "complete" if serving is Side.TARGET else "cancel"
    if not started:
        return (
            f"Another client has written to the {serving.other}, where nothing was to write: the way there is closed."
            f" `vreplication {end} {workflow}` ends the move; where the application writes nothing was touched."
        )
    servers = " and ".join(f"the {side}" for side in started)
    return (
        f"Since they were equal {servers} started again, and a crash may have taken commits. If no other client writes"
        f" to the {serving.other}, write these rows again on the {serving} (change each and change it back; insert and"
        f" delete one that is not there), and go on with `vreplication resume {workflow}`;"
        f" `vreplication {end} {workflow}` ends the move."
    )

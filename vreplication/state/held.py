"""Why a workflow is held, as values for programs: of its copy and of its gate, each as who holds it has said it last.

What must stay true: beside the sentences of the progress row, never in their place: what counts as fresh is decided by
that row; a sidecar that lacks the table is one that has nothing to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vreplication.masking import masked
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.sidecar import now

COPY, GATE = "copy", "gate"
LEFT = "left"
"""Not why it is held but what was told of it (move_tables/left_behind.py)."""
_MOST = 20
Values = Mapping[str, Any]


def note(session: Session, workflow: str, what: str, reasons: Sequence[Values]) -> None:
    """[]: nothing holds it."""
    # The column is a TEXT of 65,535 bytes, and in strict mode a longer one is an error that would end catch-up.
    text = json.dumps(masked(list(reasons[:_MOST])))
    rows.put(session, sidecar.held, {"workflow": workflow, "what": what}, reasons=text, written_at=now())


def read(session: Session, workflow: str | None = None) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(workflow, what) → reasons, the one that is furthest beyond its limit first."""
    where = "" if workflow is None else " WHERE workflow=%s"
    args = () if workflow is None else (workflow,)
    try:
        found = session.rows(f"SELECT workflow, what, reasons FROM {SIDECAR}.held{where}", args)
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        return {}
    return {(str(workflow), str(what)): json.loads(str(reasons)) for workflow, what, reasons in found}

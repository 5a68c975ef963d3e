"""What a person is asked before the cut-over, in words: subject and body of the approval.

What must stay true: importing this imports nothing of Airflow; both answers' consequences are said; what a user wrote
(a table's name, an ALTER) stays text, whatever it holds.
"""

from __future__ import annotations

import re

from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow


def subject(row: WorkflowRow) -> str:
    return f"Switch {row.source_schema}.{row.source_table} to its new definition?"


def body(row: WorkflowRow, verdict: Verdict | None) -> str:
    """Markdown."""
    return f"""{_fenced(f"ALTER TABLE {row.source_schema}.{row.source_table} {row.spec.get('alter', '')}")}

{_verified(verdict)} Every write to the table goes on, and is applied to the copy, until somebody decides.

- **Approve**: the tables are switched as soon as catch-up is level and nothing blocks them; writers wait for at most
  seconds.
- **Reject**: workflow `{row.id}` is cancelled. The shadow table and everything copied so far are removed; the source
  table stays as it is.

The page and `vreplication release {row.id}` do the same as Approve, and end this request.
"""


def _verified(verdict: Verdict | None) -> str:
    if verdict is None:
        return "The copy follows the table."
    repaired = f"; {verdict.repaired:,} that differed were copied again" if verdict.repaired else ""
    return f"The copy is verified: {verdict.rows_compared:,} rows compared, none differs{repaired}."


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sql\n{text}\n{fence}"

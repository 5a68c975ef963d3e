"""What a person is asked before the cut-over, in words: subject and body of the approval.

What must stay true: importing this imports nothing of Airflow; both answers' consequences are said; what a user wrote
(a table's name, an ALTER) stays text, whatever it holds.
"""

from __future__ import annotations

import re

from vreplication.progress.moved import Moved
from vreplication.schema.difference import Definitions
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow


def subject(row: WorkflowRow, moved: Moved | None = None) -> str:
    if moved is None:
        return f"Switch {row.source_schema}.{row.source_table} to its new definition?"
    return f"Switch {_counted(moved)} of {row.source_schema} to {moved.target_at}?"


def _counted(moved: Moved) -> str:
    count = len(moved.tables)
    return f"{count} table{'' if count == 1 else 's'}"


def body(
    row: WorkflowRow, verdict: Verdict | None, moved: Moved | None = None, definitions: Definitions | None = None
) -> str:
    """Markdown."""
    return _of_alter(row, verdict, definitions) if moved is None else _of_move(row, verdict, moved)


def _of_alter(row: WorkflowRow, verdict: Verdict | None, definitions: Definitions | None) -> str:
    differs = _fenced(definitions.text(), "diff") if definitions and definitions.changes else ""
    return f"""{_fenced(f"ALTER TABLE {row.source_schema}.{row.source_table} {row.spec.get('alter', '')}", "sql")}

{differs}

{_verified(verdict)} Every write to the table goes on, and is applied to the copy, until somebody decides.
{_keys(row)}{_left_out(row)}
- **Approve**: the tables are switched as soon as catch-up is level and nothing blocks them; writers wait for at most
  seconds.
- **Reject**: workflow `{row.id}` is cancelled. The shadow table and everything copied so far are removed; the source
  table stays as it is.

The page and `vreplication release {row.id}` do the same as Approve, and end this request.
"""


def _keys(row: WorkflowRow) -> str:
    if row.spec.get("foreign_keys") != "rebuild":
        return ""
    return """
**Foreign keys go over within the cut-over, which has risks.** Writers of the tables that they tie to this one wait as
well; a transaction that goes from one of these tables to another in that moment may get error 1213 and has to be
repeated. If the process or the server dies just then, rows that refer to new rows are refused (1452), and rows that are
referred to can be deleted, until the workflow is resumed. Afterwards rows without a parent are looked for.
"""


def _left_out(row: WorkflowRow) -> str:
    if not row.keeps_one:
        return ""
    which = "lowest" if row.spec["on_duplicate"] == "keep-first" else "highest"
    return f"""
**Rows that the new unique key does not allow are left out.** Of each value the row with the {which} key stays, as the
rows are at the switch; all others go into a table of their own, until `vreplication cleanup {row.id} --duplicates`
drops it:

{_fenced(f"{row.source_schema}.{row.side_table}")}

From the switch on a write that breaks the new key is an error.
"""


def _of_move(row: WorkflowRow, verdict: Verdict | None, moved: Moved) -> str:
    tables = "\n".join(f"{table.source} → {table.target}" for table in moved.tables)
    writers = "wait" if row.spec.get("deny") == "wait" else "get an error, and repeat,"
    hook = " The application is told by the hook." if row.spec.get("on_switch") else ""
    back = " Until it is completed, it can be switched back." if row.spec.get("reverse", True) else ""
    return f"""{_fenced(f"from {moved.source_at} to {moved.target_at}" + chr(10) + tables)}

{_verified(verdict)} The source takes every write, and each is applied on the target, until somebody decides.

- **Approve**: the target takes the writes as soon as catch-up is level and nothing blocks the tables; writers {writers}
  for at most seconds.{hook}{back}
- **Reject**: workflow `{row.id}` is cancelled. What it made on the target is removed; the source's tables stay as they
  are.

The page and `vreplication release {row.id}` do the same as Approve, and end this request.
"""


def _verified(verdict: Verdict | None) -> str:
    if verdict is None:
        return "The copy follows the table."
    repaired = f"; {verdict.repaired:,} that differed were copied again" if verdict.repaired else ""
    return f"The copy is verified: {verdict.rows_compared:,} rows compared, none differs{repaired}."


def _fenced(text: str, language: str = "") -> str:
    """A block of code whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"

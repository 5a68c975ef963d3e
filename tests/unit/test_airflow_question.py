"""What a person is asked before the cut-over: what either answer brings, and nothing a table name could break."""

from __future__ import annotations

import dataclasses

from tests.support.rows import workflow_row
from vreplication.airflow import question
from vreplication.schema.difference import Definitions
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow


def row(alter: str = "ADD x INT") -> WorkflowRow:
    return workflow_row("orders-1", spec={"alter": alter})


def verdict(repaired: int = 0) -> Verdict:
    return Verdict(
        verdict="clean", rows_compared=12_345, mismatches=repaired, repaired=repaired, hot_keys=(), details=""
    )


def test_the_risks_of_foreign_keys_are_said_where_they_are_to_go_over() -> None:
    asked = row()
    assert "1452" not in question.body(asked, verdict())
    asked = dataclasses.replace(asked, spec={**asked.spec, "foreign_keys": "rebuild"})
    assert "1452" in question.body(asked, verdict())


def test_where_rows_go_that_a_new_key_does_not_allow_is_said() -> None:
    asked = row("ADD UNIQUE (x)")
    assert "--duplicates" not in question.body(asked, verdict())
    text = question.body(dataclasses.replace(asked, spec={**asked.spec, "on_duplicate": "keep-last"}), verdict())
    assert "the row with the highest key stays" in text
    assert f"```\nshop.{asked.side_table}\n```" in text
    assert "`vreplication cleanup orders-1 --duplicates`" in text


def test_subject_and_both_answers() -> None:
    assert question.subject(row()) == "Switch shop.orders to its new definition?"
    text = question.body(row(), verdict())
    assert "```sql\nALTER TABLE shop.orders ADD x INT\n```" in text
    assert "12,345 rows compared, none differs." in text
    assert "**Approve**: the tables are switched" in text
    assert "**Reject**: workflow `orders-1` is cancelled." in text


def test_what_was_mended_and_what_is_not_known_is_said() -> None:
    assert "none differs; 3 that differed were copied again." in question.body(row(), verdict(3))
    assert "The copy follows the table." in question.body(row(), None)


def test_an_alter_cannot_break_out_of_its_block() -> None:
    alter = "ADD x INT COMMENT '```` **Reject** does nothing'"
    text = question.body(row(alter), None)
    assert text.startswith(f"`````sql\nALTER TABLE shop.orders {alter}\n`````\n")


def test_what_differs_is_shown_in_a_block_of_their_own() -> None:
    before = "CREATE TABLE `orders` (\n  `id` int\n)"
    found = Definitions(before=before, after=before.replace("int", "int,\n  `x` int COMMENT '```'"))
    text = question.body(row(), verdict(), None, found)
    assert "````diff\n  CREATE TABLE `orders` (\n    `id` int,\n+   `x` int COMMENT '```'\n  )\n````" in text

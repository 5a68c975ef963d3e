"""What differs between two definitions, as a person reads it."""

from __future__ import annotations

from vreplication.schema.difference import GAP, Definitions, definitions_of
from vreplication.schema.model import Table

BEFORE = """CREATE TABLE `t` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `a,` varchar(10) DEFAULT 'x,',
  PRIMARY KEY (`id`),
  CONSTRAINT `far` FOREIGN KEY (`id`) REFERENCES `p` (`id`)
) ENGINE=InnoDB AUTO_INCREMENT=7 DEFAULT CHARSET=utf8mb4"""


def table(create_sql: str, name: str = "t") -> Table:
    return Table(schema="s", name=name, engine="InnoDB", columns=(), keys=(), create_sql=create_sql)


def marked(before: str, after: str | None, name: str = "t__vr_new") -> list[str]:
    found = definitions_of(table(before), None if after is None else table(after, name))
    return [f"{line.mark}{line.text}" for line in found.changes]


def test_a_last_line_that_gets_a_comma_has_not_changed() -> None:
    after = BEFORE.replace("`t`", "`t__vr_new`").replace(
        "PRIMARY KEY (`id`),", "PRIMARY KEY (`id`),\n  KEY `k` (`a,`),"
    )
    after = after.replace("  CONSTRAINT `far` FOREIGN KEY (`id`) REFERENCES `p` (`id`)\n", "").replace(
        "`a,`),", "`a,`)"
    )
    assert marked(BEFORE, after)[-3:] == [
        "   PRIMARY KEY (`id`),",
        "+  KEY `k` (`a,`)",
        " ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
    ]
    assert marked(BEFORE, after)[0] == " CREATE TABLE `t` ("


def test_nothing_differs_where_only_the_counter_does() -> None:
    assert marked(BEFORE, BEFORE.replace("=7", "=9"), "t") == []
    assert marked(BEFORE, None) == []
    assert definitions_of(table(BEFORE), None).has_foreign


def test_what_is_far_from_a_change_is_left_out() -> None:
    columns = ",\n".join(f"  `c{n}` int(11)" for n in range(30))
    before = f"CREATE TABLE `t` (\n{columns}\n) ENGINE=InnoDB"
    changes = Definitions(before=before, after=before.replace("`c20` int", "`c20` bigint")).changes
    assert [line.mark for line in changes] == [GAP, " ", " ", " ", "-", "+", " ", " ", " ", GAP]
    assert changes[0].text == "18 lines stay as they are"

"""A table that takes the rows in the new table's place, until all are copied: MariaDB, AUTO_INCREMENT.

MariaDB keeps the counter of such a table in the root page of its primary key, and locks that page for each row that is
inserted: two tasks insert no faster than one (rowcopy/turns.py). The stand-in has the new table's definition without
that attribute, and one partition that holds everything. EXCHANGE PARTITION then makes its rows the new table's at once,
however many there are: InnoDB keeps its pages, its TABLE_ID and its statistics, and only the names change. The other
way round (the stand-in's partition is put into the new table, which is empty) the server has no row to check.

What must stay true: the two differ in the counter and the partition alone, as SHOW CREATE TABLE says, and the server
has exchanged them while both were empty, or there is no stand-in; while a table has the name `names.stood_in` nobody
writes to it or to the new table, so one of the two is empty.
"""

from __future__ import annotations

from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import LockWait, Session, SqlError
from vreplication.mysql.text import has_opened_comment, tokens
from vreplication.schema.introspect import COUNTER, definitions, read_create_sql
from vreplication.schema.literals import INTEGERS
from vreplication.schema.model import Table
from vreplication.schema.shadow import comparable

LEAST_ROWS = 100_000
"""Smaller tables are copied before a second task would have begun."""
LEAST_CORES = 4
"""MariaDB sizes its thread pool by them, used or not (thread_pool_size). On two, which it shares with Spark, little is
gained (docs/design/architecture.md), unless rows have entries in further indexes: those are written outside that lock.
"""
LEAST_CORES_BESIDE_INDEXES = 2
_PARTITION = "everything"
_NOT_SO = ("FOREIGN", "VERSIONING", "PERIOD", "DIRECTORY", "GENERATED", "REFERENCES")
"""Words of a definition that partitioned tables do not take, or that are about more than rows."""


def statement(table: Table, name: str) -> str | None:
    """CREATE TABLE of a stand-in for `table`, the new one. None: it has no counter, or cannot be partitioned by it."""
    counter = next((column for column in table.columns if column.is_auto_increment), None)
    if counter is None or not _may_be_partitioned(table, counter.name):
        return None
    if (body := _without_counter(table, counter.name)) is None:
        return None
    # One partition by the counter itself, which each unique key has to hold: all that partitions ask for.
    by = f"PARTITION BY RANGE COLUMNS({ident(counter.name)}) (PARTITION {_PARTITION} VALUES LESS THAN (MAXVALUE))"
    return f"CREATE TABLE {qualified(table.schema, name)} {body}\n{by}"


def _may_be_partitioned(table: Table, counter: str) -> bool:
    is_plain = table.engine == "InnoDB" and not table.is_partitioned and not any(c.generated for c in table.columns)
    has_plain_keys = all(key.index_type == "BTREE" and not key.has_expression for key in table.keys)
    holds_it = all(counter in key.columns for key in table.keys if key.is_unique)
    is_integer = table.column(counter).data_type in INTEGERS
    return is_plain and has_plain_keys and holds_it and is_integer and not _has_more(table.create_sql)


def _has_more(create_sql: str) -> bool:
    # Whoever reads the log for another table of the schema stops at a statement with a version comment
    # (binlog/grammar.py).
    return has_opened_comment(create_sql) or any(token.is_word(*_NOT_SO) for token in tokens(create_sql))


def _without_counter(table: Table, counter: str) -> str | None:
    """What stands behind the name. None where the attribute is not found, which would be a fault of ours."""
    sql = table.create_sql
    own = next((parts for parts in definitions(sql) if parts and parts[0].value == counter), [])
    word = next((token for token in own if token.is_word("AUTO_INCREMENT")), None)
    if word is None:
        return None
    at, end = sql.index("(\n", len("CREATE TABLE ") + len(ident(table.name))), sql.rfind("\n)")
    return sql[at : word.start].rstrip() + sql[word.end : end] + COUNTER.sub("", sql[end:])


def least_cores(table: Table) -> int:
    """Of the server, for it to gain anything; table: the new one."""
    return LEAST_CORES_BESIDE_INDEXES if len(table.keys) > 1 else LEAST_CORES


def create(session: Session, table: Table, name: str) -> bool:
    """Make the stand-in `name` for `table`, the new one, which is empty. False: the server does without."""
    sql = statement(table, name)
    if sql is None:
        return False
    place = qualified(table.schema, name)
    try:
        session.execute_raw(sql)
        if not _is_alike(session, table, name):
            session.execute_raw(f"DROP TABLE {place}")
            return False
        # Of two empty tables nothing is seen of it, and what the server would refuse in the end it refuses now.
        exchange(session, table.schema, name, table.name)
        # Made anew: this one has the new table's pages now, whose counter InnoDB goes on writing until it forgets that
        # they had one, whatever the definition says.
        session.execute_raw(f"DROP TABLE {place}")
        session.execute_raw(sql)
    # It costs speed alone: rows go to the new table itself then, by turns (docs/design/architecture.md).
    except (SqlError, LockWait):
        session.execute_raw(f"DROP TABLE IF EXISTS {place}")
        return False
    return True


def _is_alike(session: Session, table: Table, name: str) -> bool:
    counter = next(column.name for column in table.columns if column.is_auto_increment)
    made = read_create_sql(session, table.schema, name)
    body, partitions = made[: made.rfind("\n)")], made[made.rfind("\n)") :]
    wanted = f"CREATE TABLE {ident(name)} {_without_counter(table, counter)}"
    return comparable(wanted, name) == comparable(body + partitions.partition("\n PARTITION BY")[0], name)


def exchange(session: Session, schema: str, name: str, new: str) -> None:
    """Give the rows of the stand-in `name` to the table `new`, and the other way round; at once."""
    session.execute_raw(
        f"ALTER TABLE {qualified(schema, name)} EXCHANGE PARTITION {_PARTITION} WITH TABLE {qualified(schema, new)}"
    )

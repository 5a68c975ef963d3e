"""What the writer does with the server's refusals."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.apply.batch import Step
from vreplication.apply.writer import Marks, in_transaction, write_steps
from vreplication.errors import BadValue
from vreplication.mysql.session import SqlError
from vreplication.mysql.values import readable_key
from vreplication.state.lease import Lease

LEASE = Lease(workflow="w", role="replicate", token=1)
MARKS = Marks(number=1, batch=None, has_tombstones=False, has_suspects=False)
STEP = Step(keys=["1", "2"], values=["1,_utf8mb4 X'61'", "2,NULL"])


class Server:
    """A session that answers the first REPLACE with an error."""

    def __init__(self, code: int, message: str) -> None:
        self.error: SqlError | None = SqlError(message, code=code)
        self.written: list[str] = []
        self.warning_count = 0

    @contextmanager
    def transaction(self) -> Any:
        yield

    def row(self, *_: Any) -> tuple[int]:
        return (1,)

    def lasting(self, *_: Any) -> int:
        return 1 << 20

    def execute_raw(self, sql: str) -> int:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.written.append(sql)
        return 1


def target() -> Any:
    mapping = SimpleNamespace(is_written_in_zone=False, is_staged=False)
    columns = {"columns": "`id`,`a`", "key_columns": ["`id`"]}
    return SimpleNamespace(table="`d`.`t`", **columns, packet=1 << 20, lease=LEASE, table_id="w", mapping=mapping)


def write(server: Server) -> None:
    session: Any = server
    in_transaction(session, LEASE, lambda: write_steps(session, target(), [STEP], MARKS))


def test_a_duplicate_under_replace_is_a_race_and_is_done_again() -> None:
    server = Server(1062, "Duplicate entry '1' for key 't.PRIMARY' (1062)")
    write(server)
    assert server.written == ["REPLACE INTO `d`.`t` (`id`,`a`) VALUES (1,_utf8mb4 X'61'),(2,NULL)"]


def test_a_statement_that_somebody_kills_is_done_again() -> None:
    server = Server(1317, "Query execution was interrupted (1317)")
    write(server)
    assert len(server.written) == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (1114, "The table 't__vr_new' is full (1114)"),
        (1290, "The MySQL server is running with the --super-read-only option (1290)"),
    ],
)
def test_what_is_no_fault_of_a_value_is_told_in_the_servers_words_alone(code: int, message: str) -> None:
    with pytest.raises(SqlError) as raised:
        write(Server(code, message))
    assert str(raised.value) == message


def test_a_value_that_does_not_fit_names_the_key_of_its_row() -> None:
    with pytest.raises(BadValue, match=r"key \(2\)"):
        write(Server(1048, "Column 'a' cannot be null at row 2 (1048)"))


def test_keys_are_shown_as_people_write_them() -> None:
    assert readable_key("1,_utf8mb4 X'61',X'ff'") == "1, 'a', X'ff'"

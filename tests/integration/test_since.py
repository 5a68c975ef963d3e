"""Keys written since a verification began: to take them off holds up no one else."""

from __future__ import annotations

import pytest
from rowcopy_setup import WORKFLOW, Background, make_case, wait_until

from sandbox.databases import Database
from vreplication import names
from vreplication.mysql.session import connect
from vreplication.state import keytables, since

RUNNING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DELETE FROM `_vreplication`.%since%'"


def test_a_heartbeat_does_not_wait_until_the_keys_of_before_a_verification_are_gone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a copy that was paused for a day they are tens of millions; catch-up would begin anew each 15 s."""
    monkeypatch.setattr(since, "_SLICE_KEYS", 2)
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    table = names.since_table(WORKFLOW)
    since.begin(case.session, WORKFLOW, "")
    keytables.put(case.session, table, ["1", "2", "3", "4"], "1")
    keytables.put(case.session, table, ["5"], "2")
    with connect(database.url) as holding, connect(database.url, lock_wait_seconds=1) as beating:
        with holding.transaction():
            keytables.put(holding, table, ["3"], "1")
            verified = Background(lambda: since.mark_verified(case.session, WORKFLOW, 2))
            wait_until(lambda: bool(database.admin.value(RUNNING)))
            since.note_waiting(beating, WORKFLOW, 0)
        verified.result()
        found = since.load(beating, WORKFLOW)
        assert found is not None
        assert (found.vouches, since.keys(beating, case.mapping, WORKFLOW, None, 9)) == (True, ["5"])

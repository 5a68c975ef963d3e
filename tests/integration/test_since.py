"""Keys written since a verification began: to take them off holds up no one else, and none goes too soon."""

from __future__ import annotations

import pytest
from rowcopy_setup import WORKFLOW, Background, make_case, wait_until

from sandbox.databases import Database
from vreplication import names
from vreplication.apply.since import SinceKeys
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


def test_the_keys_of_a_collection_that_counts_no_more_go_in_slices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction tens of millions took longer than an answer is waited for, and catch-up never got by them."""
    monkeypatch.setattr(since, "_SLICE_KEYS", 2)
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    keytables.put(case.session, names.since_table(WORKFLOW), ["1", "2", "3", "4", "5"], "1")
    collecting = SinceKeys(session=connect(database.url), workflow=WORKFLOW)
    with connect(database.url) as holding:
        with holding.transaction():
            keytables.put(holding, names.since_table(WORKFLOW), ["5"], "1")
            clearing = Background(lambda: collecting.make_room(case.replicate))
            wait_until(lambda: since.count(case.session, WORKFLOW) == 1)
        clearing.result()
    assert since.count(case.session, WORKFLOW) == 0


def test_a_key_that_is_to_be_compared_again_keeps_its_later_round(database: Database) -> None:
    """Two verifications at a time: by a lower one the change of this key was taken for one that had been compared."""
    on_update = "at TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00' ON UPDATE CURRENT_TIMESTAMP"
    case = make_case(database, f"CREATE TABLE t (id INT, {on_update}, PRIMARY KEY (id, at))")
    session, mapping, table = case.session, case.mapping, names.since_table(WORKFLOW)
    since.begin(session, WORKFLOW, "")
    one, other = "1,'2020-01-02 00:00:00'", "2,'2020-01-02 00:00:00'"
    keytables.put(session, table, [one], "7")
    since.add(session, WORKFLOW, [one, other], 6)
    keytables.put(session, names.dirty_table(WORKFLOW), [one], "1")
    since.add_dirty(session, WORKFLOW)
    assert since.written_since(session, mapping, WORKFLOW, [one, other], 7) == {one}
    since.mark_verified(session, WORKFLOW, 7)
    assert since.keys(session, mapping, WORKFLOW, None, 9) == [one]

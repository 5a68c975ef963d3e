"""What an operator lets hold a copy back: it stands while that holds, goes on when it has passed, and says why."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from throttling_setup import fill, held, reason

from sandbox import binaries, replicas, servers
from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.flow import Run, begin, call, let_go, paused_at, wait_reached, wait_until
from tests.support.private_server import missing, private_server
from tests.support.small_disk import small_disk_at
from vreplication.cli import metrics
from vreplication.engine import beater, effort, steering
from vreplication.errors import Refused
from vreplication.mysql import disk, load
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Row, Session, connect
from vreplication.mysql.url import parse_replicas
from vreplication.phases import Phase
from vreplication.planning.facts import Verdict
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import make_spec
from vreplication.settings import SIDECAR, Pace
from vreplication.state import journal, throttling, workflows
from vreplication.throttle.pace import spared
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
ALTER = "ADD COLUMN z INT"


@pytest.fixture
def app(database: Database) -> Session:
    return fill(database)


def test_a_query_holds_it_and_lets_it_go(app: Session, database: Database) -> None:
    app.execute_raw("CREATE TABLE busy (n INT)")
    app.execute_raw("INSERT INTO busy VALUES (1)")
    busy = "SELECT COUNT(*) FROM busy"
    run = begin(database, "t", ALTER, throttle_query=busy, cutover="manual", chunk_rows=10)
    held(database, run, "by --throttle-query: its value is 1")
    app.execute_raw("INSERT INTO t VALUES (301,1)")
    app.execute_raw("UPDATE t SET v=2 WHERE id=301")
    wait_until(lambda: arrived(database, run) == [(301, 2)], "catch-up does not go on")
    app.execute_raw("RENAME TABLE busy TO gone")
    held(database, run, "by --throttle-query: it cannot be told")
    app.execute_raw("RENAME TABLE gone TO busy")
    app.execute_raw("DELETE FROM busy")

    def codes() -> list[str]:
        seen = operate.status(database.url, run.workflow)
        return [str(each["code"]) for each in (seen.throttle_reasons or []) + (seen.gate_reasons or [])]

    wait_until(lambda: codes() == ["not_released"], "the gate does not say what it waits for")
    text = metrics.text([database.url])
    assert 'vreplication_waiting{for="not_released"' in text
    operate.release(database.url, run.workflow, "dba")
    assert run.result().event == "complete"


def arrived(database: Database, run: Run) -> Sequence[Row]:
    """What the new table has."""
    with connect(database.url) as session:
        shadow = workflows.load(session, run.workflow).shadow_table
        return session.rows(f"SELECT id,v FROM `{shadow}`")


def test_a_query_that_takes_for_ever_holds_it(app: Session, database: Database) -> None:
    """It is ended on the server, and no second one comes to be beside it."""
    run = begin(database, "t", ALTER, max_load="Threads_connected=1", chunk_rows=10)
    held(database, run, "by --max-load")
    with connect(database.url) as session:
        # To `tune` it would say at once that it takes too long; it may come to that later.
        throttling.change(session, run.workflow, {"max_load": None, "throttle_query": "SELECT SLEEP(60)"})
    held(database, run, "by --throttle-query")
    found = database.admin.rows("SELECT info FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'")
    assert len(found) <= 1
    effort.tune(database.url, run.workflow, "dba", {"throttle_query": "off"})
    assert run.result().event == "complete"


def test_load_holds_it_until_it_is_told_otherwise(
    app: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vreplication.engine.throttling._LASTING_SECONDS", 0.0)
    run = begin(database, "t", ALTER, max_load="Threads_connected=1,Uptime=1000000000", chunk_rows=10)
    held(database, run, "by --max-load: Threads_connected is ")
    wait_until(lambda: "more than 1" in (operate.status(database.url, run.workflow).throttled or ""), "status is mute")
    where = f'server="{database.url.host}:{database.url.port}",workflow="{run.workflow}"'
    told_to_prometheus = f'vreplication_throttled{{by="max-load",{where}}} 1.0'
    wait_until(lambda: told_to_prometheus in metrics.text([database.url]), "the metrics are mute")
    limits = f'vreplication_throttle_limit{{by="max-load",{where[: where.index(",")]},unit="",what="Threads_connected"'
    assert limits in metrics.text([database.url])
    (held_by,) = operate.status(database.url, run.workflow).throttle_reasons or ()
    assert {**held_by, "value": None, "sentence": None} == {
        "code": "max-load", "what": "Threads_connected", "value": None, "limit": 1, "unit": None, "sentence": None,
    }  # fmt: skip
    assert held_by["value"] > 1
    assert effort.tune(database.url, run.workflow, "dba", {"max_load": "off", "nice_ratio": "0.5"})
    assert run.result().event == "complete"
    with connect(database.url) as session:
        begun, told = [e for e in journal.read(session, run.workflow) if e["event"] in ("throttled", "tuned")]
        # Told at once here, it may be that nothing is known before the first look.
        is_told = "Threads_connected is " in begun["details"] or "is looked at" in begun["details"]
        assert (begun["event"], is_told) == ("throttled", True), begun
    assert told["actor"] == "dba"
    assert told["details"] == ("max-load: off (was Threads_connected=1,Uptime=1000000000), nice-ratio: 0.5 (was 0.0)")


def test_verification_stands_still_as_well(
    app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held by a query, then by an operator's pause; not by what only writing makes worse."""
    monkeypatch.setattr("vreplication.verify.ranges._SPAN_ROWS", (10, 10))
    monkeypatch.setattr("vreplication.verify.spark_job._FIRST_BATCH", 1)
    monkeypatch.setattr("vreplication.verify.spark_job._MAX_BATCH", 1)
    told = threading.Event()

    def spared_and_told(*given: Any, is_held: bool) -> Pace:
        if is_held:
            told.set()
        return spared(*given, is_held=is_held)

    monkeypatch.setattr(steering, "spared", spared_and_told)
    app.execute_raw("CREATE TABLE busy (n INT)")
    asked = {"throttle_query": "SELECT COUNT(*) FROM busy", "latency_factor": 0, "chunk_rows": 10}
    with paused_at(pauses, "verify.comparing"), connect(database.url) as session:
        run = begin(database, "t", ALTER, copy_parallelism=1, **asked)
        wait_reached(pauses, "verify.comparing", run)
        app.execute_raw("INSERT INTO busy VALUES (1)")
        assert told.wait(60), "the driver does not heed it"
        let_go(pauses, "verify.comparing")
        stays_held(session, run, "by --throttle-query")
        operate.pause(database.url, run.workflow, "dba")
        app.execute_raw("DELETE FROM busy")
        wait_until(lambda: throttled_by(database, run) == ["pause"], "the pause is not told")
        stays_held(session, run, "paused by the operator")
        assert workflows.load(session, run.workflow).phase == Phase.VERIFYING
        effort.tune(database.url, run.workflow, "dba", {"min_disk_free": "900T"})
        assert operate.resume(database.url, run.workflow, "dba", threading.Event(), print) is None
    assert run.result().event == "complete"


def throttled_by(database: Database, run: Run) -> list[str]:
    return [str(each["code"]) for each in operate.status(database.url, run.workflow).throttle_reasons or ()]


def test_the_copy_gets_its_least_share_although_catch_up_cannot_follow(
    app: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes that cannot be applied: the copy stands, `converging` says that there is no end, `tune` lets it go on."""
    app.execute_raw("CREATE TABLE busy (n INT)")
    app.execute_raw("INSERT INTO busy VALUES (1)")
    asked = {"throttle_query": "SELECT COUNT(*) FROM busy", "latency_factor": 0, "chunk_rows": 10}
    run = begin(database, "t", ALTER, least_copy_share=0.9, **asked)
    held(database, run, "by --throttle-query")
    effort.tune(database.url, run.workflow, "dba", {"least_copy_share": "off"})
    with database.server.admin() as other, connect(database.url) as session:
        shadow = workflows.load(session, run.workflow).shadow_table
        other.execute_raw("BEGIN")
        other.execute_raw(f"INSERT INTO `{database.name}`.`{shadow}` (id) VALUES (1000)")
        app.execute_raw("INSERT INTO t VALUES (1000,1)")
        wait_until(lambda: reason(session, run).startswith("apply lag"), "it is not behind")
        app.execute_raw("DELETE FROM busy")
        wait_until(lambda: operate.status(database.url, run.workflow).converging is False, "it is said to come nearer")
        stays_held(session, run, "apply lag")
        assert landed(session, run) == 0
        effort.tune(database.url, run.workflow, "dba", {"least_copy_share": 0.5})
        wait_until(lambda: landed(session, run) > 2, "the copy does not get its share")
        assert operate.status(database.url, run.workflow).converging is False
        other.execute_raw("ROLLBACK")
    assert run.result().event == "complete"


def landed(session: Session, run: Run) -> int:
    sql = f"SELECT COUNT(*) FROM {SIDECAR}.chunk WHERE workflow=%s AND state='landed'"
    return int(session.value(sql, (run.workflow,)))


def test_what_cannot_be_asked_is_refused_by_tune_and_changes_nothing(app: Session, database: Database) -> None:
    """A name that is wrong would count as 0, and hold nothing."""
    run = begin(database, "t", ALTER, max_load="Threads_connected=1", chunk_rows=10)
    held(database, run, "by --max-load")
    with connect(database.url) as session:
        for given in ({"max_load": "Threads_runing=3"}, {"throttle_query": "SELECT nothing FROM nowhere"}):
            with pytest.raises(Refused, match=r"no status variable|cannot be asked"):
                effort.tune(database.url, run.workflow, "dba", given)
        stays_held(session, run, "by --max-load: Threads_connected")
    effort.tune(database.url, run.workflow, "dba", {"max_load": "off"})
    assert run.result().event == "complete"


def test_a_critical_load_ends_it_and_it_goes_on_later(app: Session, database: Database) -> None:
    run = begin(database, "t", ALTER, critical_load="Threads_connected=1", chunk_rows=10)
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert "critical load: Threads_connected is " in (result.reason or "")
    effort.tune(database.url, run.workflow, "dba", {"critical_load": "Threads_connected=100000"})
    again = operate.resume(database.url, run.workflow, "dba", threading.Event(), print)
    assert again is not None
    assert again.event == "complete", again


class _Answers(BaseHTTPRequestHandler):
    status = 503

    def do_GET(self) -> None:
        self.send_response(type(self).status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("asked", ["at first", "under way"])
def test_an_address_holds_it(app: Session, database: Database, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Asked for at first, until it answers; or by `tune`, which takes it back while it answers as before."""
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/may-i"
        if asked == "at first":
            run = begin(database, "t", ALTER, throttle_http=address, chunk_rows=10)
        else:
            run = begin(database, "t", ALTER, max_load="Threads_connected=1", chunk_rows=10)
            told_under_way(database, run, "by --max-load", {"max_load": "off", "throttle_http": address})
        held(database, run, "by --throttle-http: it answers 503")
        if asked == "at first":
            monkeypatch.setattr(_Answers, "status", 200)
        else:
            effort.tune(database.url, run.workflow, "dba", {"throttle_http": "off"})
        assert run.result().event == "complete"
        server.shutdown()


def test_off_takes_each_limit_away(app: Session, database: Database) -> None:
    """One limit after the other on a copy that none of them lets begin, and nothing else holds it then."""
    with contextlib.ExitStack() as over, connect(database.url) as session:
        http = over.enter_context(HTTPServer(("127.0.0.1", 0), _Answers))
        threading.Thread(target=http.serve_forever, daemon=True).start()
        over.callback(http.shutdown)
        snapshot = over.enter_context(connect(database.app_url))
        snapshot.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        for n in range(3):
            app.execute_raw(f"UPDATE t SET v=-{n} WHERE id<10")
        limits = {
            "throttle_query": "SELECT 1",
            "throttle_http": f"http://127.0.0.1:{http.server_port}/may-i",
            "min_disk_free": "900T",
            "max_history_list": "1",
        }
        given = {"max_load": "Threads_connected=1", "critical_load": "Threads_connected=60"}
        run = begin(database, "t", ALTER, chunk_rows=10, copy_parallelism=1, **given)
        held(database, run, "by --max-load")
        effort.tune(database.url, run.workflow, "dba", {"critical_load": "off", "nice_ratio": 3})
        before = "max_load"
        for name, value in limits.items():
            effort.tune(database.url, run.workflow, "dba", {before: "off", name: value})
            held_by_no_other(database, run, name)
            if before == "max_load":
                # Above the critical load for all looks that follow.
                for _ in range(61):
                    over.enter_context(connect(database.app_url))
            before = name
        # A replica that is gone for good, which `tune` would not take.
        throttling.change(session, run.workflow, {before: None, "max_lag": 1, "lag_replicas": "127.0.0.1:1"})
        held_by_no_other(database, run, "max_lag")
        snapshot.execute_raw("ROLLBACK")
        wait_until(lambda: effort_of(session, run) == 0.25, "it is not to rest")
        effort.tune(database.url, run.workflow, "dba", {"nice_ratio": "off"})
        wait_until(lambda: effort_of(session, run) == 1.0, "it is to rest as before")
        effort.tune(database.url, run.workflow, "dba", {"max_lag": "off", "lag_replicas": "off"})
        assert run.result().event == "complete"


def held_by_no_other(database: Database, run: Run, name: str) -> None:
    code = name.replace("_", "-")
    wait_until(lambda: throttled_by(database, run) == [code] or not run.is_going, f"it is not held by {code} alone")
    assert run.is_going, run.result().reason


def effort_of(session: Session, run: Run) -> float:
    sql = f"SELECT effort FROM {SIDECAR}.throttle WHERE workflow=%s"
    return float(session.value(sql, (run.workflow,)))


def told_under_way(database: Database, run: Run, before: str, given: Mapping[str, object]) -> None:
    """It is in force within a second: what held before does so for that many beats at the most."""
    held(database, run, before)
    with connect(database.url) as session:

        def look() -> tuple[int, bool]:
            sql = f"SELECT beat, reason FROM {SIDECAR}.gate WHERE workflow=%s"
            (beat, why), *_ = session.rows(sql, (run.workflow,))
            return int(beat), before in str(why)

        assert effort.tune(database.url, run.workflow, "dba", given).endswith(" It holds at once.")
        told, holds = last, _ = look()
        while holds and last - told <= 1 / beater.GATE_PERIOD_SECONDS:
            last, holds = look()
        assert not holds, "it is held back as before"


@pytest.fixture
def replicated(server: Any, tmp_path: Path) -> Iterator[tuple[Database, Any]]:
    """A database on a server of its own, and its replica."""
    with private_server(server.flavor, {**replicas.GTID_OPTIONS[server.flavor], "server-id": 101}) as source:
        database = create_database(source)
        replica = replicas.start_replica(source, tmp_path / "replica", options={"report-host": "127.0.0.1"})
        try:
            replicas.wait_level(source, replica)
            yield database, replica
        finally:
            replica.stop()


def test_a_replica_that_is_behind_holds_it(replicated: tuple[Database, Any]) -> None:
    """Also when it reads nothing any more: then the server strikes it off its list."""
    database, replica = replicated
    fill(database)
    word = "SLAVE" if replica.is_mariadb else "REPLICA"
    with replica.admin() as admin, connect(database.url) as session:
        admin.execute_raw(f"STOP {word} SQL_THREAD")
        place = f"127.0.0.1:{replica.port}"
        run = begin(database, "t", ALTER, max_load="Threads_connected=1", chunk_rows=10)
        told_under_way(database, run, "by --max-load", {"max_load": "off", "max_lag": "2"})
        held(database, run, f"by --max-lag: replica {place} ")
        admin.execute_raw(f"STOP {word}")
        wait_until(lambda: load.replicas(session) == [], "it is listed as before")
        stays_held(session, run, place)
        admin.execute_raw(f"START {word}")
        assert run.result().event == "complete"
        takes_a_login_of_its_own(database, replica, admin)


def takes_a_login_of_its_own(database: Database, replica: RunningServer, admin: Session) -> None:
    """Where the source's is not known: by the environment, through catch-up's pipe, and shown nowhere."""
    admin.execute_raw("SET sql_log_bin=0")
    admin.execute_raw(f"ALTER USER '{database.user}'@'%' IDENTIFIED BY 'another'")
    admin.execute_raw("CREATE USER 'monitor'@'%' IDENTIFIED BY 'only-there'")
    admin.execute_raw(f"GRANT SELECT ON {SIDECAR}.gate TO 'monitor'@'%'")
    place = f"127.0.0.1:{replica.port}"
    login = f"mysql://monitor:only-there@{place}"
    words = ("plan", "online-ddl", "--table", "t", "--alter", "ADD COLUMN y INT", "--max-lag", "30", "--json")
    refused = call(database, *words, "--lag-replicas", place)
    assert refused.code == 2, refused.out
    assert f"Replica {place} cannot be asked" in refused.out
    known = call(database, *words, VREPLICATION_LAG_REPLICAS=login)
    assert known.code == 0, known.out
    assert f"Waited for: {place}." in known.out
    assert "only-there" not in known.out + known.err
    asked = {"workflow": "own-login", "max_lag": 30, "lag_replicas": place, "chunk_rows": 10}
    run = Run(make_spec(table="t", alter="ADD COLUMN y INT", **asked)).start(
        replace(database.url, replicas=parse_replicas(login))
    )
    assert run.result().event == "complete", run.result()


def test_a_disk_that_fills_up_holds_it(server: Any, tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "small", 900) as place, server_in(server.flavor, place) as on:
        database = create_database(on)
        fill(database)
        ballast = place / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(place).free - (100 << 20))
        run = begin(database, "t", ALTER, min_disk_free="300M", chunk_rows=10)
        held(database, run, f"by --min-disk-free: what is free on the disk of {place}")
        ballast.unlink()
        assert run.result().event == "complete", run.result()


@contextlib.contextmanager
def server_in(flavor: str, place: Path, options: Mapping[str, object] | None = None) -> Iterator[RunningServer]:
    started = servers.start(flavor, place / flavor, options=options)
    try:
        yield started
    finally:
        started.kill()


def test_elsewhere_free_disk_space_is_known_by_the_servers_word_or_not_at_all(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that is here, too, says nothing; MariaDB's plugin does, to who has FILE."""
    plugin = binaries.mariadb_disks()
    if plugin is None:
        missing("MariaDB's plugin disks is not here. Run: python3 -m sandbox.install keyring")
    options = {"plugin-dir": plugin.parent, "plugin-load-add": plugin.name} if server.flavor == "mariadb" else {}
    with server_in(server.flavor, tmp_path, options) as on:
        database = create_database(on)
        fill(database)
        assert free_disk(database, "1T").startswith("ok:")
        monkeypatch.setattr(disk.socket, "gethostname", lambda: "another")
        assert "how much is free cannot be seen from here" in free_disk(database, "1T")
        if plugin and server.flavor == "mariadb":
            database.admin.execute_raw(f"GRANT FILE ON *.* TO '{database.user}'@'%'")
            with connect(database.url) as session:
                told = {each.free for each in disk.disks(session)}
            assert [abs(each - shutil.disk_usage(tmp_path).free) < 1 << 30 for each in told] == [True]


def free_disk(database: Database, least: str) -> str:
    with connect(database.url) as session:
        plan = make_plan(session, make_spec(table="t", alter=ALTER, min_disk_free=least))
    return next(f"{check.verdict}: {check.sentence}" for check in plan.checks if check.name == "free disk")


def test_a_log_of_another_length_is_another_servers(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same name, in the same place, on a machine of the same name: as in a container beside it."""
    with connect(database.url) as session:
        file, end = disk._end_of_log(session, inspect(session).log_status)
        monkeypatch.setattr(disk, "_end_of_log", lambda *_: (file, end + (1 << 20)))
        assert disk.disks(session) == ()


def beat(session: Session, run: Run) -> int:
    return int(session.value(f"SELECT beat FROM {SIDECAR}.gate WHERE workflow=%s", (run.workflow,)))


def stays_held(session: Session, run: Run, words: str) -> None:
    """For some looks more, which are as many as beats at the most."""
    until = beat(session, run) + 12
    while beat(session, run) < until:
        assert words in reason(session, run)
        assert run.is_going


REFUSED = [
    ({"throttle_query": "SELECT writes()"}, "cannot be asked"),
    ({"max_load": "Threads_runing=3"}, "no status variable Threads_runing"),
    ({"critical_load": "Rsa_public_key=3"}, "no status variable Rsa_public_key"),
    ({"throttle_query": "SELECT nothing FROM nowhere"}, "cannot be asked"),
    ({"throttle_query": "SELECT 'many'"}, "is no number"),
    ({"max_lag": 1}, "lists no replica"),
    ({"max_lag": 1, "lag_replicas": "127.0.0.1:1"}, "Replica 127.0.0.1:1 cannot be asked"),
]


def test_what_can_never_be_asked_is_refused(app: Session, database: Database) -> None:
    """A query that writes is one of them, and has written nothing."""
    app.execute_raw("CREATE TABLE busy (n INT)")
    name = f"`{database.name}`.writes"
    body = "BEGIN INSERT INTO busy VALUES (1); RETURN 0; END"
    database.admin.execute_raw(f"CREATE FUNCTION {name}() RETURNS INT DETERMINISTIC MODIFIES SQL DATA {body}")
    database.admin.execute_raw(f"GRANT EXECUTE ON `{database.name}`.* TO `{database.user}`@`%`")
    for given, words in REFUSED:
        with connect(database.url) as session:
            plan = make_plan(session, make_spec(table="t", alter=ALTER, **given))
        said = [check.sentence for check in plan.checks if check.verdict is Verdict.REFUSE]
        assert [words in each for each in said] == [True], (given, said)
    assert app.value("SELECT COUNT(*) FROM busy") == 0

"""Fixtures: a real server of each flavor, for each test a schema of its own with least-privilege users, and a Kafka.

What must stay true: a server is started when the first test asks for it, once a run, and stopped by its process id; a
server that is missing skips its tests visibly, and fails them in CI; there is one Airflow, and no longer than its tests
need it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.nodeid import coerce_node_id
from hypothesis import settings

from sandbox import binaries, servers
from sandbox.databases import Database, create_database
from sandbox.deployment import Deployment
from sandbox.kafka import Cluster
from sandbox.servers import RunningServer
from tests.support import every_case, in_memory, running_airflow
from tests.support.order import is_last
from tests.support.pairs import DIRECTIONS
from tests.support.private_kafka import private_kafka
from tests.support.private_server import is_older, missing, private_server
from vreplication import pausepoints
from vreplication.mysql.url import parse
from vreplication.schema import stand_in

# A machine that only tells good from bad draws the same cases each time; a person's runs go on looking for new ones.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("person", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "person")

DSN_VARIABLE = "VREPLICATION_TEST_DSN"


SEED_VARIABLE = "VREPLICATION_SEED"
EVERY_CASE = every_case.VARIABLE
_SERVERS, _DIRECTIONS = -1, -2
"""In the place of a parameter's number: tests whose cases take turns between servers, and between directions."""


def pytest_report_header() -> str:
    return f"random kills: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


def pytest_configure(config: pytest.Config) -> None:
    # In the environment, so that the processes of pytest-xdist have the same.
    os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(1 << 32)))
    # Nearly all tests are of the online way, with ALTERs that a server could do in an instant.
    os.environ.setdefault("VREPLICATION_AUTO_STRATEGY", "online")
    # Logs and what catch-up puts aside: neither into a person's home, nor where another worker's go.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="vreplication-state-")
    _collect_seldom()
    config.addinivalue_line(
        "markers", "only_on(flavor, since=(major, minor)): needs what one flavor alone has ('mariadb' or 'mysql')"
    )
    config.addinivalue_line(
        "markers", f"in_turn: half of its cases, each value on both servers or on one in turn; all with {EVERY_CASE}=1"
    )
    config.addinivalue_line("markers", f"seldom: costs more than it says beyond others; only with {EVERY_CASE}=1")
    config.addinivalue_line(
        "markers",
        f"either: each case on one of the servers (of those between two: half of the directions), a module's tests in "
        f"turn; on both with {EVERY_CASE}=1",
    )


def _collect_seldom() -> None:
    """Looking for garbage is a thirtieth of all CPU time otherwise, most of it in processes that only just import."""
    gc.set_threshold(50_000, 20, 50)
    here = str(Path(__file__).parent / "support" / "seldom")
    there = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in there:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, *there]))


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _take_turns(config, items)
    for item in items:
        _skip_other_flavor(item)
        if item.get_closest_marker("spark"):
            # One worker runs them all: a JVM takes half a gigabyte and seconds to start.
            item.add_marker(pytest.mark.xdist_group("spark"))
        if "kafka_cluster" in getattr(item, "fixturenames", ()):
            # And these three brokers.
            item.add_marker(pytest.mark.xdist_group("kafka_cluster"))
        if "airflow" in getattr(item, "fixturenames", ()):
            # And this Airflow, which would run to the end of the session where one that needs it is not in the group.
            item.add_marker(pytest.mark.xdist_group(running_airflow.GROUP))
        if config.getoption("loadgroup", False):
            _keep_together(item)


def _take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    if every_case.is_every():
        return
    seen: dict[tuple[str, int], list[str]] = defaultdict(list)
    _note_directions(items, seen)
    out = {item for item in items if _is_left_out(item, seen)}
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=list(out))


def _is_left_out(item: pytest.Item, seen: dict[tuple[str, int], list[str]]) -> bool:
    # Turns first: which case of a test is whose turn does not hang on which are seldom.
    return _is_anothers_turn(item, seen) or item.nodeid in every_case.SELDOM


def _is_anothers_turn(item: pytest.Item, seen: dict[tuple[str, int], list[str]]) -> bool:
    """Of a product of values, where their places add up to an odd number: each value stays, of three each pair."""
    if item.get_closest_marker("seldom"):
        return True
    marker = item.get_closest_marker("in_turn")
    if marker is None:
        return _is_on_the_other_server(item, seen)
    return _any_flavor(item) != marker.args[0] if marker.args else sum(_places(item, seen)) % 2 == 1


def _is_on_the_other_server(item: pytest.Item, seen: dict[tuple[str, int], list[str]]) -> bool:
    if not item.get_closest_marker("either") or item.get_closest_marker("only_on"):
        return False
    test = item.nodeid.partition("[")[0]
    # Turns of their own: whose turn it is on one server does not hang on tests between two.
    of = _SERVERS if _flavor(item) else _DIRECTIONS
    if of == _DIRECTIONS and len(seen[test, _DIRECTIONS]) < 2:
        return False
    return (_place(seen[test.partition("::")[0], of], test) + sum(_places(item, seen))) % 2 == 1


def _note_directions(items: list[pytest.Item], seen: dict[tuple[str, int], list[str]]) -> None:
    """A test that goes one way only has no turn."""
    for item in items:
        ids = item.callspec._idlist if hasattr(item, "callspec") else ()
        for way in set(ids) & set(DIRECTIONS):
            _place(seen[item.nodeid.partition("[")[0], _DIRECTIONS], way)


def _places(item: pytest.Item, seen: dict[tuple[str, int], list[str]]) -> Iterator[int]:
    """Of each parameter of a test's (the server is one), which of its values this is."""
    for at, value in enumerate(item.callspec._idlist):  # type: ignore[attr-defined]
        yield _place(seen[item.nodeid.partition("[")[0], at], value)


def _place(values: list[str], value: str) -> int:
    if value not in values:
        values.append(value)
    return values.index(value)


def pytest_collection_finish() -> None:
    """What is in memory by now stays there: no collection of garbage need look through thousands of tests again."""
    _keep_in_memory()
    if "airflow" in sys.modules and "AIRFLOW_HOME" not in os.environ:
        # Its home is fixed when it is first imported: that would be the developer's.
        raise pytest.UsageError("A test file imports Airflow when it is collected; see tests/dags/alone.py.")


def _keep_in_memory() -> None:
    """Catch-up collects garbage at each start, in these processes too, and a test may begin it hundreds of times."""
    gc.collect()
    gc.freeze()


def _keep_together(item: pytest.Item) -> None:
    """What pytest-xdist 3.8 does itself, in an attribute that pytest 9.2 does not read any more."""
    groups = sorted({str(marker.args[0]) for marker in item.iter_markers("xdist_group")})
    if running_airflow.GROUP in groups:
        # A second Airflow, beside the first and on another worker, would be all that two cores can carry.
        groups = [running_airflow.GROUP]
    if groups and "@" not in item.nodeid.rpartition("]")[2]:
        item._id = coerce_node_id(f"{item.nodeid}@{'_'.join(groups)}")  # type: ignore[attr-defined]


def _skip_other_flavor(item: pytest.Item) -> None:
    marker, flavor = item.get_closest_marker("only_on"), _flavor(item)
    if marker and flavor and flavor != marker.args[0]:
        item.add_marker(pytest.mark.skip(reason=f"only on {marker.args[0]}"))
    elif marker and flavor and is_older(flavor, marker.kwargs.get("since", (0, 0))):
        item.add_marker(pytest.mark.skip(reason=f"not on this version of {flavor}"))


def _flavor(item: pytest.Item) -> str | None:
    return getattr(item, "callspec", None) and item.callspec.params.get("server")  # type: ignore[attr-defined]


def _any_flavor(item: pytest.Item) -> str | None:
    """Also of a server that another fixture starts."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value for value in values if value in binaries.FLAVORS), None)


@pytest.fixture(scope="session", params=binaries.FLAVORS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server of each flavor; VREPLICATION_TEST_DSN (URLs of administrators, space-separated) names your own."""
    if os.environ.get(DSN_VARIABLE):
        yield _own_server(request.param, os.environ[DSN_VARIABLE].split())
        return
    # As on a machine of four cores, where rows of large tables go through a stand-in (schema/stand_in.py).
    options = {"thread-pool-size": stand_in.LEAST_CORES} if request.param == "mariadb" else None
    with private_server(request.param, options) as started:
        yield started


@pytest.fixture
def database(server: RunningServer) -> Iterator[Database]:
    """A fresh schema, dropped afterwards with everything that is open in it."""
    made = create_database(server)
    try:
        yield made
    finally:
        made.drop()


_AIRFLOW, _KAFKA_CLUSTER = contextlib.ExitStack(), contextlib.ExitStack()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Cluster]:
    """One broker that lives as long as the run; each test has topics of its own there."""
    with private_kafka() as started:
        yield started


@pytest.fixture(scope="session")
def _three_brokers() -> Iterator[Cluster]:
    yield _KAFKA_CLUSTER.enter_context(private_kafka(3))
    _KAFKA_CLUSTER.close()


@pytest.fixture
def kafka_cluster(_three_brokers: Cluster) -> Cluster:
    """Three brokers that may be killed, stopped and frozen: whatever the test before did, all of them live."""
    _three_brokers.restore()
    return _three_brokers


@pytest.fixture(scope="session")
def pauses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pause points of every task in Airflow."""
    return tmp_path_factory.mktemp("pauses")


@pytest.fixture(scope="session")
def airflow(pauses: Path) -> Iterator[Deployment]:
    """A real Airflow, the same for all tests."""
    home = Path(_AIRFLOW.enter_context(in_memory.temporary("vreplication-airflow-")))
    yield _AIRFLOW.enter_context(running_airflow.running(home, {pausepoints.VARIABLE: str(pauses)}))
    _AIRFLOW.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What takes a twentieth of a core though it is idle ends with the last test that needs it."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _keep_in_memory()
    if is_last(item, _needs_airflow):
        _AIRFLOW.close()
    if is_last(item, _needs_kafka_cluster):
        _KAFKA_CLUSTER.close()


def _needs_airflow(item: pytest.Item) -> bool:
    return any(running_airflow.GROUP in marker.args for marker in item.iter_markers("xdist_group"))


def _needs_kafka_cluster(item: pytest.Item) -> bool:
    return "kafka_cluster" in getattr(item, "fixturenames", ())


def _own_server(flavor: str, urls: list[str]) -> RunningServer:
    for url in urls:
        found = servers.adopt(parse(url))
        if found.flavor == flavor:
            return found
    missing(f"{DSN_VARIABLE} names no {flavor} server")

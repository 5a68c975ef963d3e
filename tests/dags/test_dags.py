"""The DAG files as a dag-processor reads them: quickly and without a connection; their shape is relied on."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from alone import OFFLINE, ROOT, in_airflow

from sandbox.deployment import POOLS
from vreplication.workflows.registry import COMMANDS, KINDS, WorkflowKind

_READ = f"""{OFFLINE}
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
heavy = sorted(m for m in ("pyspark", "pandas", "pymysqlreplication") if m in sys.modules)

def task(t):
    return {{"pool": t.pool, "retries": t.retries, "down": sorted(t.downstream_task_ids),
            "outlets": [o.name for o in t.outlets], "has_policy": bool(t.retry_policy),
            "rule": t.trigger_rule.value}}

tell({{
    "errors": bag.import_errors, "heavy": heavy,
    "dags": {{d.dag_id: {{"tasks": {{t.task_id: task(t) for t in d.tasks}}, "active": d.max_active_runs,
                        "params": {{n: d.params.get_param(n).schema for n in d.params}}, "catchup": d.catchup,
                        "descriptions": {{n: d.params.get_param(n).description for n in d.params}},
                        "defaults": {{n: d.params.get_param(n).value for n in d.params}}}}
             for d in bag.dags.values()}},
}})
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home: Path = tmp_path_factory.mktemp("dagbag")
    read: dict[str, Any] = in_airflow(home, _READ, str(ROOT / "dags"), fresh=True)
    return read


def test_every_file_imports_without_a_connection(found: dict[str, Any]) -> None:
    assert found["errors"] == {}
    assert set(found["dags"]) == {
        *KINDS,
        "backfill",
        *COMMANDS,
        "consume",
        "scale_changefeed",
        "scheduled_migrations",
        "housekeeping",
    }


def test_reading_them_loads_nothing_heavy(found: dict[str, Any]) -> None:
    """What they cost beside `import airflow.sdk`, bench/dag_files.py measures."""
    assert found["heavy"] == []


_RETRIES = {
    "replicate": 20,
    "verify": 20,
    "gate": 20,
    "approve": 20,
    "reverse_stream": 20,
    "revert_window": 20,
    "stream": 1_000_000,
}
_POOLS = {
    "replicate": "vreplication_replicate", "reverse_stream": "vreplication_replicate", "copy": "vreplication_copy",
    "verify": "vreplication_copy", "revert_window": "vreplication_replicate", "stream": "vreplication_feed",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_shape_of_each_kind(found: dict[str, Any], kind: WorkflowKind) -> None:
    """The command and a plan go by the same stages: tests/unit/test_stages.py, tests/unit/test_move_spec.py."""
    tasks = found["dags"][kind.name]["tasks"]
    behind = {stage.name: sorted(s.name for s in kind.stages if stage.name in s.after) for stage in kind.stages}
    if "gate" in behind:
        behind |= {"verify": ["approve", *behind["verify"]], "approve": []}
    if kind.tasks.keep_level:
        behind |= {"clean_up": ["revert_window"], "revert_window": []}
    assert {name: task["down"] for name, task in tasks.items()} == {"plan": ["prepare"], **behind}
    assert {name: task["pool"] for name, task in tasks.items()} == {n: _POOLS.get(n, "default_pool") for n in tasks}
    assert {name: task["retries"] for name, task in tasks.items()} == {name: _RETRIES.get(name, 3) for name in tasks}
    assert all(task["has_policy"] for task in tasks.values())
    rules = {name: task["rule"] for name, task in tasks.items() if task["rule"] != "all_success"}
    assert rules == ({"clean_up": "all_done"} if "gate" in behind else {})
    if "clean_up" in tasks:
        assert tasks["clean_up"]["outlets"] == ["vreplication_table_migrated", "vreplication_tables"]


def test_consumers_take_the_places_of_feeds_and_are_tried_for_ever(found: dict[str, Any]) -> None:
    tasks = found["dags"]["consume"]["tasks"]
    assert tasks["plan"]["down"] == ["consume"]
    assert {n: tasks["consume"][n] for n in ("pool", "retries")} == {
        "pool": "vreplication_feed", "retries": 1_000_000,
    }  # fmt: skip


def test_a_lake_takes_the_place_of_a_feed_and_is_tried_for_ever(found: dict[str, Any]) -> None:
    tasks = found["dags"]["lake"]["tasks"]
    assert {n: tasks["fill"][n] for n in ("pool", "retries")} == {"pool": "vreplication_feed", "retries": 1_000_000}
    for name, known in COMMANDS.items():
        assert set(known.spec.model_fields) <= set(found["dags"][name]["params"])


def test_backfills_take_places_of_their_own(found: dict[str, Any]) -> None:
    tasks = found["dags"]["backfill"]["tasks"]
    assert {name: task["pool"] for name, task in tasks.items()} == {
        "choose": "default_pool", "copy": "vreplication_backfill",
    }  # fmt: skip
    assert tasks["copy"]["retries"] == 3
    pools = {task["pool"] for dag in found["dags"].values() for task in dag["tasks"].values()}
    assert pools == {"default_pool", *POOLS}


def test_the_form_of_online_ddl(found: dict[str, Any]) -> None:
    params = found["dags"]["online_ddl"]["params"]
    assert params["cutover"]["enum"] == ["auto", "manual", "window"]
    assert params["alter"]["minLength"] == 1
    # What has no section is unfolded, and Airflow unfolds nothing else by itself.
    assert [name for name, schema in params.items() if "section" not in schema] == [
        "source_conn_id", "table", "alter", "cutover", "cutover_window", "workflow",
    ]  # fmt: skip
    assert params["copy_parallelism"]["maximum"] == 64


_LIMITS = {"minimum": "ge", "maximum": "le"}


def _fields() -> list[tuple[str, str]]:
    return [(kind.name, name) for kind in KINDS.values() for name in sorted(kind.spec.model_fields)]


@pytest.mark.parametrize(("kind", "name"), _fields())
def test_the_form_asks_what_a_spec_takes(found: dict[str, Any], kind: str, name: str) -> None:
    dag, field = found["dags"][kind], KINDS[kind].spec.model_fields[name]
    schema, default = dag["params"][name], dag["defaults"][name]
    limits = {each: getattr(m, each) for m in field.metadata for each in _LIMITS.values() if hasattr(m, each)}
    assert {each: schema.get(word) for word, each in _LIMITS.items()} == {k: limits.get(k) for k in _LIMITS.values()}
    choices = list(get_args(field.annotation)) if get_origin(field.annotation) is Literal else None
    # `window` is a manual cut-over to a spec, and has a field of its own; a Spark master may be a connection's.
    assert schema.get("enum") == ([*choices, "window"] if choices and name == "cutover" else choices)
    known = None if field.is_required() or name == "spark_master" else field.default
    assert field.is_required() or default == (list(known) if isinstance(known, tuple) else known)
    assert ("null" in schema["type"]) == (known is None and not field.is_required())


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_param_is_a_specs_or_a_connection(found: dict[str, Any], kind: WorkflowKind) -> None:
    params = found["dags"][kind.name]["params"]
    servers = {f"{end}_conn_id" for end in (*kind.ends, *kind.optional)}
    others = {"sink_conn_id"} if kind.has_sink else {"spark_conn_id"}
    assert set(params) == {*kind.spec.model_fields, *others, *servers}
    assert all("title" in schema and "type" in schema for schema in params.values())
    assert [name for name, text in found["dags"][kind.name]["descriptions"].items() if not text or "`" in text] == []


def test_catch_up_takes_fewer_than_half_of_the_executors_places() -> None:
    """Or copies would find none; and the short tasks need some, too."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "airflow.cfg")
    parallelism = config.getint("core", "parallelism")
    assert 2 * POOLS["vreplication_replicate"] < parallelism
    assert sum(POOLS.values()) < parallelism

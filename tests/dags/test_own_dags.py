"""Groups in somebody's own DAG: the example of docs/own-dags.md, read as the dag-processor reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alone import OFFLINE, ROOT, in_airflow

from sandbox.databases import Database
from sandbox.deployment import POOLS
from sandbox.install import find_uv
from tests.support.private_server import missing

_READ = f"""{OFFLINE}
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag

bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
dag = bag.dags["add_a_column"]
context = {{"params": {{"column": "region"}}, "dag": dag, "run_id": "run-1"}}

def asked(name):
    task = dag.get_task(f"change.{{name}}")
    task.render_template_fields(context)
    found = task.read(context)
    return [found.spec.alter, found.spec.revert_window, found.spec.workflow, found.conn_id, found.cutover, found.window]

tell({{
    "behind": {{t.task_id: sorted(t.upstream_task_ids) for t in dag.tasks}},
    "asked": [asked(name) for name in ("plan", "copy", "approve", "revert_window")],
    "approval": dag.get_task("change.clean_up").approval,
    "pools": {{dag.get_task(f"change.{{name}}").pool for name in ("copy", "verify")}} == {{"vreplication_copy"}},
}})
"""
_WRONG = """
from airflow.sdk import DAG
from vreplication.airflow.groups import MoveTablesGroup, OnlineDdlGroup

def told(make):
    try:
        with DAG("d"):
            make()
    except TypeError as error:
        return str(error)

tell([
    told(lambda: OnlineDdlGroup("a", table="orders", alter="ADD x INT", cut_over="auto")),
    told(lambda: OnlineDdlGroup("a", table="orders")),
    told(lambda: MoveTablesGroup("a", tables=["orders"], target_conn_id="new")),
])
"""
_PROVIDER = """
from vreplication.airflow.provider import get_provider_info

before = get_provider_info()["connection-types"]
sys.path.insert(0, sys.argv[1])
tell([before, get_provider_info()["connection-types"]])
"""
_BESIDE = """
import threading
from airflow.providers.mysql.hooks.mysql import MySqlHook
from airflow.providers_manager import ProvidersManager
from types import SimpleNamespace
from vreplication.airflow import operators
from vreplication.airflow.hooks import SourceHook

manager = ProvidersManager()
name = operators.PlanOperator(task_id="plan").read(
    {"params": {"source_conn_id": "shop", "table": "t", "alter": "ADD x INT", "cutover": "auto"},
     "run_id": "r", "dag": SimpleNamespace(dag_id="online_ddl")}
).stage(threading.Event()).url.database
with SourceHook("shop").get_conn() as session:
    ours = session.rows("SELECT id, DATABASE() FROM t")
theirs = MySqlHook("shop").get_records("SELECT id, DATABASE() FROM t")
tell({
    "providers": sorted(each for each in manager.providers if "mysql" in each or each == "vreplication"),
    "hook": manager.hooks["mysql"].hook_class_name,
    "links": [each for each in manager.extra_links_class_names if "vreplication" in each],
    "database": name, "ours": ours, "theirs": theirs,
})
"""
_IS_BUNDLE = """
from airflow.dag_processing.bundles.base import BaseDagBundle
from importlib import import_module

module, _, name = sys.argv[1].rpartition(".")
tell(issubclass(getattr(import_module(module), name), BaseDagBundle))
"""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The first block of the page, as a file among DAGs."""
    found = re.search(r"^```python\n(.*?)^```$", (ROOT / "docs/own-dags.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "example.py").write_text(found[1])
    return folder


def test_the_example_of_the_documentation(example: Path, tmp_path: Path) -> None:
    found: dict[str, Any] = in_airflow(tmp_path / "home", _READ, str(example))
    # Not behind `approve`, which is skipped, nor behind `revert_window`, which lasts for a day.
    assert found["behind"]["tell"] == ["change.clean_up"]
    assert found["behind"]["change.cut_over"] == ["change.gate", "change.replicate"]
    assert found["approval"] == "change.approve"
    assert found["pools"]
    alter, window, workflow, *rest = found["asked"][0]
    assert (alter, window) == ("ADD region VARCHAR(16) NOT NULL DEFAULT 'eu'", "24h")
    assert re.fullmatch(r"airflow-[0-9a-f]{16}", workflow), "several groups of a run would be one workflow"
    assert rest == ["shop", "window", "02:00-04:00 Europe/Berlin"]
    assert found["asked"] == [found["asked"][0]] * 4


def test_what_is_wrong_with_a_group_is_told_when_the_dag_is_read(tmp_path: Path) -> None:
    unknown, missing, right = in_airflow(tmp_path, _WRONG)
    assert unknown.startswith("OnlineDdlGroup 'a': cut_over is none of source_conn_id, ")
    assert missing == "OnlineDdlGroup 'a': alter is needed."
    assert right is None


def test_the_type_of_connections_is_left_to_the_provider_of_mysql(tmp_path: Path) -> None:
    installed = tmp_path / "site" / "apache_airflow_providers_mysql-6.5.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-airflow-providers-mysql\nVersion: 6.5.0\n")
    alone, beside = in_airflow(tmp_path / "home", _PROVIDER, str(installed.parent))
    assert [found["connection-type"] for found in alone] == ["mysql"]
    assert beside == []


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
def test_hooks_live_beside_those_of_the_provider_of_mysql(database: Database, tmp_path: Path) -> None:
    """The real one, from the registry, by its driver that is not compiled here; a connection of theirs is ours, too."""
    uv = find_uv() or missing("uv is not installed")
    wanted = ["apache-airflow-providers-mysql<6.7", "mysql-connector-python"]
    subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "site"), *wanted], check=True)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    database.admin.execute_raw("INSERT INTO t VALUES (1),(2)")
    url = database.url
    connection = {
        "conn_type": "mysql", "host": url.host, "port": url.port, "login": url.user, "password": url.password,
        "schema": url.database, "extra": {"client": "mysql-connector-python"},
    }  # fmt: skip
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {"PYTHONPATH": path, "AIRFLOW_CONN_SHOP": json.dumps(connection)}
    found = in_airflow(tmp_path / "home", _BESIDE, settings=settings, fresh=True)
    assert found["providers"] == ["apache-airflow-providers-mysql", "vreplication"]
    assert found["hook"] == "airflow.providers.mysql.hooks.mysql.MySqlHook"
    assert found["links"] == ["vreplication.airflow.links.MigrationLink"]
    assert found["database"] == url.database
    assert found["ours"] == found["theirs"] == [[1, url.database], [2, url.database]]


def test_the_values_for_helm_have_our_pools_and_our_bundle(tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "docs/examples/helm-values.yaml").read_text())
    pools = json.loads(yaml.safe_load(values["extraConfigMaps"]["vreplication-pools"]["data"])["pools.json"])
    assert {name: pool["slots"] for name, pool in pools.items()} == POOLS
    bundles = values["dagProcessor"]["dagBundleConfigList"]
    assert in_airflow(tmp_path, _IS_BUNDLE, bundles[1]["classpath"]), "no such bundle"

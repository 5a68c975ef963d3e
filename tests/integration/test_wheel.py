"""The built wheel in an environment that has nothing else: what a person gets who has no clone of the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from sandbox.install import ROOT, find_uv
from tests.support.private_server import missing
from vreplication import __version__
from vreplication.state import layout

_LOOK = """
import importlib.metadata, json
from pathlib import Path
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag
from airflow.plugins_manager import get_fastapi_plugins
from vreplication.state import layout
from vreplication.ui import app

folder = DagBundlesManager().get_bundle("vreplication").path
bag = DagBag(folder)
static = Path(app.__file__).parent / "static"
print(json.dumps({
    "tables": sorted(layout.names()),
    "version": layout.VERSION,
    "migrations": sorted(path.name for path in layout._folder("migrations").iterdir()),
    "lacking": [name for name in app.STATIC if not (static / name).is_file()],
    "templates": len(app.Environment(loader=app.PackageLoader("vreplication.ui")).list_templates()),
    "dags": sorted(bag.dags),
    "errors": bag.import_errors,
    "folders": sorted({task.folder for dag in bag.dags.values() for task in dag.tasks if hasattr(task, "folder")}),
    "apps": [found["name"] for found in get_fastapi_plugins()[0]],
}))
"""
_BUNDLES = [{"name": "vreplication", "classpath": "vreplication.airflow.bundle.PackagedDags", "kwargs": {}}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment with the wheel and what it asks for. home: an empty folder to stand in."""

    programs: Path
    home: Path

    def run(self, name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Without the repository on its path, and nothing of ours in its environment."""
        kept = ("HOME", "LANG", "JAVA_HOME", "TMPDIR")
        around = {name: os.environ[name] for name in kept if name in os.environ}
        here = {
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(_BUNDLES),
        }
        command = [str(self.programs / name), *words]
        return subprocess.run(
            command,
            env=around | here | environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """What the wheel needs comes as the lock says, out of uv's cache: no registry is asked."""
    uv = find_uv() or missing("uv is not installed")
    home = tmp_path_factory.mktemp("wheel")
    place = home / "environment"
    _uv(uv, "build", "--wheel", "--out-dir", str(home), str(ROOT))
    _uv(uv, "sync", "--frozen", "--no-dev", "--no-install-project", place=place)
    wheel = next(home.glob("*.whl"))
    python = ["--python", str(place / "bin/python")]
    _uv(uv, "pip", "install", "--no-deps", "--offline", *python, str(wheel))
    # What it says that it needs is what the lock has.
    _uv(uv, "pip", "check", *python)
    (home / "empty").mkdir()
    yield Installed(programs=place / "bin", home=home / "empty")
    shutil.rmtree(place)


def _uv(uv: str, *words: str, place: Path | None = None) -> None:
    more = {"UV_PROJECT_ENVIRONMENT": str(place)} if place else {}
    environment = os.environ | {"UV_COMPILE_BYTECODE": "0"} | more
    done = subprocess.run(
        [uv, "--quiet", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_it_runs_and_refuses(installed: Installed) -> None:
    version = installed.run("vreplication", "--version")
    assert (version.returncode, version.stdout) == (0, f"vreplication {__version__}\n"), version.stderr
    refused = installed.run("vreplication", "plan", "online-ddl", "--table", "orders", "--alter", "ADD note TEXT")
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.startswith("vreplication: No source is given.")


def test_everything_that_is_no_module_is_there(installed: Installed) -> None:
    """The sidecar's tables, the page's files, the DAGs by their bundle, and the page itself for Airflow."""
    looked = installed.run("python", "-c", _LOOK)
    assert looked.returncode == 0, looked.stderr[-3000:]
    found: dict[str, Any] = json.loads(looked.stdout.splitlines()[-1])
    assert found["tables"] == sorted(layout.names())
    assert len(found["migrations"]) == found["version"] - 1
    assert found["lacking"] == []
    assert found["templates"] == len(list((ROOT / "vreplication/ui/templates").iterdir()))
    assert found["errors"] == {}
    assert found["dags"] == sorted(path.stem for path in (ROOT / "dags").glob("*.py"))
    assert found["folders"] == [str(installed.home / "airflow/migrations")]
    assert found["apps"] == ["vreplication"]


@pytest.mark.either
def test_it_changes_a_table_with_spark(installed: Installed, database: Database) -> None:
    """Of the program's own modules Spark's workers have those of the wheel alone."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    database.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n})" for n in range(500)))
    login = {"VREPLICATION_SOURCE": str(database.user_url), "VREPLICATION_PASSWORD": database.url.password}
    words = ("online-ddl", "--table", "t", "--alter", "ADD COLUMN w INT NOT NULL DEFAULT 3", "--strategy", "online")
    ended = installed.run("vreplication", *words, "--copy-path", "rows", "--yes", "--json", **login)
    assert ended.returncode == 0, (ended.stdout[-2000:], ended.stderr[-2000:])
    assert json.loads(ended.stdout.splitlines()[-1])["rows_copied"] == 500
    assert database.admin.value("SELECT SUM(w) FROM t") == 1_500

"""Code in a process of its own with an Airflow of its own: nothing of the developer's is read or written.

What must stay true: Airflow reads its settings when it is imported, so each call is a new process; Airflow logs to
standard output, too, so what the code has to say goes through `tell`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_MARK = "TOLD "
_TELL = f"""
import json, sys

def tell(value):
    print({_MARK!r} + json.dumps(value, default=str))
"""
OFFLINE = """
import socket

def refuse(*args, **kwargs):
    raise AssertionError("a connection is opened")

socket.create_connection = socket.socket.connect = refuse
"""
"""In front of code that may not connect to anything."""
LOAD = f"""{OFFLINE}
import importlib.util
from airflow.sdk import DAG, BaseHook

spec = importlib.util.spec_from_file_location("dag_file", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
dag = getattr(module, sys.argv[2])()
"""
"""In front of code about `dag`: the words of the call are those of `dag_words`."""


def dag_words(dag: str) -> tuple[str, str]:
    return str(ROOT / "dags" / f"{dag}.py"), dag


def in_airflow(
    home: Path, code: str, *words: str, settings: Mapping[str, str] | None = None, timeout: float = 120
) -> Any:
    """What `code` tells last. `settings`: environment variables."""
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _TELL + code, *words],
        env=_environment(home, settings or {}), capture_output=True, text=True, timeout=timeout, cwd=home, check=False,
    )  # fmt: skip
    (home / "output.log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    return json.loads(told[-1].removeprefix(_MARK))


def _environment(home: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Connections from the environment stay: AIRFLOW_CONN_…"""
    around = {n: v for n, v in os.environ.items() if not n.startswith("AIRFLOW__") and n != "AIRFLOW_HOME"}
    return {
        **around,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "VREPLICATION_MIGRATIONS": str(home / "not_read_at_import"),
        **settings,
    }

"""Code in a process of its own with an Airflow of its own: nothing of the developer's is read or written.

What must stay true: each call is a new process; nothing of ours has been imported there. It is forked from one that has
imported Airflow, which takes 2 seconds; what Airflow reads when it is imported, its database among it, only a call
that is `fresh` has for itself. Airflow logs to standard output, too, so what the code has to say goes through `tell`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
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
    home: Path,
    code: str,
    *words: str,
    settings: Mapping[str, str] | None = None,
    timeout: float = 120,
    fresh: bool = False,
) -> Any:
    """What `code` tells last. `settings`: environment variables. fresh: Airflow is imported with them."""
    home.mkdir(exist_ok=True)
    environment = _environment(home, settings or {})
    run = _run_fresh if fresh else _run_forked
    status, out, err = run(home, environment, [_TELL + code, *words], timeout)
    (home / "output.log").write_text(out + err)
    assert status == 0, err[-3000:]
    told = [line for line in out.splitlines() if line.startswith(_MARK)]
    return json.loads(told[-1].removeprefix(_MARK))


def _run_fresh(home: Path, environment: Mapping[str, str], words: list[str], timeout: float) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", *words],
        env=environment, capture_output=True, text=True, timeout=timeout, cwd=home, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


_FORKS = """
import json, os, sys, traceback

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, BaseHook
from airflow.sdk.execution_time import task_runner

def run(asked):
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["home"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    code, *sys.argv[1:] = asked["words"]
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})

def end(asked):
    status = 1
    try:
        run(asked)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

for line in sys.stdin:
    child = os.fork() or end(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""
"""Forks for each line that it reads, and says how that one ended."""


def _run_forked(home: Path, environment: Mapping[str, str], words: list[str], timeout: float) -> tuple[int, str, str]:
    forks = _forks()
    asked = {"environment": dict(environment), "home": str(home), "words": words}
    print(json.dumps(asked), file=forks.stdin, flush=True)
    if not select.select([forks.stdout], [], [], timeout)[0]:
        _end(forks)
        _forks.cache_clear()
        raise TimeoutError(f"the code has not ended within {timeout:.0f} seconds")
    assert forks.stdout
    answer = forks.stdout.readline()
    return int(answer), (home / "out").read_text(), (home / "err").read_text()


@functools.cache
def _forks() -> subprocess.Popen[str]:
    """Of this process of pytest's; it ends with it."""
    home = Path(tempfile.mkdtemp(prefix="vreplication-alone-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with (home / "log").open("w") as log:
        started = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            env=_environment(home, {}), cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
    atexit.register(_end, started)
    return started


def _end(forks: subprocess.Popen[str]) -> None:
    """And what it has forked."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(forks.pid, signal.SIGKILL)
    forks.wait()


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

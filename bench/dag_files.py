"""What reading our DAG files costs a dag-processor beside `import airflow.sdk`, without which there is no DAG file.

    .venv/bin/python bench/dag_files.py

Each figure is the median of five processes; both are taken in the same process, one after the other.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 5
MEASURED = """
import importlib.util, json, sys, time

def read(path):
    spec = importlib.util.spec_from_file_location("dag_file", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

began = time.process_time()
import airflow.sdk
of_sdk = time.process_time() - began
began = time.process_time()
for path in sys.argv[1:]:
    read(path)
print("TOLD", json.dumps([of_sdk, time.process_time() - began]))
"""


def measured() -> tuple[float, float]:
    """CPU seconds of `import airflow.sdk`, and of all our files behind it."""
    files = [str(path) for path in sorted((ROOT / "dags").glob("*.py"))]
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": "/usr/bin:/bin", "HOME": home, "AIRFLOW_HOME": home, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", MEASURED, *files]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOLD "))
    of_sdk, of_files = json.loads(line.removeprefix("TOLD "))
    return of_sdk, of_files


def main() -> None:
    samples = [measured() for _ in range(PROCESSES)]
    of_sdk, of_files = (statistics.median(column) for column in zip(*samples, strict=True))
    print(f"import airflow.sdk {of_sdk:.2f} s; our DAG files {of_files:.2f} s; ratio {of_files / of_sdk:.2f}")


if __name__ == "__main__":
    main()

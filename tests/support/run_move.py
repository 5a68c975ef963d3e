"""A move of tables as a process of its own, to be killed: `python -m tests.support.run_move < JSON`.

What must stay true: it is the program's own `run`, with catch-up as a process of its own; only copy and verification do
not go through Spark, unless that is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support import local_spark
from vreplication.engine.child import route_from_line, route_line
from vreplication.mysql.ends import Route

SPARK = "--spark"
ROOT = Path(__file__).resolve().parents[2]


def start(route: Route, spec: dict[str, Any], logs: Path, *, is_spark: bool = False) -> subprocess.Popen[str]:
    """Begin, or go on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.run_move", *[SPARK] * is_spark],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(logs)},
    )
    assert process.stdin is not None
    process.stdin.write(route_line(route).decode() + json.dumps(spec) + "\n")
    process.stdin.close()
    process.stdin = None
    return process


def main() -> None:
    from vreplication.workflows.move_tables import run
    from vreplication.workflows.move_tables.spec import make_move_spec

    if SPARK not in sys.argv:
        local_spark.install()
    route = route_from_line(sys.stdin.readline().encode())
    spec = make_move_spec(**json.loads(sys.stdin.readline()))
    result = run.run(spec, route, stop=threading.Event(), notify=lambda text: print(text, flush=True))
    print(result, flush=True)
    os._exit(result.exit_code)


if __name__ == "__main__":
    main()

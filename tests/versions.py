"""`make versions`: a telling part of the tests on other versions of the servers, one version after the other.

Each version stands in the place of its flavor's own server; where two servers are asked for, the other flavor's is the
usual one. What was run, and how it ended, is the last thing that is printed.

What must stay true: one that fails does not keep the others from being tried; one that is not there fails where it was
named, and is told where it was not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from sandbox import versions
from sandbox.install import ROOT
from sandbox.versions import Version

_INTEGRATION = (
    "server_versions", "session", "binlog_types", "binlog_stream", "binlog_bulk", "binlog_stops", "binlog_connection",
    "doctor", "planning_plan", "planning_keys", "sandbox_grants", "schema_shadow", "flow_shapes", "flow_in_place",
    "flow_stand_in", "flow_foreign", "flow_triggers", "revert", "verify_live", "cutover_attempt", "cutover_lost",
    "cutover_blocked", "cutover_gate", "deny", "move_flow", "move_plan", "carry", "feed_values", "feed_cascades",
)  # fmt: skip
PARTS = (
    *(f"tests/integration/test_{name}.py" for name in _INTEGRATION),
    "tests/resume/test_kill.py",
    "tests/resume/test_move_kill.py",
)
_NOT_THERE = "not there, and not tried"
ARGUMENTS = "VREPLICATION_VERSIONS_PYTEST"
"""More words for pytest: other files, or -k."""


def main(names: Sequence[str]) -> int:
    wanted = [version for version in versions.ALL if not names or version.name in names]
    told = {version.name: _run(version) for version in wanted}
    print("\n" + "\n".join(f"{name:14} {how}" for name, how in told.items()))
    passed = [how.startswith("passed") for how in told.values() if names or how != _NOT_THERE]
    return 0 if passed and all(passed) else 1


def _run(version: Version) -> str:
    if not version.folder.exists():
        return _NOT_THERE
    began = time.monotonic()
    more = os.environ.get(ARGUMENTS, "").split()
    command = [sys.executable, "-m", "pytest", *(more or PARTS), "-k", version.flavor, "-n", "2", "--dist", "loadgroup"]
    print(f"\n{version.name}: {' '.join(command[2:])}", flush=True)
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "VREPLICATION_EVERY_CASE": "1", **version.environment}, check=False
    )
    return f"{'passed' if done.returncode == 0 else 'FAILED'} in {(time.monotonic() - began) / 60:.0f} min"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The command's first half second: a signal that arrives while the program is being loaded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys

number = int(sys.argv.pop(1))

class SendSignal:
    def find_spec(self, name, path=None, target=None):
        if name in ("vreplication.cli.main", "vreplication.cli.internal"):
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, SendSignal())
from vreplication.__main__ import main
main()
"""


def start(number: int, *args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + SCRIPT, str(int(number)), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_loading_is_an_interrupt(number: int) -> None:
    ended = start(number, "--version")
    assert ended.returncode == 130
    assert ended.stderr == "vreplication: Interrupted.\n"
    assert ended.stdout == ""


def test_a_program_hears_of_it_as_json() -> None:
    ended = start(signal.SIGTERM, "online-ddl", "--json")
    assert ended.returncode == 130
    assert json.loads(ended.stdout)["event"] == "interrupted"


def test_catch_up_hears_of_it() -> None:
    ended = start(signal.SIGTERM, "replicate", "some-id")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_catch_up_loads_nothing_that_a_person_reads() -> None:
    seen = (
        "import sys; import vreplication.cli.internal; print(sorted({'rich', 'typer', 'pyspark'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


def test_what_was_ignored_stays_ignored() -> None:
    ended = start(signal.SIGHUP, "--version", before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n")
    assert ended.returncode == 0
    assert ended.stdout.startswith("vreplication ")

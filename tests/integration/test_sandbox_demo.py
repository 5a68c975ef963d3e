"""The demo proves what is right, by the real program on real Spark; and with a stand-in for it what is wrong is not."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sandbox import demo, servers
from sandbox.demo import Demo

pytestmark = pytest.mark.either

# Called like vreplication; does the ALTER in the plain way, then the fault.
_STAND_IN = """
import os, sys
from vreplication.mysql.session import connect
from vreplication.mysql.url import parse
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with connect(parse(options["--source"]).with_password(os.environ["VREPLICATION_PASSWORD"])) as session:
    session.execute_raw(f"ALTER TABLE {options['--table']} {options['--alter']}")
    for statement in filter(None, [FAULT]):
        session.execute_raw(statement)
sys.exit(EXIT)
"""


def _run(flavor: str, folder: Path, *, fault: str = "", exit_code: int = 0) -> tuple[demo.Result, str]:
    code = _STAND_IN.replace("FAULT", repr(fault)).replace("EXIT", str(exit_code))
    shown = io.StringIO()
    result = demo.run(
        Demo(rows=2_000, flavor=flavor, folder=folder, program=(sys.executable, "-c", code)),
        Console(file=shown, width=120),
    )
    return result, shown.getvalue()


@pytest.fixture
def flavor(server: servers.RunningServer) -> str:
    """The demo starts its own server; this one says which flavors there are."""
    if not server.is_ours:
        pytest.skip("the demo starts a server of its own")
    return server.flavor


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
def test_a_right_change_is_proved(flavor: str, tmp_path: Path) -> None:
    result, shown = _run(flavor, tmp_path / "demo")
    assert result.holds, shown


@pytest.mark.seldom
@pytest.mark.only_on("mariadb")
@pytest.mark.slow
@pytest.mark.spark
def test_what_the_program_did_is_proved(flavor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    demonstrated, said = Demo(rows=20_000, flavor=flavor, folder=tmp_path / "demo"), io.StringIO()
    result = demo.run(demonstrated, Console(file=said, width=120))
    shown = said.getvalue()
    assert result.holds, shown
    assert result.proof is not None
    assert result.proof.altered.checksum == result.proof.expected.checksum
    assert result.writes_meanwhile > 0
    assert "nothing lost, nothing invented" in shown
    pid = int((tmp_path / "demo" / "pid").read_text())
    assert not demo._runs_in(pid, tmp_path / "demo")


@pytest.mark.only_on("mariadb")
def test_a_lost_row_is_not_proved(flavor: str, tmp_path: Path) -> None:
    result, shown = _run(flavor, tmp_path / "demo", fault="DELETE FROM orders WHERE id = 1")
    assert not result.holds
    assert "lost: rows [1]" in shown
    assert "NOT proved" in shown


@pytest.mark.only_on("mariadb")
def test_a_failed_command_is_not_proved(flavor: str, tmp_path: Path) -> None:
    result, shown = _run(flavor, tmp_path / "demo", exit_code=1)
    assert not result.holds
    assert "exit code 1" in shown


@pytest.mark.only_on("mariadb")
def test_a_second_demo_in_the_same_folder_is_refused(server: servers.RunningServer) -> None:
    if server.folder is None:
        pytest.skip("needs a server of ours")
    with pytest.raises(ValueError, match="another demo runs"):
        demo._make_room(server.folder)
    assert server.is_alive()

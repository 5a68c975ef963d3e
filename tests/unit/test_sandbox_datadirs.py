"""Data directories are made once and copied: none is half made, none has another server's identity or programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox import binaries, datadirs

INSTALLER = 'echo x >> "$0.runs"; mkdir "$1" && echo one > "$1/auto.cnf"; {0}; echo whole > "$1/ibdata1"'


class Programs:
    """An installer that counts its runs, and a server that ends at once."""

    def __init__(self, folder: Path) -> None:
        self.installer, self.server = folder / "installer", folder / "server"
        self.write()
        self.server.write_text("#!/bin/sh\n")
        self.server.chmod(0o755)

    def write(self, before_its_end: str = ":") -> None:
        self.installer.write_text(f"#!/bin/sh\n{INSTALLER.format(before_its_end)}\n")
        self.installer.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.installer.with_suffix(".runs").read_text().split())


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs(tmp_path)
    monkeypatch.setattr(datadirs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(binaries, "initialize_command", lambda _, data: [str(made.installer), str(data)])
    monkeypatch.setattr(binaries, "server_command", lambda _: [str(made.server)])
    return made


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache/mysql").iterdir() if path.is_dir()]


def test_once_for_all_that_ask_at_a_time(programs: Programs, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: datadirs.create("mysql", tmp_path / f"data{n}"), range(4)))
    assert programs.runs == 1
    assert [sorted(p.name for p in (tmp_path / f"data{n}").iterdir()) for n in range(4)] == [["ibdata1"]] * 4


def test_options_for_good_have_one_of_their_own(programs: Programs, tmp_path: Path) -> None:
    datadirs.create("mysql", tmp_path / "one")
    datadirs.create("mysql", tmp_path / "two", ["--lower_case_table_names=1"])
    assert programs.runs == 2


def test_half_made_is_not_copied(programs: Programs, tmp_path: Path) -> None:
    programs.write("echo no space; exit 1")
    with pytest.raises(datadirs.NotInitialized, match="no space"):
        datadirs.create("mysql", tmp_path / "one")
    assert not (tmp_path / "one").exists()
    assert kept(tmp_path) == []


def test_other_programs_make_another(programs: Programs, tmp_path: Path) -> None:
    datadirs.create("mysql", tmp_path / "one")
    before = kept(tmp_path)
    (before[0].parent / "making-by-a-killed-process").mkdir()
    programs.write("echo upgraded")
    datadirs.create("mysql", tmp_path / "two")
    assert programs.runs == 2
    assert len(kept(tmp_path)) == 1
    assert kept(tmp_path) != before

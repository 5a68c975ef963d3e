"""What Maven is told, and where what it fetches goes: no Maven, no network."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sandbox import install, kafka, kafka_jars
from sandbox.binaries import ServerMissing
from sandbox.kafka_jars import Jars

SOME = Jars(name="some-1", title="some jars", artifacts=("a.b:c:1",), there_already=("d:e", "f:g"))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def fetch(command: list[str], failure: str) -> None:
    """In Maven's place."""
    target = Path(next(word for word in command if "outputDirectory" in word).partition("=")[2])
    target.mkdir()
    (target / "c-1.jar").write_text(Path(command[command.index("-f") + 1]).read_text())


def test_maven_is_told_what_to_fetch_and_what_to_leave() -> None:
    root = ElementTree.fromstring(SOME.pom())
    (dependency,) = root.iter("dependency")
    assert [child.text for child in dependency][:3] == ["a.b", "c", "1"]
    assert [[child.text for child in found] for found in dependency.iter("exclusion")] == [["d", "e"], ["f", "g"]]


def test_jars_are_in_their_folder_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "run", fetch)
    install.fetch_jars(SOME)
    assert [file.name for file in SOME.folder.iterdir()] == ["c-1.jar"]
    assert list(SOME.folder.parent.iterdir()) == [SOME.folder]


def test_who_comes_second_leaves_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "run", fetch)
    install.fetch_jars(SOME)
    (SOME.folder / "c-1.jar").write_text("in use")
    install.fetch_jars(SOME)
    assert (SOME.folder / "c-1.jar").read_text() == "in use"


def test_a_fetch_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], failure: str) -> None:
        fetch(command, failure)
        raise install.InstallFailed(failure)

    monkeypatch.setattr(install, "run", fail)
    with pytest.raises(install.InstallFailed, match="some jars"):
        install.fetch_jars(SOME)
    assert list(SOME.folder.parent.iterdir()) == []


def test_what_is_there_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for jars in kafka_jars.ALL:
        jars.folder.mkdir(parents=True)
    (kafka_jars.BROKER.folder / kafka_jars.ARCHIVE).touch()
    monkeypatch.setattr(install, "run", lambda *_: pytest.fail("something was run"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was run"))
    install.install_kafka()


def test_a_missing_kafka_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ServerMissing, match="make install-kafka"):
        kafka.start_cluster(tmp_path / "kafka")


def test_ports_are_not_those_of_connections() -> None:
    found = kafka.free_ports(6)
    assert len(set(found)) == 6
    assert max(found) < 32_768

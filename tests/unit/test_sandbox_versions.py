"""Other versions of the servers: what is fetched from where, and that a server is started from there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sandbox import binaries, install, versions
from sandbox.versions import Version


def test_an_unknown_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert versions.main(["mysql-8.0", "oracle-23"]) == 2
    assert "'oracle-23'" in capsys.readouterr().err


def test_one_that_cannot_be_had_is_told_and_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(binaries, "PLACE", tmp_path)
    monkeypatch.setattr(install, "candidate", lambda names: None)
    monkeypatch.setattr(install, "package_installed", lambda name: name in ("debootstrap", "debian-archive-keyring"))
    fetched: list[tuple[str, str]] = []

    def unpack(folder: Path, suite: str, *_: object) -> None:
        if folder.name == "ubuntu-keys":
            raise install.InstallFailed("debootstrap failed (exit 1).")
        fetched.append((folder.name, suite))

    monkeypatch.setattr(install, "unpack_suite", unpack)
    assert versions.main(["mysql-8.0", "mariadb-11.8"]) == 1
    assert capsys.readouterr().err == "versions: mysql-8.0: debootstrap failed (exit 1).\n"
    assert fetched == [("mariadb-11.8", "trixie")]


@pytest.mark.parametrize(("flavor", "program"), [("mariadb", "mariadbd"), ("mysql", "mysqld")])
def test_a_server_is_started_from_the_folder_of_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flavor: str, program: str
) -> None:
    """And is not too old, whatever it is; its data are kept apart from those of others."""
    monkeypatch.setattr(binaries, "PLACE", tmp_path)
    version = Version(name=f"{flavor}-1.2", flavor=flavor)
    (version.folder / "usr/sbin").mkdir(parents=True)
    (version.folder / "usr/sbin" / program).touch()
    for name, value in version.environment.items():
        monkeypatch.setenv(name, value)
    assert binaries.server_command(flavor)[0] == str(version.folder / "usr/sbin" / program)
    assert f"--plugin-dir={version.folder}/usr/lib/mysql/plugin" in binaries.server_command(flavor)
    assert (binaries.name_of(flavor), binaries.oldest(flavor)) == (f"{flavor}-1.2", (0, 0))


def test_without_a_choice_it_is_what_all_tests_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for flavor in binaries.FLAVORS:
        monkeypatch.delenv(binaries.folder_variable(flavor), raising=False)
        assert (binaries.name_of(flavor), binaries.oldest(flavor)) == (flavor, binaries.OLDEST[flavor])


def test_a_jar_is_laid_as_a_distribution_does_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.jar", "w") as jar:
        for name in ("bin/mariadbd", "bin/mariadb", "share/english/errmsg.sys", "libs/libmariadb.so", "scripts/x"):
            jar.writestr(f"some/where/linux/{name}", "x")
        jar.writestr("META-INF/MANIFEST.MF", "x")
    versions._lay(tmp_path / "a.jar", tmp_path / "usr")
    found = sorted(str(path.relative_to(tmp_path / "usr")) for path in (tmp_path / "usr").rglob("*") if path.is_file())
    assert found == ["bin/mariadb", "sbin/mariadbd", "share/mariadb/english/errmsg.sys"]


def test_another_version_than_its_name_says_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "version", lambda flavor: (8, 40, 1))
    with pytest.raises(install.InstallFailed, match=r"resolute gives 8\.40\.1"):
        versions._check(Version(name="mysql-8.4", flavor="mysql", suite="resolute"), tmp_path)

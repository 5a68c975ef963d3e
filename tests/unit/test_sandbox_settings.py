"""What the demo and the installer read: no server, no network."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import binaries, browser, demo, install
from sandbox.databases import grant_statements


def test_the_demo_reads_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(demo.ROWS_VARIABLE, "5000")
    monkeypatch.setenv(demo.FLAVOR_VARIABLE, "mysql")
    assert (demo.read_settings().rows, demo.read_settings().flavor) == (5000, "mysql")


@pytest.mark.parametrize(
    ("name", "value"), [(demo.ROWS_VARIABLE, "many"), (demo.ROWS_VARIABLE, "0"), (demo.FLAVOR_VARIABLE, "x")]
)
def test_the_demo_refuses_bad_settings(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        demo.read_settings()


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["oracle"]) == 2
    assert "'oracle'" in capsys.readouterr().err


@pytest.mark.parametrize("asks_nobody", [True, False])
def test_each_part_comes_after_what_it_needs(monkeypatch: pytest.MonkeyPatch, asks_nobody: bool) -> None:
    monkeypatch.setattr(install, "asks_nobody", lambda: asks_nobody)
    done: list[str] = []
    met = threading.Barrier(2, timeout=30)

    def step(part: str) -> Callable[[], None]:
        def act() -> None:
            if asks_nobody and part in ("java", "mysql"):
                # Only side by side do they meet.
                met.wait()
            done.append(part)

        return act

    assert install.side_by_side({part: step(part) for part in install.wanted([*install.PARTS])}) == []
    assert sorted(done) == sorted(install.PARTS)
    assert all(done.index(need) < done.index(part) for part, needs in install.NEEDS.items() for need in needs)
    if not asks_nobody:
        assert done == list(install.PARTS)


def test_without_root_and_sudo_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is there already needs neither."""
    monkeypatch.setattr(install.os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.asks_nobody()
    sudo = tmp_path / "sudo"
    sudo.write_text("#!/bin/sh\nexit 1\n")
    sudo.chmod(0o755)
    assert not install.asks_nobody()


def test_what_needs_a_part_that_failed_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def fail() -> None:
        raise install.InstallFailed("no Java")

    for part in ("python", "archive", "mariadb"):
        name = {"archive": "write_archive"}.get(part, f"install_{part}")
        monkeypatch.setattr(install, name, functools.partial(done.append, part))
    monkeypatch.setattr(install, "install_java", fail)
    assert install.main([]) == 1
    assert sorted(done) == ["mariadb", "python"]
    assert capsys.readouterr().err == "install: no Java\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("/x/usr/sbin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))", (9, 7, 4)),
        ("mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)", (10, 11, 19)),
    ],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert binaries.parse_version(text, "any") == version


def test_an_old_server_does_not_count_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "version", lambda flavor: (8, 4, 0))
    assert not install.is_installed("mysql")


@pytest.mark.parametrize("flavor", binaries.FLAVORS)
def test_grants_have_no_placeholder_left(flavor: str) -> None:
    statements = grant_statements(flavor, user="u", host="h", password="p", schema="s")
    assert all(
        s.startswith(("CREATE USER", "GRANT")) and "<" not in s and "ALL PRIVILEGES" not in s for s in statements
    )
    assert "GRANT OPTION" not in " ".join(statements)


def test_a_missing_mysql_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(binaries.MYSQL_FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(binaries.ServerMissing, match="make install-mysql"):
        binaries.server_command("mysql")


@pytest.mark.parametrize(
    ("script", "counts"),
    [('#!/bin/sh\nexec /usr/lib/chromium/chromium "$@"\n', True), ("#!/bin/sh\nexec /snap/bin/chromium\n", False)],
)
def test_a_program_that_stands_for_a_snap_is_no_browser(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, counts: bool
) -> None:
    place = tmp_path / "chromium"
    place.write_text(script)
    place.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(browser.PROGRAM_VARIABLE, raising=False)
    assert browser.program() == (str(place) if counts else None)


def test_a_browser_is_installed_only_where_none_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(install, "install_packages", lambda names, what_for: done.extend(names))
    monkeypatch.setattr(install, "fetch_browser", lambda: done.append("playwright's"))
    monkeypatch.setattr(install, "browser_starts", lambda: True)
    install.install_browser()
    assert done == []
    monkeypatch.setattr(install, "browser_starts", lambda: False)
    for package, expected in (("chromium", ["chromium", "playwright's"]), (None, ["playwright's"])):
        done.clear()
        monkeypatch.setattr(install, "candidate", lambda names, package=package: package)
        with pytest.raises(install.InstallFailed, match=browser.PROGRAM_VARIABLE):
            install.install_browser()
        assert done == expected

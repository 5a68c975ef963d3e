"""Where the programs come from that the bench compares us with."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox import install, peers


def test_a_peer_that_cannot_be_had_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise install.InstallFailed(f"no {name} today")

    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(peers, "_GET", {"no-such-peer": refuse})
    (found,) = peers.prepare().values()
    assert (found.path, found.reason) == (None, "no no-such-peer today")


def test_a_peer_that_is_there_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "a-peer"
    program.write_text("#!/bin/sh\necho a-peer 1.2.3\n")
    program.chmod(0o755)
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(peers, "_GET", {"a-peer": lambda _: pytest.fail("it is there")})
    assert peers.prepare()["a-peer"].version == "1.2.3"


def test_what_go_says_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module that nobody can have; Go is not there, or asks nobody."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setenv("GOPROXY", "off")
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    monkeypatch.setattr(peers, "_GET", {"no-such-peer": peers._build("no.such.host/peer", "cmd", "v1.0.0")})
    reason = peers.prepare()["no-such-peer"].reason
    assert "GOPROXY=off" in reason or "built by Go, which is not installed" in reason

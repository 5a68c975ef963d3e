"""Webhooks as they are asked for, and throttling as the journal, which they tell of, has it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from vreplication import masking
from vreplication.cli import hooks
from vreplication.cli.main import run
from vreplication.engine import throttling, webhooks

SECRET = "0123456789abcdef-secret"
NOBODY = ("--source", "mysql://u@127.0.0.1:1/d")


class Made:
    """In the place of what delivers."""

    all: list[webhooks.Hook]

    def __init__(self, hook: webhooks.Hook, url: object) -> None:
        self.all.append(hook)

    def start(self) -> None: ...

    def end(self) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[webhooks.Hook]:
    monkeypatch.setattr(hooks, "Deliverer", Made)
    Made.all = []
    for name in (webhooks.URL, webhooks.SECRET, webhooks.SECRET_FILE):
        monkeypatch.delenv(name, raising=False)
    return Made.all


@pytest.mark.parametrize("url", ["ftp://h/x", "h/x", "https://", "https://h:99999/x", "https://h/x y", "https://ü/x"])
def test_a_bad_url_is_refused_by_every_command(
    url: str, made: list[webhooks.Hook], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(webhooks.SECRET, SECRET)
    for words in (("status", *NOBODY, "--webhook", url), (f"--webhook={url}", "pause", "w", *NOBODY)):
        monkeypatch.setenv(webhooks.SECRET, SECRET)
        assert run(words) == 2
        assert "The webhook is no http or https URL. Use https://host/path." in capsys.readouterr().err
    assert made == []


def test_a_user_in_the_url_is_refused_and_not_shown(
    made: list[webhooks.Hook], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(webhooks.URL, "https://me:hunter22@h/x")
    monkeypatch.setenv(webhooks.SECRET, SECRET)
    assert run(("status", *NOBODY)) == 2
    told = capsys.readouterr()
    assert "has a user in it" in told.err
    assert "hunter22" not in told.err + told.out


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("short", "at least 16 characters")])
def test_a_secret_that_is_none_is_refused(
    content: str | None, said: str, tmp_path: Path, made: list[webhooks.Hook], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "secret"
    if content:
        file.write_text(content)
    words = ("pause", "w", *NOBODY, "--webhook", "https://h/x", "--webhook-secret-file", str(file))
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert run(("pause", "w", *NOBODY, "--webhook", "https://h/x")) == 2, "without one nothing could be signed"


def test_what_acts_delivers_what_asks_does_not_and_no_child_has_the_secret(
    made: list[webhooks.Hook], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    monkeypatch.setenv(webhooks.URL, "https://hooks.example/services/T0123456789abcdef0")
    monkeypatch.setenv(webhooks.SECRET_FILE, str(tmp_path / "secret"))
    assert run(("pause", "w", *NOBODY)) == 1
    assert [(hook.url[-4:], hook.secret, hook.host) for hook in made] == [("def0", SECRET.encode(), "hooks.example")]
    assert not {webhooks.URL, webhooks.SECRET, webhooks.SECRET_FILE} & set(os.environ)
    assert SECRET not in repr(made[0]) + masking.mask(f"it says {SECRET}")
    assert "0123456789abcdef0" not in masking.mask(f"{made[0].url} does not answer")
    monkeypatch.setenv(webhooks.SECRET, SECRET)
    assert run(("status", *NOBODY, "--webhook", "https://h/x")) == 1
    assert len(made) == 1


def test_a_secret_of_the_standard_is_base64() -> None:
    raw = bytes(range(24))
    hook = webhooks.make("https://h/x", f"whsec_{b64encode(raw).decode()}")
    headers = webhooks.signed(hook, "msg_1", 1_614_265_330, b"{}")
    version, _, signature = headers["webhook-signature"].partition(",")
    assert (version, headers["webhook-id"], headers["webhook-timestamp"]) == ("v1", "msg_1", "1614265330")
    assert b64decode(signature) == hmac.digest(raw, b"msg_1.1614265330.{}", hashlib.sha256)


def test_throttling_is_journaled_when_it_lasts_and_again_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that comes and goes is told of ever more seldom; a process that is new to it goes on from the journal."""
    told: list[str] = []
    clock = [0.0]

    def write(_: object, workflow: str, event: str, details: str = "", *, actor: str) -> None:
        told.append(event)

    def latest(*_: Any) -> dict[str, Any] | None:
        return {"event": told[-1]} if told else None

    monkeypatch.setattr(throttling.journal, "write", write)
    monkeypatch.setattr(throttling.journal, "latest", latest)
    monkeypatch.setattr(throttling.SYSTEM.__class__, "monotonic", lambda self: clock[0])
    caplog.set_level(logging.INFO, "vreplication")
    session: Any = None

    def look(noting: throttling.Noting, reason: str, seconds: int) -> None:
        for _ in range(seconds):
            clock[0] += 1
            noting.look(session, reason)

    noting = throttling.Noting("w")
    look(noting, "by --max-load: x", 9)
    look(noting, "", 30)
    assert told == []
    look(noting, "by --max-load: x", 12)
    assert told == ["throttled"]
    look(noting, "by --max-load: y", 60)
    other = throttling.Noting("w")
    look(other, "by --max-load: y", 60)
    assert told == ["throttled"], "it was told of by the one before"
    look(other, "", 12)
    assert told == ["throttled", "throttling over"]
    assert caplog.messages == ["workflow w: throttled: by --max-load: x", "workflow w: throttling over"]
    for _ in range(200):
        look(other, "by --max-load: x", 100)
        look(other, "", 100)
    assert len(told) < 10

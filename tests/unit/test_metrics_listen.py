"""Where metrics are answered: bad addresses are refused, and catch-up goes on whatever becomes of the port."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.support.flow import wait_until
from vreplication.cli import hooks, metrics
from vreplication.cli.main import run
from vreplication.mysql.ends import Route
from vreplication.mysql.url import SourceUrl, parse
from vreplication.progress.metrics import down

NOBODY = parse("mysql://u@127.0.0.1:1/d")


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    def of(url: SourceUrl) -> list[object]:
        return list(down(f"{url.host}:{url.port}"))

    monkeypatch.setattr(metrics, "_of", of)
    monkeypatch.setattr(metrics, "_AGAIN_SECONDS", 0.01)
    ended = threading.Event()
    yield ended
    ended.set()


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("[::1]", socket.AF_INET6)])
def test_catch_up_answers_as_soon_as_another_has_left_the_port(
    stop: threading.Event, monkeypatch: pytest.MonkeyPatch, host: str, family: socket.AddressFamily
) -> None:
    with socket.socket(family) as other:
        try:
            other.bind((host.strip("[]"), 0))
        except OSError:
            pytest.skip(f"{host} is no address of this machine")
        other.listen()
        where = f"{host}:{other.getsockname()[1]}"
        monkeypatch.setenv(metrics.LISTEN, where)
        metrics.of_catch_up(Route.within(NOBODY), stop)
    said = list[str]()

    def asked() -> bool:
        try:
            with urllib.request.urlopen(f"http://{where}/metrics", timeout=5) as answer:
                said.append(answer.read().decode())
        except OSError:
            return False
        return True

    wait_until(asked, "nobody answers")
    assert said[0].count('vreplication_up{server="127.0.0.1:1"} 0.0\n') == 1, "source, target and home are one server"
    assert "vreplication_catch_up_process_resident_memory_bytes " in said[0]


@pytest.mark.parametrize("where", ["9714", "127.0.0.1:99999", "a:b:1"])
def test_a_bad_address_is_refused_before_anything_begins(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(metrics.LISTEN, where)
    assert run(["status", "--source", "mysql://u@127.0.0.1:1/d"]) == 2
    assert f"{metrics.LISTEN} '{where}' is no HOST:PORT." in capsys.readouterr().err


def test_two_servers_of_one_machine_are_told_apart_by_their_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and port are the same then: the second would be left out, of figures and of events."""
    urls = [parse(f"mysql://u@localhost/{name}?unix_socket=/none/{name}") for name in ("a", "b", "a")]
    assert [line for line in metrics.text(urls).splitlines() if line.startswith("vreplication_up{")] == [
        'vreplication_up{server="/none/a"} 0.0',
        'vreplication_up{server="/none/b"} 0.0',
    ]
    followed = list[str]()
    monkeypatch.setattr(
        hooks, "Deliverer", lambda hook, url: followed.append(str(url)) or SimpleNamespace(start=int, end=int)
    )
    monkeypatch.setattr(hooks, "_hook", object())
    for url in urls:
        hooks.follow(url)
    hooks.end()
    assert followed == ["mysql://u@/none/a/a", "mysql://u@/none/b/b"]

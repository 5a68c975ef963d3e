"""What is asked of brokers: of those that are not set alike the strictest counts, and leaders alone are read."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.feed import broker as broker_module
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker


class Admin:
    """Each broker answers for itself alone, as Kafka's do."""

    def __init__(self, brokers: dict[int, dict[str, str]]) -> None:
        self._brokers = brokers

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(brokers=self._brokers)

    def describe_configs(self, asked: list[Any]) -> dict[Any, Future[Any]]:
        (resource,) = asked
        found: Future[Any] = Future()
        settings = self._brokers[int(resource.name)]
        found.set_result({name: SimpleNamespace(value=value) for name, value in settings.items()})
        return {resource: found}


def broker(*settings: dict[str, str]) -> Broker:
    made = Broker(parse("kafka://h:1/t"))
    made._admin = Admin(dict(enumerate(settings, 1)))  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("said", "verifies"), [(("true", "true"), True), (("true", "false"), False), (("False", "true"), False)]
)
def test_each_broker_has_to_verify_transactions(said: tuple[str, ...], verifies: bool) -> None:
    name = "transaction.partition.verification.enable"
    assert broker(*({name: each} for each in said)).verifies_transactions() is verifies
    assert broker({}, {}).verifies_transactions(), "an older one knows no such setting, and has none"


def test_a_message_has_to_fit_at_each_broker() -> None:
    sizes = [{"message.max.bytes": each} for each in ("1048588", "100000", "")]
    assert broker(*sizes).most_bytes() == 100_000
    assert broker({}, {}).most_bytes() == 1_048_588


def test_where_a_feed_goes_on_is_read_from_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica of the reader's rack showed the progress of before (30 of 80 starts behind a commit)."""
    given: dict[str, Any] = {}

    class Reader:
        def __init__(self, settings: dict[str, Any]) -> None:
            given.update(settings)

        def close(self) -> None:
            pass

    monkeypatch.setattr(broker_module, "Consumer", Reader)
    with Broker(parse("kafka://h:1/t?client.rack=near"))._reader():
        assert given["client.rack"] == ""

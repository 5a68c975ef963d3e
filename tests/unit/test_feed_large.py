"""What becomes of messages that are too large: their bytes, as recorded, their files, and how large a row can be.

`python -m tests.unit.test_feed_large` records them again (tests/feed/golden); read the difference before you keep it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.every_case import examples
from tests.unit import test_feed_formats as formats
from tests.unit.test_feed_formats import EVERY, FULL, GOLDEN, KEYLESS, ONE, PAIR, column, layout, row
from vreplication.errors import Refused, Terminal, Transient
from vreplication.feed import claims, sizes
from vreplication.feed.claims import Claim, Fetcher
from vreplication.feed.formats.debezium import Debezium
from vreplication.feed.formats.open import read_row
from vreplication.feed.large import OVERHEAD, PARTS, STOP, Fit, fits, parse, piece_of, policy_of, size
from vreplication.feed.messages import Ddl, Encoded, Format, KeyOnly, Row, read_tags
from vreplication.feed.producer import FeedProducer
from vreplication.workflows.changefeed import run
from vreplication.workflows.changefeed.spec import FeedSpec, make_feed_spec

PIECE = 8_000
LONG = "zß水🍌" * 900
MADE: dict[str, Callable[[], Format]] = {
    name: make for name, (make, _) in formats.MADE.items() if name != "canal-json-full"
}
ROWS = {
    "insert": row(PAIR, None, (1, LONG, b"xy")),
    "update": row(PAIR, (1, LONG, b"xy"), (1, LONG[1:], b"xy"), 2),
    "update, of which one image is large": row(PAIR, (1, LONG, b"xy"), (1, "a", b"xy"), 2),
    "delete": row(PAIR, (1, LONG, b"xy"), None, 3),
    "key change": row(PAIR, (1, LONG, b"xy"), (2, LONG, b"xy"), 4),
    "one that fits": row(PAIR, None, (1, "a", b"xy"), 5),
}
WITHOUT_KEY = row(KEYLESS, (1, LONG), (1, None), 6)
STATEMENT = replace(formats.ddl("x", ("s", "every")), sql=f"ALTER TABLE every COMMENT '{LONG}'", verb="ALTER")


def fit(way: str, directory: Path | None = None, piece: int = PIECE) -> Fit:
    policy = parse(f"claim-check:{directory}" if directory else way)
    return Fit(policy=policy, piece=piece, feed="f", topic="shop")


def sent(fit: Fit, format: Format, event: Row | Ddl) -> list[Encoded]:
    return list(fit.ddl(format, event) if isinstance(event, Ddl) else fit.row(format, event, format.row(event)))


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _write_nothing(monkeypatch.setattr)


def _write_nothing(change: Callable[[Any, str, Any], None]) -> None:
    change(claims, "_write", lambda path, value: None)
    change(claims.Claims, "_make", lambda self, folder: None)


def lines(name: str, way: str) -> Iterator[str]:
    asked = fit(way, Path("/claims") if way == "claim-check" else None)
    more: dict[str, Row | Ddl] = {"without a key": WITHOUT_KEY, "DDL": STATEMENT} if way == "claim-check" else {}
    for case, event in {**ROWS, **more}.items():
        for each in sent(asked, MADE[name](), event):
            assert fits(each, PIECE)
            headers = [[header, formats.as_text(value)] for header, value in each.headers]
            said = {"key": formats.as_text(each.key), "value": formats.as_text(each.value), "headers": headers}
            yield json.dumps({"case": case, **said}, ensure_ascii=False)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("way", ["claim-check", "key-only"])
@pytest.mark.parametrize("name", MADE)
def test_messages_instead_of_large_ones_are_the_recorded_bytes(name: str, way: str) -> None:
    recorded = (GOLDEN / f"{name}-{way}.jsonl").read_text().removesuffix("\n").split("\n")
    assert list(lines(name, way)) == recorded


@pytest.mark.parametrize("name", MADE)
def test_a_file_holds_the_value_as_it_would_have_been_sent(name: str, tmp_path: Path) -> None:
    for event in (*ROWS.values(), WITHOUT_KEY, STATEMENT):
        format = MADE[name]()
        whole = format.row(event) if isinstance(event, Row) else format.ddl(event)
        for there, here in zip(whole, sent(fit("claim-check", tmp_path), format, event), strict=True):
            tags = dict(here.headers)
            if fits(there, PIECE):
                assert here == there
                continue
            assert Fetcher().get(tags["vr-claim-check"]) == there.value
            assert here.key == there.key
    assert not list(tmp_path.rglob(".*")), "a draft was left"


def test_a_replay_writes_the_same_file_and_other_rows_of_the_place_another(tmp_path: Path) -> None:
    asked, format = fit("claim-check", tmp_path), MADE["open"]()
    first = sent(asked, format, ROWS["insert"])
    again = sent(fit("claim-check", tmp_path), format, ROWS["insert"])
    assert again == first
    (found,) = tmp_path.rglob("*.json")
    digest = hashlib.sha256(format.row(ROWS["insert"])[0].value or b"").hexdigest()
    assert found.relative_to(tmp_path) == Path(f"shop/2023-11-14/{formats.T}-0-{digest[:16]}.json")
    sent(asked, format, row(PAIR, None, (1, LONG + "!", b"xy")))
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_a_file_that_is_not_what_the_message_says_is_not_taken(tmp_path: Path) -> None:
    (found,) = sent(fit("claim-check", tmp_path), MADE["open"](), ROWS["insert"])
    said = dict(found.headers)["vr-claim-check"]
    (path,) = tmp_path.rglob("*.json")
    moved = tmp_path / "elsewhere"
    (tmp_path / "shop").rename(moved.with_name("moved"))
    with pytest.raises(Transient, match="no directory"):
        Fetcher().get(said)
    (tmp_path / "moved").rename(tmp_path / "shop")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    with pytest.raises(Terminal, match="is not what its message says"):
        Fetcher().get(said)
    path.unlink()
    with pytest.raises(Terminal, match="is gone"):
        Fetcher().get(said)


@pytest.mark.parametrize("location", ["http://host/a/b/c/d", "file://host/a/b/c", "file:///a/../../etc/passwd", "x"])
def test_only_files_are_read(location: str) -> None:
    with pytest.raises(Terminal, match="no file that we can read"):
        Fetcher().get(msgspec.json.encode(Claim(location=location, bytes=1, sha256="")))


def test_a_reader_may_have_the_directory_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (found,) = sent(fit("claim-check", tmp_path / "a"), MADE["open"](), ROWS["insert"])
    (tmp_path / "a").rename(tmp_path / "b ü")
    assert Fetcher(tmp_path / "b ü").get(dict(found.headers)["vr-claim-check"])


def test_a_full_disk_and_a_mount_that_is_away_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Transient, match="No such file"):
        sent(fit("claim-check", tmp_path / "away"), MADE["open"](), ROWS["insert"])
    assert not (tmp_path / "away").exists()

    def full(path: Path, value: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claims, "_write", full)
    with pytest.raises(Terminal, match="No space left on device"):
        sent(fit("claim-check", tmp_path), MADE["open"](), ROWS["insert"])


def test_our_readers_know_what_is_only_a_key(tmp_path: Path) -> None:
    (found,) = sent(fit("key-only"), MADE["open"](), ROWS["update"])
    change = read_row(found.key, found.value)
    assert change.only == KeyOnly(source="src", columns=("B", "t", "A"))
    assert change.after is not None
    assert set(change.after) == {"A", "B"}
    ours = [("vr-kind", b"row"), *((f"vr-{name}", b"1") for name in ("t", "seq", "n", "gen"))]
    assert read_tags([*ours, *found.headers]).is_key_only
    (claimed,) = sent(fit("claim-check", tmp_path), MADE["open"](), ROWS["update"])
    assert read_tags([*ours, *claimed.headers]).claim
    assert not read_tags(ours).is_key_only


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("event", [WITHOUT_KEY, STATEMENT], ids=["row", "DDL"])
def test_what_has_no_key_stops_a_feed_of_keys(name: str, event: Row | Ddl) -> None:
    with pytest.raises(Terminal, match=r"Nothing is lost: .*resume f`.*--max-message") as found:
        sent(fit("key-only"), MADE[name](), event)
    assert ("has no key" in str(found.value)) == isinstance(event, Row)


@pytest.mark.parametrize("name", MADE)
def test_stop_names_table_place_and_size(name: str) -> None:
    with pytest.raises(Terminal, match=rf"A row of s\.Paár \(transaction 3e11.*, {formats.T}/2\) takes [\d,]+ bytes"):
        sent(fit("stop"), MADE[name](), ROWS["update"])
    assert sent(fit("stop"), MADE[name](), ROWS["one that fits"])


def test_a_key_that_does_not_fit_stops_whatever_the_policy(tmp_path: Path) -> None:
    table = layout(7, "k", [column("id", "varchar(1500)", null=False, charset="utf8mb4"), formats.TEXT])
    event = row(table, None, ("\x00" * 1_500, LONG + LONG))
    for asked in (fit("key-only"), fit("claim-check", tmp_path)):
        with pytest.raises(Terminal, match=r"A row of s\.k"):
            sent(asked, MADE["debezium"](), event)
    assert not list(tmp_path.rglob("*.json"))


def test_what_is_sent_of_a_key_alone_fits_with_its_mark() -> None:
    """Keys a byte longer each, past the longest that fits."""
    table = layout(7, "k", [column("id", "varchar(9000)", null=False, charset="latin1"), formats.TEXT])
    format = MADE["open"]()

    def sized(length: int) -> int:
        try:
            (made,) = sent(fit("key-only"), format, row(table, None, ("k" * length, LONG)))
        except Terminal:
            return 0
        return size(made)

    found = [sized(length) for length in range(PIECE - 400, PIECE)]
    assert (max(found), found[-1]) == (PIECE, 0)


# How large a row can be.


_LETTERS = st.text(st.sampled_from('\x00\x1f"\\a€🍌'), max_size=60)
_BYTES = st.binary(max_size=60)
_COLUMNS = [
    (column("id", "int", null=False), st.integers(-(2**31), 2**31 - 1)),
    (column("v", "varchar(60)", charset="utf8mb4", characters=60, length=240), _LETTERS),
    (column("b", "varbinary(60)", length=60), _BYTES),
    (column("e", "set('x','\"')", labels=("x", '"'), charset="utf8mb4"), st.sampled_from(["", "x", 'x,"'])),
    *((column(f"d{n}", "double"), st.sampled_from([-1.7976931348623157e308, -5e-324, 0.1])) for n in range(4)),
    (column("j", "longtext", charset="utf8mb4", length=4294967295, characters=4294967295), _LETTERS),
]
_TABLE = layout(8, "sized", [each for each, _ in _COLUMNS], ("id", "v"))


@settings(max_examples=examples(100, 300), deadline=None)
@given(st.tuples(*(of for _, of in _COLUMNS)), st.tuples(*(of for _, of in _COLUMNS)), st.sampled_from(sorted(MADE)))
def test_no_row_is_larger_than_its_table_says(before: Any, after: Any, name: str) -> None:
    format = MADE[name]()
    most = sizes.most_bytes(format, _TABLE, packet=240)
    assert max(size(each) for each in format.row(row(_TABLE, before, after))) <= most


_PACKET = 240
_WORST: list[tuple[Any, Any]] = [
    (column("c", "varchar(60)", charset="utf8mb4", characters=60, length=240), "\x00" * 60),
    (column("c", "longtext", charset="latin1", characters=4294967295, length=4294967295), "\x1f" * _PACKET),
    (column("c", "longblob", length=4294967295), b"\x00" * _PACKET),
    (column("c", "double"), -5e-324),
    (column("c", "float"), -1.1754944e-38),
    (column("c", "decimal(65,30)", precision=65, scale=30), "-" + "9" * 35 + "." + "9" * 30),
    (column("c", "bigint"), -(1 << 63)),
    (column("c", "bit(64)", precision=64), (1 << 64) - 1),
    (column("c", "timestamp(6)", fraction=6), "2038-01-19 03:14:07.999999"),
    (column("c", "set('x','\"')", labels=("x", '"'), charset="utf8mb4"), 'x,"'),
    (column("c", "json"), '"' + "\\u0001" * _PACKET + '"'),
    (
        column("c", "multipoint"),
        formats.shape(formats.wkb(4, formats.many(*[formats.wkb(1, formats.xy(-5e-324, 1))] * 10))),
    ),
    (column("c", "vector(60)", precision=60), struct.pack("<60f", *[-1.17549435e-38] * 60)),
    (column("c", "inet6"), "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
]


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("kind", "value"), _WORST, ids=[each.column_type for each, _ in _WORST])
def test_no_value_is_larger_than_its_column_says(name: str, kind: Any, value: Any) -> None:
    """Of a table of so many columns that nothing else hides it; the other image differs."""
    columns = [column("id", "int", null=False), *(replace(kind, name=f"c{n}") for n in range(200))]
    table = layout(9, "wide", columns)
    event = row(table, (1, *[value] * 200), (2, *[value] * 199, None))
    assert max(map(size, MADE[name]().row(event))) <= sizes.most_bytes(MADE[name](), table, _PACKET)


def test_every_column_type_has_a_size() -> None:
    for make in MADE.values():
        most = sizes.most_bytes(make(), FULL, packet=1 << 20)
        assert max(size(each) for each in make().row(row(FULL, ONE, formats.MOVED))) < most
    assert len(EVERY) == len(FULL.columns)


def test_a_small_table_fits_and_one_with_a_large_column_does_not() -> None:
    small = layout(1, "o", [column("id", "bigint", null=False), column("t", "text", length=65535, characters=65535)])
    large = layout(2, "d", [column("id", "bigint", null=False), column("t", "longblob", length=4294967295)])
    numbers = layout(3, "v", [column("id", "bigint", null=False), column("v", "vector(1536)", precision=1536)])
    for make in MADE.values():
        assert sizes.most_bytes(make(), small, 64 << 20) < piece_of(1_048_588)
        assert sizes.most_bytes(make(), numbers, 64 << 20) < piece_of(1_048_588)
        assert sizes.most_bytes(make(), large, 64 << 20) > 64 << 20


# Policies as they are written.


def test_policies_by_protocol() -> None:
    assert policy_of("open", None) is PARTS
    assert {policy_of(name, None) for name in ("debezium", "canal-json", "maxwell")} == {STOP}
    assert str(policy_of("maxwell", "claim-check:file:///a/b%20c")) == "claim-check:/a/b c"


@pytest.mark.parametrize(
    "text", ["none", "claim-check", "claim-check:", "claim-check:a/b", "claim-check:s3://b/p", "key-only:x", "parts:1"]
)
def test_wrong_policies(text: str) -> None:
    with pytest.raises(Refused):
        parse(text)


def test_what_a_policy_may_become() -> None:
    asked = {each: parse(f"{each}:/d" if each == "claim-check" else each) for each in ("parts", "stop", "key-only")}
    asked["claim-check"] = parse("claim-check:/d")
    may = {(a, b) for a in asked for b in asked if asked[a].may_become(asked[b])}
    one = {"stop", "key-only", "claim-check"}
    assert may == {*((a, b) for a in one for b in one), ("parts", "parts"), ("stop", "parts")}


def spec(**asked: Any) -> FeedSpec:
    return make_feed_spec(sink="kafka://b:1/t", **asked)


def test_a_limit_may_change_unless_it_is_that_of_parts() -> None:
    was = spec(protocol="debezium", max_message="key-only")
    run._check_policy("f", was, spec(protocol="debezium", max_message="stop", max_message_bytes=9_000))
    for before, now in (
        (spec(), spec(max_message_bytes=9_000)),
        (spec(max_message="stop"), spec(max_message="parts", max_message_bytes=9_000)),
    ):
        with pytest.raises(Refused, match="parts of one size"):
            run._check_policy("f", before, now)


# What the producer cuts.


def test_parts_leave_room_for_key_and_headers() -> None:
    producer = FeedProducer(None, "f", OVERHEAD + PIECE)  # type: ignore[arg-type]
    long_key = row(PAIR, (1, LONG, b"xy"), (2, LONG, b"xy"))
    for format in (MADE["open"](), Debezium()):
        for message in format.row(long_key):
            pieces = [piece for piece, _ in producer._pieces(message)]
            assert all(size(piece) <= PIECE for piece in pieces)
            assert b"".join(piece.value or b"" for piece in pieces) == (message.value or b"")


def write() -> None:
    _write_nothing(setattr)
    for name in MADE:
        for way in ("claim-check", "key-only"):
            (GOLDEN / f"{name}-{way}.jsonl").write_text("".join(f"{line}\n" for line in lines(name, way)))


if __name__ == "__main__":
    write()

"""Packets to groups without a server: rows of several tables, unknown and damaged events, unfinished groups."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.changes import gone, put
from tests.support.log_packets import (
    BEGIN,
    FORMAT,
    GTID,
    MAP,
    OTHER_MAP,
    START,
    TABLE_MAP,
    WATCH,
    XID,
    Log,
    Sent,
    query,
    read,
    reader,
    rows,
)
from vreplication.binlog import tables
from vreplication.binlog.events import Group, GroupKind, RowChange, Stopped
from vreplication.binlog.framing import ARTIFICIAL, Type
from vreplication.binlog.reader import Reader
from vreplication.binlog.watch import Following, Watch
from vreplication.changes.codecs import PlainValues, SqlText
from vreplication.errors import SourceChanged, Transient


def with_generated(place: int) -> Watch:
    """The table with a generated column at this place, counted from 1."""
    made = [dataclasses.replace(c, ordinal=c.ordinal + (c.ordinal >= place)) for c in WATCH.columns]
    made.insert(place - 1, dataclasses.replace(WATCH.columns[1], name="g", ordinal=place, generated="stored"))
    ordinals = [(c.ordinal, "{}") for c in made if not c.generated]
    codec = SqlText(key=tuple(ordinals[:1]), values=tuple(ordinals))
    return dataclasses.replace(WATCH, columns=tuple(made), codec=codec)


def test_a_transaction() -> None:
    (group,) = read(GTID, BEGIN, MAP, rows((1, 2), (-1, None)), XID)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,2"), put("-1", "-1,NULL")]
    assert (group.kind, group.time_micros, group.start) == (GroupKind.COMMIT, 1_700_000_000_000_123, START)
    assert group.end.offset > START.offset


@pytest.mark.parametrize("original", [None, 1_600_000_000_000_000])
@pytest.mark.parametrize("total", [None, 250, 70_000, 9 << 30])
def test_how_much_of_a_transaction_has_been_read(original: int | None, total: int | None) -> None:
    """A transaction from another server has both times, the first of which is this server's."""
    times = (1_700_000_000_000_123 | bool(original) << 55).to_bytes(7, "little") + (original or 0).to_bytes(7, "little")
    length = b"" if total is None else bytes([total]) if total < 251 else b"\xfe" + total.to_bytes(8, "little")
    body = bytes(25) + b"\x02" + bytes(16) + times[: 14 if original else 7] + length
    packets = Log().packets((Type.ANONYMOUS_GTID, body), BEGIN, MAP, rows((1, 2)), rows((2, 2)), XID)
    found = [g for g in reader(part_bytes=100).items(packets) if isinstance(g, Group)]
    assert {g.time_micros for g in found} == {1_700_000_000_000_123}
    assert [g.read and g.read.total for g in found] == [total, total, None]
    behind = [found[2].end.offset - START.offset - g.read.done for g in found[:2] if g.read]
    xid, row = (23 + len(body) for _, body in (XID, rows((2, 2))))
    assert behind == [row + xid, xid]


def test_updates_and_deletes() -> None:
    both = (1, 5), (1, 6), (2, 7), (3, 7)
    kind, body = rows(*both, kind=Type.UPDATE_ROWS_V1)
    update = kind, body[:10] + b"\xff" + body[10:]
    (group,) = read(GTID, BEGIN, MAP, update, rows((9, None), kind=Type.DELETE_ROWS_V1), XID)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,6", "1"), put("3", "3,7", "2"), gone("9")]


def test_several_tables_each_in_the_form_that_its_consumer_wants() -> None:
    """A change tells its table, and has both images as far as the codec asks for them."""
    plain = dataclasses.replace(WATCH, number=3, table="u", codec=PlainValues())
    kind, body = rows((1, 5), (2, None), table=0x13, kind=Type.UPDATE_ROWS_V1)
    update = kind, body[:10] + b"\xff" + body[10:]
    sent = GTID, BEGIN, MAP, (Type.TABLE_MAP, OTHER_MAP), update, rows((9, 4)), XID
    both = Reader(START, [WATCH, plain], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    (group,) = both.items(Log().packets(*sent))
    assert isinstance(group, Group)
    assert group.items == [RowChange(3, {"id": 1, "n": 5}, {"id": 2, "n": None}), put("9", "9,4")]


@pytest.mark.parametrize("name", ["t", "u"])
def test_a_definition_that_changes_ends_it_whichever_table_it_is_of(name: str) -> None:
    other = dataclasses.replace(WATCH, number=1, table="u")
    both = Reader(START, [WATCH, other], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        list(both.items(Log().packets(GTID, query(f"ALTER TABLE {name} COMMENT='x'"))))


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_generated_column_that_the_log_leaves_out(place: int) -> None:
    """Of updates and deletes; inserts have it. The bits for NULLs are those of the columns that are there."""
    watch, types = with_generated(place), [b"\x03", b"\x02"]
    types.insert(place - 1, b"\x02")
    sent_map = Type.TABLE_MAP, b"\x12\0\0\0\0\0\x01\0\x01d\0\x01t\0\x03" + b"".join(types) + b"\0\x07"
    there = bytes([0xF8 | (7 & ~(1 << place - 1))])
    head = b"\x12\0\0\0\0\0\x01\0\x03"

    def rest(*pairs: tuple[int, int | None]) -> bytes:
        return rows(*pairs)[1][10:]

    whole = [b"\x01\0\0\0", b"\x05\0"]
    whole.insert(place - 1, b"\x09\0")
    insert = Type.WRITE_ROWS_V1, head + b"\xff" + b"\xf8" + b"".join(whole)
    update = Type.UPDATE_ROWS_V1, head + there * 2 + rest((1, 5), (1, None), (2, None), (3, 7))
    delete = Type.DELETE_ROWS_V1, head + there + rest((9, None), (8, 4))
    one = Reader(START, [watch], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    (group,) = one.items(Log().packets(GTID, BEGIN, sent_map, insert, update, delete, XID))
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,5"), put("1", "1,NULL", "1"), put("3", "3,7", "2"), gone("9"), gone("8")]


@pytest.mark.parametrize(("generated", "words"), [("stored", "generated column n"), ("", "does not hold all columns")])
def test_a_column_that_is_asked_for_and_not_there(generated: str, words: str) -> None:
    columns = (WATCH.columns[0], dataclasses.replace(WATCH.columns[1], generated=generated))
    one = Reader(
        START, [dataclasses.replace(WATCH, columns=columns)], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8"
    )
    image = Type.UPDATE_ROWS_V1, b"\x12\0\0\0\0\0\x01\0\x02" + b"\xff\xfd" + rows((1, 2))[1][10:] + b"\xfe\1\0\0\0"
    with pytest.raises(SourceChanged, match=words):
        list(one.items(Log().packets(GTID, BEGIN, MAP, image, XID)))


@pytest.mark.parametrize("unsent", [True, False])
def test_an_ordinary_column_that_nobody_asks_for_is_there_too(unsent: bool) -> None:
    """Unless it may be a generated one: a feed knows the log alone."""
    watch = dataclasses.replace(WATCH, unsent=frozenset({2} if unsent else ()))
    one = Reader(START, [watch], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    delete = Type.DELETE_ROWS_V1, b"\x12\0\0\0\0\0\x01\0\x02" + b"\xfd" + b"\xfe\1\0\0\0"
    packets = Log().packets(GTID, BEGIN, MAP, delete, XID)
    if not unsent:
        with pytest.raises(SourceChanged, match="does not hold all columns"):
            list(one.items(packets))
        return
    (group,) = one.items(packets)
    assert isinstance(group, Group)
    assert group.items == [gone("1")]


def test_a_row_image_that_one_cannot_follow_stops_that_one_alone() -> None:
    """And what it had of the transaction before stays in the order of the others."""
    other = dataclasses.replace(WATCH, number=1, table="u")
    both = Reader(START, [WATCH], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    both.join(Following(name="b", watches=(other,)))
    kind, body = rows((7, 8), table=0x13)
    minimal = kind, body[:9] + b"\x01" + body[10:]
    sent = GTID, BEGIN, MAP, rows((1, 5)), (Type.TABLE_MAP, OTHER_MAP), minimal, rows((2, 6)), XID
    stopped, group = both.items(Log().packets(*sent))
    assert isinstance(stopped, Stopped)
    assert (stopped.name, "does not hold all columns" in str(stopped.error)) == ("b", True)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,5"), put("2", "2,6")]


def test_a_table_of_ours_of_another_shape_ends_all() -> None:
    ours = dataclasses.replace(WATCH, number=-1, columns=WATCH.columns[:1])
    all_of_them = Reader(START, [ours], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    all_of_them.join(Following(name="b", watches=(dataclasses.replace(WATCH, number=1, table="u"),)))
    with pytest.raises(SourceChanged):
        list(all_of_them.items(Log().packets(GTID, BEGIN, MAP, rows((1, 5)), XID)))


def test_tables_that_nobody_watches_are_passed_over() -> None:
    (group,) = read(GTID, BEGIN, (Type.TABLE_MAP, OTHER_MAP), (Type.WRITE_ROWS, b"\x13\0\0\0\0\0junk"), XID)
    assert isinstance(group, Group)
    assert group.items == []


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([GTID, BEGIN, (26, b"")], "INCIDENT"),
        ([GTID, BEGIN, (99, b"")], "type 99"),
        ([GTID, BEGIN, (9, b"")], "type 9"),
        ([GTID, BEGIN, (20, b"")], "type 20"),
        ([GTID, BEGIN, (Type.BEGIN_LOAD_QUERY, b"")], "LOAD DATA"),
        ([GTID, BEGIN, MAP, (Type.PARTIAL_UPDATE_ROWS, TABLE_MAP)], "parts of JSON"),
        ([GTID, BEGIN, rows((1, 1))], "without the table's map"),
        ([MAP, rows((1, 1))], "whose beginning was not read"),
        ([XID], "whose beginning was not read"),
        ([query("COMMIT")], "whose beginning was not read"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1][:-1])], "cannot be read|does not end"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1] + b"\xfc")], "cannot be read|does not end"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1].replace(b"\x02\xff", b"\x02\x01", 1))], "all columns"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1].replace(b"\x02\xff", b"\x03\xff", 1))], "3 columns"),
        ([GTID, BEGIN, (Type.TABLE_MAP, TABLE_MAP.replace(b"\x02\x03\x02", b"\x02\x03\x03"))], "type 3, not smallint"),
        ([GTID, BEGIN, (Type.TABLE_MAP, TABLE_MAP.replace(b"\x02\x03\x02", b"\x02\x03\x63"))], "unknown type 99"),
        ([GTID, query("ROLLBACK TO s")], "savepoint 's'"),
        ([GTID, query("TRUNCATE t")], "TRUNCATE"),
        ([GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x01\x07\0")], "algorithm 7"),
        ([GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x01\0\0junk")], "cannot be read"),
        ([GTID, BEGIN, (Type.QUERY_COMPRESSED, BEGIN[1])], "compressed in a way"),
        ([(Type.MARIADB_GTID, b"\0")], "cannot be read"),
        ([(Type.XA_PREPARE, b"\0")], "cannot be read"),
        ([GTID, BEGIN, GTID], "has no end"),
        ([GTID, BEGIN, MAP, rows((1, 1)), (Type.MARIADB_GTID, bytes(13))], "has no end"),
        (
            [GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x03\xfc\xff\0\0" + bytes(9) + b"\x05" + bytes(9))],
            "ends inside an event",
        ),
    ],
)
def test_what_ends_the_workflow(sent: list[Sent], words: str) -> None:
    with pytest.raises(SourceChanged, match=words) as caught:
        read(*sent)
    assert "log.000007:" in str(caught.value)
    assert caught.value.cure


def test_what_is_rolled_back_after_it_was_handed_on_is_told() -> None:
    sent = [GTID, BEGIN, query("SAVEPOINT a"), MAP, rows((1, 2)), query("SAVEPOINT b"), rows((2, 2)), rows((3, 2))]
    packets = Log().packets(*sent, query("ROLLBACK TO b"), rows((4, 2)), query("ROLLBACK TO a"), rows((5, 2)), XID)
    found = [g for g in reader(part_bytes=100).items(packets) if isinstance(g, Group)]
    assert [len(g.items) for g in found] == [1, 1, 1, 1, 1, 0]
    assert [g.keep for g in found] == [None, None, None, 1, 0, None]
    kept: list[object] = []
    for group in found:
        kept = [*kept[: group.keep], *group.items]
    assert kept == [put("5", "5,2")]


def test_the_missing_end_of_a_transaction_in_parts_is_told() -> None:
    log = Log()
    packets = log.packets(GTID, BEGIN, MAP, rows((1, 2)), FORMAT, GTID, BEGIN, MAP, rows((2, 2)), XID)
    found = [g for g in reader(part_bytes=100).items(packets) if isinstance(g, Group)]
    assert [(g.kind, len(g.items), g.is_last) for g in found] == [
        (GroupKind.COMMIT, 1, False),
        (GroupKind.UNFINISHED, 0, True),
        (GroupKind.COMMIT, 1, False),
        (GroupKind.COMMIT, 0, True),
    ]


def test_a_rolled_back_group_still_moves_the_position() -> None:
    (group,) = read(GTID, BEGIN, MAP, rows((1, 2)), query("ROLLBACK"))
    assert isinstance(group, Group)
    assert (group.items, group.kind) == ([], GroupKind.COMMIT)


def test_an_unfinished_group_before_a_new_file_never_committed() -> None:
    log = Log()
    packets = log.packets(GTID, BEGIN, MAP, rows((1, 2)))
    rotate = Type.ROTATE, (4).to_bytes(8, "little") + b"log.000008"
    log.offset = 4
    packets += [log.packet(rotate, flags=ARTIFICIAL), *log.packets(GTID, BEGIN, MAP, rows((2, 2)), XID)]
    (group,) = reader().items(packets)
    assert isinstance(group, Group)
    assert group.items == [put("2", "2,2")]
    assert str(group.start) == "log.000008:4"


def test_a_statement_keeps_its_maps_however_many_tables_have_been_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours has been known for long when another table of the same statement is one too many to be kept."""
    monkeypatch.setattr(tables, "_MAX_KNOWN", 5)
    monkeypatch.setattr(tables, "_KEPT_IDS", 3)
    others = [(Type.TABLE_MAP, bytes([number]) + OTHER_MAP[1:]) for number in range(0x20, 0x25)]
    sent = [GTID, BEGIN, MAP, *others[:4], MAP, others[4], rows((1, 2)), rows((1, 2), table=0x24), XID]
    (group,) = read(*sent)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,2")]


def test_table_ids_are_forgotten_with_the_file() -> None:
    with pytest.raises(SourceChanged, match="without the table's map"):
        read(GTID, BEGIN, MAP, rows((1, 2)), XID, FORMAT, GTID, BEGIN, rows((1, 2)))


@given(st.lists(st.tuples(st.integers(0, 172), st.binary(max_size=40)), max_size=6))
def test_junk_is_refused_in_our_words(sent: list[Sent]) -> None:
    with contextlib.suppress(SourceChanged, Transient):
        read(GTID, BEGIN, MAP, *sent)

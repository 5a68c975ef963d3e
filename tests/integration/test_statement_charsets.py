"""Names in the character sets of clients: the reader understands a statement as the server does, or stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from statement_setup import stops

from sandbox.databases import Database
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog.charsets import EXACT, codec_of
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl

pytestmark = pytest.mark.either

NAMES = {
    **dict.fromkeys(("utf8mb3", "utf8mb4", "binary"), "tä".encode()),
    **dict.fromkeys(("sjis", "cp932"), b"\x95\x5c\x81\x60"),
    **dict.fromkeys(("ujis", "eucjpms"), b"\xc9\xbd\xa1\xc1"),
    **dict.fromkeys(("gbk", "gb2312"), b"\xb1\xed\xb8\xf1"),
    **{"gb18030": b"\xb1\xed\xa8\xbc", "big5": b"\xaa\xed\xa5\x5c", "euckr": b"\xc7\xa5"},
    **{"cp866": b"t\xfc", "koi8u": b"t\x95", "greek": b"t\xa1\xeb", "hebrew": b"t\xaf\xe0", "geostd8": b"t\xc1\xc2"},
    **{"tis620": b"t\xa1\xa2", "latin1": b"\xc4rg\x81r"},
}
"""The bytes in which a client names the table; those not listed: t\xc4\xe4. With trailing backslashes, and with letters
for which Python has another one."""
NO_CLIENT = ("ucs2", "utf16", "utf16le", "utf32", "ascii", "swe7")


def charsets(database: Database) -> list[str]:
    listed = database.admin.rows("SELECT character_set_name FROM information_schema.character_sets")
    return sorted({str(name) for (name,) in listed} - set(NO_CLIENT))


def in_utf8(database: Database, raw: bytes, charset: str) -> str:
    charset = "utf8mb4" if charset == "binary" else charset
    return str(database.admin.value(f"SELECT CONVERT(CONVERT(X'{raw.hex()}' USING {charset}) USING utf8mb4)"))


@pytest.fixture
def definer(database: Database) -> Iterator[SourceUrl]:
    """Of a name that the server writes in UTF-8 into the text of a client of another character set."""
    name = f"{database.name[-8:]}_中文"
    database.admin.execute_raw(f"CREATE USER `{name}` IDENTIFIED BY '{database.password}'")
    database.admin.execute_raw(f"GRANT ALL ON *.* TO `{name}`")
    yield database.server.plain(database.server.url(database.name, user=name, password=database.password))
    database.admin.execute_raw(f"DROP USER `{name}`")


def test_a_client_of_any_character_set_is_understood(database: Database, definer: SourceUrl) -> None:
    """Its own text, text that the server makes of it, and a mixture; the log tells the client's character set only."""
    found = charsets(database)
    unseen = []
    for charset in found:
        raw = NAMES.get(charset, b"t\xc4\xe4")
        name = in_utf8(database, raw, charset)
        assert "?" not in name, charset
        for statement in (
            b"TRUNCATE `%s`",
            b"ALTER TABLE `%s` COMMENT 'x'",
            b"CREATE TRIGGER g BEFORE INSERT ON `%s` FOR EACH ROW SET @a = 1",
            b"DROP TABLE IF EXISTS nothing, `%s`",
            *([b"CREATE OR REPLACE TABLE `%s` SELECT 1 AS id"] if database.server.is_mariadb else []),
        ):
            # MariaDB leaves a trigger behind whose text it cannot read any more.
            database.admin.execute_raw("DROP TRIGGER IF EXISTS g")
            database.admin.execute_raw(f"DROP TABLE IF EXISTS `{name}`")
            database.admin.execute_raw(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)")
            source, start = watch(database, name), here(database)
            with connect(definer) as app:
                app.execute_raw(f"SET NAMES {charset}")
                app.execute_raw(statement % raw)
            if not stops(database, start, source):
                unseen.append((charset, name, statement))
    assert unseen == []
    assert len(found) >= 30


def test_exact_codecs_give_the_servers_letters(database: Database) -> None:
    wrong, seen = [], set()
    for charset in charsets(database):
        codec = codec_of(charset)
        if codec not in EXACT or codec == "utf-8":
            continue
        seen.add(codec)
        for number in range(128, 256):
            told = in_utf8(database, bytes([number]), charset)
            ours = bytes([number]).decode(codec, "replace")
            if ours not in (told, "\ufffd") and told not in ("?", "None"):
                wrong.append((charset, number, ours, told))
    assert wrong == []
    assert seen == EXACT - {"utf-8", "ascii"}


@pytest.mark.parametrize(
    ("name", "clients"),
    [("t", ("latin1", "cp1251", "koi8r")), ("orders", ("gbk", "sjis", "geostd8")), ("tä", ("latin1", "cp1251"))],
)
def test_text_of_a_client_that_means_another_table_passes(
    database: Database, name: str, clients: tuple[str, ...]
) -> None:
    for table in (name, "o"):
        database.admin.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    source, start = watch(database, name), here(database)
    with database.server.admin(database.name) as app:
        for charset in clients:
            app.execute_raw(f"SET NAMES {charset}")
            app.execute_raw(b"ALTER TABLE o COMMENT '\xb1\xed\xb8\xf1'")
    database.admin.execute_raw(f"INSERT INTO {name} VALUES (1)")
    assert len(changes(groups(database, start, source))) == 1

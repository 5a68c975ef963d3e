"""No secret survives, whatever it is written in; and nothing else is touched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication import masking
from vreplication.errors import Terminal
from vreplication.masking import mask, masked, without_password
from vreplication.mysql.url import parse

SECRET = "Zq7secret"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    masking.forget()
    yield
    masking.forget()


FORMS = [
    "mysql://joe:Zq7secret@h/d",
    "mysql+pymysql://joe:Zq7secret@[::1]:3306/d",
    "mysql://joe:Zq7%40se%2Fcret@h:3306/d?ssl_ca=x",
    "mysql://joe:a@Zq7secret@h:3306/d",
    "at mysql://:Zq7secret@h/d, later",
    "jdbc:mysql://h/d?user=u&password=Zq7secret&x=1",
    "mysql://u@h/d?ssl_key_password=Zq7secret",
    "password=Zq7secret",
    "password='Zq7secret'",
    "passwd=Zq7secret and more",
    "password=0xZq7secret",
    json.dumps("running 'PASSWORD=0x5A7137A1'; KILL 7."),
    json.dumps('running "PASSWORD=0x5A7137A1"; KILL 7.'),
    "pwd='Zq7secret'",
    "passphrase='Zq7secret'",
    "VREPLICATION_PASSWORD=Zq7secret vreplication status",
    '{"user": "u", "password": "Zq7secret"}',
    '{"user": "u", "source_password":"Zq7\\"secret", "n": 1}',
    '{"password": 7700123}',
    "{'password': 'Zq7secret'}",
    '{"query": "SET PASSWORD = \\"Zq7secret\\"", "n": 1}',
    '{"query": "SET PASSWORD = \'Zq7\\\\\'secret\'", "n": 1}',
    json.dumps({"query": json.dumps({"q": 'SET PASSWORD = "Zq7\\"secret"'})}),
    "SELECT PASSWORD('Zq7secret')",
    "SELECT PASSWORD ( 'Zq7secret' )",
    'SELECT OLD_PASSWORD("Zq7secret")',
    "CREATE USER x IDENTIFIED BY 'Zq7secret'",
    "create user x identified by 'Zq7secret'",
    'CREATE USER x IDENTIFIED BY "Zq7secret"',
    "CREATE USER x IDENTIFIED BY PASSWORD '*Zq7secret'",
    "CREATE USER x IDENTIFIED WITH mysql_native_password BY 'Zq7secret'",
    "CREATE USER x IDENTIFIED WITH 'caching_sha2_password' AS 'Zq7secret'",
    "CREATE USER x IDENTIFIED WITH caching_sha2_password AS 0x5A7137A1",
    "CREATE USER x IDENTIFIED VIA ed25519 USING 'Zq7secret' OR pam USING 'Zq7secret'",
    "CREATE USER x IDENTIFIED VIA ed25519 USING PASSWORD('Zq7secret')",
    "ALTER USER x IDENTIFIED BY 'Zq7secret' REPLACE 'Zq7secret' RETAIN CURRENT PASSWORD",
    "CREATE USER x IDENTIFIED BY 'Zq7secret' AND IDENTIFIED WITH plugin BY 'Zq7secret'",
    "GRANT ALL ON *.* TO u@h IDENTIFIED BY 'Zq7secret' WITH GRANT OPTION",
    "CREATE USER x IDENTIFIED /* why */ BY -- here\n 'Zq7secret'",
    "CREATE USER x /*!50000 IDENTIFIED BY 'Zq7secret' */",
    "CREATE USER x\nIDENTIFIED\n\tBY\n'Zq7secret'",
    repr("CREATE USER 'x'@\"h\"\nIDENTIFIED\nBY\n'Zq7secret'"),
    repr("CREATE USER \"x\" IDENTIFIED BY 'Zq7''sec\\'ret'"),
    "CREATE USER x IDENTIFIED BY 'Zq7' 'secret'",
    "CREATE USER x IDENTIFIED BY 'abc'\n  'Zq7secret'",
    "CREATE USER x IDENTIFIED BY 'a''Zq7''secret'",
    "CREATE USER x IDENTIFIED BY 'a\\'Zq7\\'secret'",
    "CREATE USER x IDENTIFIED BY '''Zq7secret'",
    "CREATE USER x IDENTIFIED BY 'line\nZq7secret'",
    "CREATE USER x IDENTIFIED BY X'5A7137A1'",
    "CREATE USER x IDENTIFIED BY _utf8mb4'Zq7secret'",
    "CREATE USER x IDENTIFIED BY N'Zq7secret'",
    "CREATE USER x IDENTIFIED BY 'Zq7sec",
    "CREATE USER x IDENTIFIED BY 'Zq7sec…",
    "CREATE USER x IDENTIFIED BY 'Zq7sec\\",
    "SET PASSWORD = 'Zq7secret'",
    "SET PASSWORD='Zq7secret' REPLACE 'Zq7secret'",
    "SET PASSWORD = PASSWORD('Zq7secret')",
    "SET PASSWORD FOR u = 'Zq7secret'",
    "SET PASSWORD FOR 'u=1'@'%' = PASSWORD('Zq7secret')",
    "SET PASSWORD FOR 'u=1'@'%' = 'Zq7secret' REPLACE 'Zq7secret'",
    'SET PASSWORD FOR CURRENT_USER() = "Zq7secret"',
    "CHANGE MASTER TO MASTER_HOST='h', MASTER_PASSWORD='Zq7secret', MASTER_PORT=3306",
    "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD = 'Zq7secret'",
    "START REPLICA USER='u' PASSWORD='Zq7secret'",
    "START GROUP_REPLICATION USER='u', PASSWORD='Zq7secret'",
    "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', PASSWORD 'Zq7secret', PORT 1)",
    "CLONE INSTANCE FROM 'u'@'h':3306 IDENTIFIED BY 'Zq7secret'",
    "SELECT AES_ENCRYPT(x, 'Zq7secret')",
    "SELECT AES_DECRYPT(x, SHA2('Zq7secret', 512))",
    "SELECT DES_ENCRYPT(x, 'Zq7secret')",
    "SELECT ENCODE(x, 'Zq7secret'), DECODE(x, 'Zq7secret'), ENCRYPT('Zq7secret', 'ab')",
    "SELECT AES_ENCRYPT(x, 'Zq7sec",
    "UPDATE users SET password=SHA2('Zq7secret', 256) WHERE id=1",
    "UPDATE users SET `password` = 'Zq7secret' WHERE id=1",
    "UPDATE users SET password = ('Zq7secret')",
    "near 'IDENTIFIED BY 'Zq7secret' REQUIRE' at line 1 (1064)",
    "SELECT 1; CREATE USER x IDENTIFIED BY 'a;Zq7secret'; SELECT 2",
]


@pytest.mark.parametrize("text", FORMS)
def test_every_form(text: str) -> None:
    found = mask(text)
    assert "Zq7" not in found
    assert "sec" not in found.replace("secret", "")
    assert "5A71" not in found
    assert "7700" not in found
    assert "***" in found
    assert mask(found) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bad mysql+pymysql://joe:pw1@h:3306/db", "bad mysql+pymysql://joe:***@h:3306/db"),
        ("h/d?password=a%40b&x=1", "h/d?password=***&x=1"),
        ("CREATE USER x IDENTIFIED BY 'a' REQUIRE SSL", "CREATE USER x IDENTIFIED BY '***' REQUIRE SSL"),
        ("IDENTIFIED WITH 'p' BY 'a', y IDENTIFIED BY 'b'", "IDENTIFIED WITH 'p' BY '***', y IDENTIFIED BY '***'"),
        ("(USER 'u', PASSWORD 'a', PORT 1)", "(USER 'u', PASSWORD '***', PORT 1)"),
        ("SET PASSWORD = 'a'; SELECT 'b' AS 'c'", "SET PASSWORD = '***'; SELECT 'b' AS 'c'"),
        ('running "SET PASSWORD = \'a" for 3 s', "running \"SET PASSWORD = '***'"),
        ("said 'SET PASSWORD = \\'a', twice", "said 'SET PASSWORD = \\'***\\'', twice"),
        ('{"password": "a\\"b", "n": 1}', '{"password": "***", "n": 1}'),
        ("the login (password=abc) failed.", "the login (password=***) failed."),
        ("AES_ENCRYPT(name, 'a'), 'b'", "AES_ENCRYPT(name, '***'), 'b'"),
    ],
)
def test_no_more_than_the_secret_goes(text: str, expected: str) -> None:
    assert mask(text) == expected
    assert mask(expected) == expected


ORDINARY = [
    "SELECT id, password, 'x' FROM users WHERE name = 'y'",
    "SELECT u.password AS p, 'x' FROM users u ORDER BY 'y'",
    "ALTER TABLE users RENAME COLUMN password TO password_hash",
    "CHANGE password passwd VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'x'",
    "ADD COLUMN password VARCHAR(64) DEFAULT 'none', ADD COLUMN pwd INT, ADD INDEX (password(10))",
    "ADD COLUMN password_hash VARCHAR(64), MODIFY email VARCHAR(320) DEFAULT 'x'",
    "ADD c VARCHAR(9) DEFAULT 'password', ADD d VARCHAR(9) DEFAULT 'y'",
    "ENCRYPTION='Y', COMMENT='identified'",
    "SELECT password=NULL_VALUE".replace("=", " = "),
    "UPDATE users SET password = other, name = 'x' WHERE password IS NULL",
    "Check user, password and database.",
    "Access denied for user 'joe'@'localhost' (using password: YES) (1045)",
    "Pass --source or set VREPLICATION_PASSWORD; the password: nobody else knows it.",
    "The row is identified by its key, as 'x' says.",
    "Unknown column 'password' in 'field list'",
    "Duplicate entry 'a' for key 'password'",
    "at http://h:8080/path or mysql://joe@h:3306/db",
    "replaced by 'x', as 'y' using 'z'",
    "password_lifetime = 5, default_password_lifetime=5, validate_password.policy=LOW",
    '{"password_expired": "N", "password": null}',
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert mask(text) == text


def _sql(secret: str) -> str:
    return "'" + secret.replace("\\", "\\\\").replace("'", "''") + "'"


def _slashed(secret: str) -> str:
    return '"' + secret.replace("\\", "\\\\").replace('"', '\\"') + '"'


STATEMENTS = [
    "CREATE USER x IDENTIFIED BY {}",
    "ALTER USER x IDENTIFIED WITH p BY {0} REPLACE {0}",
    "SET PASSWORD = {}",
    "SET PASSWORD FOR 'u'@'%' = {}",
    "SELECT PASSWORD({})",
    "CHANGE MASTER TO MASTER_USER='u', MASTER_PASSWORD={}",
    "CREATE SERVER s OPTIONS (PASSWORD {})",
    "SELECT AES_ENCRYPT(a, {})",
    "UPDATE t SET pwd={} WHERE id=1",
]
LITERALS = [_sql, _slashed, lambda s: "0x" + s.encode().hex(), lambda s: "X'" + s.encode().hex() + "'"]
EMBEDDINGS = [
    str,
    repr,
    json.dumps,
    lambda s: json.dumps({"a": [s], "b": "c"}),
    lambda s: f"connection 7 (u@h) holds a lock, running {s!r}; wait for it, or KILL 7.",
    lambda s: json.dumps(f"running {s!r}; KILL 7."),
    lambda s: s.replace("IDENTIFIED BY", "identified\n by"),
    lambda s: f"SELECT 1; {s}; SELECT 2",
]
drawn = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)


def marked(tail: str) -> str:
    """A secret that can be found again whatever has been escaped in it."""
    return f"Zq7{tail}Zq7"


def survives(secret: str, text: str) -> bool:
    return "Zq7" in text or b"Zq7".hex() in text


@given(drawn, st.sampled_from(STATEMENTS), st.sampled_from(LITERALS), st.sampled_from(EMBEDDINGS))
def test_no_drawn_secret_survives_in_a_statement(tail: str, statement: str, literal: object, embed: object) -> None:
    secret = marked(tail)
    text = embed(statement.format(literal(secret)))  # type: ignore[operator]
    found = mask(text)
    assert not survives(secret, found), (text, found)
    assert mask(found) == found


@given(drawn, st.sampled_from(STATEMENTS), st.sampled_from([_sql, _slashed]), st.integers(1, 20))
def test_no_drawn_secret_survives_where_the_statement_is_cut(
    tail: str, statement: str, literal: object, cut: int
) -> None:
    secret = marked(tail)
    text = statement.format(literal(secret))  # type: ignore[operator]
    whole = text[: text.index("Zq7") + cut]
    for shown in (whole, whole + "…", repr(whole), json.dumps(whole)):
        assert not survives(secret, mask(shown)), (shown, mask(shown))


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="'\"&"), max_size=12))
def test_no_drawn_secret_survives_in_urls_and_options(tail: str) -> None:
    secret = marked(tail)
    for text in (
        f"mysql://u:{secret}@h:3306/d",
        f"mysql://u:{quote(secret, safe='')}@[::1]/d?x=1",
        f"'mysql://u:{secret}@h/d'",
        f"mysql://h/d?password={quote(secret)}&x=1",
        f"VREPLICATION_PASSWORD={secret} vreplication",
        json.dumps({"password": secret}),
    ):
        assert not survives(secret, mask(text)), (text, mask(text))


@given(drawn)
def test_a_secret_that_is_known_is_found_anywhere(tail: str) -> None:
    secret = marked(tail)
    for text in (secret, f"login with {secret} failed", quote(secret, safe=""), json.dumps(secret), _sql(secret)):
        assert not survives(secret, mask(text, (secret,))), text


_WORDS = st.sampled_from(
    ["SELECT", "password", "'a'", "b,", "ADD COLUMN", "pwd", "replace", "identified", "(c)", "-", "x = 5", "\n", '"d",']
)


@given(st.text(), st.lists(_WORDS).map(" ".join))
def test_masking_is_idempotent_and_never_raises(text: str, words: str) -> None:
    for each in (text, words, words + text):
        assert mask(mask(each)) == mask(each)


@given(st.text())
def test_text_without_the_words_is_unchanged(text: str) -> None:
    harmless = text.replace(":", "").replace("=", "").replace("(", "")
    lowered = harmless.lower()
    if not any(word in lowered for word in ("password", "identified")):
        assert mask(harmless) == harmless


def test_long_texts_take_no_longer_than_their_length() -> None:
    began = time.monotonic()
    for text in (
        "password" * 20_000,
        "\\" * 100_000,
        "a" * 100_000,
        "/*" * 50_000,
        "identified by " * 8_000,
        "'" * 99_999,
    ):
        mask(text)
        mask("IDENTIFIED BY '" + text)
    assert time.monotonic() - began < 10


def test_values_inside_of_values() -> None:
    found = masked({"a": [{"b": f"SET PASSWORD = '{SECRET}'"}], "n": 1, "none": None}, ())
    assert found == {"a": [{"b": "SET PASSWORD = '***'"}], "n": 1, "none": None}


def test_a_short_secret_does_not_mangle_other_words() -> None:
    masking.remember(*parse("mysql://root:root@h/shop").secrets)
    text = "user root may not, with 'root' mysql://root:root@h"
    assert mask(text) == "user root may not, with '***' mysql://root:***@h"


def test_an_errors_text_is_masked() -> None:
    assert str(Terminal("near IDENTIFIED BY 'Zq7secret' (1064)", cure="x")) == "near IDENTIFIED BY '***' (1064) x"


def test_a_url_without_its_password() -> None:
    assert without_password("mysql://joe:p@w@h/db?ssl_key_password=x&ssl_ca=y") == "mysql://joe@h/db?ssl_ca=y"

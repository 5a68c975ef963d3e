"""What an expression of a definition (generated column, default, index) reads, and whether all sessions agree on it.

What must stay true: a column that an expression may read is never missed, through generated columns of any depth and
however the server quotes names; an expression counts as the same in every session only when each of its functions is
known to be so. What is not known is taken for dependent: that costs time, never rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator, Sequence

from vreplication.mysql.text import Token, Unreadable, tokens
from vreplication.schema.dates import DATED, are_taken, go_by_mode, is_compared, match_by_session
from vreplication.schema.literals import INTEGERS, TEMPORALS
from vreplication.schema.model import Column, Table

_FUNCTIONS = """
    abs acos ascii asin atan atan2 bin bin_to_uuid bit_count bit_length ceil ceiling char_length character_length
    coalesce concat concat_ws conv cos cot crc32 datediff day dayofmonth dayofweek dayofyear degrees elt exp field
    find_in_set floor from_base64 from_days greatest hex hour if ifnull inet6_aton inet6_ntoa inet_aton inet_ntoa insert
    instr is_uuid isnull json_array json_contains json_contains_path json_depth json_exists json_extract json_keys
    json_length json_merge_patch json_merge_preserve json_object json_overlaps json_quote json_search json_type
    json_unquote json_valid json_value last_day lcase least left length ln locate log log10 log2 lower lpad ltrim
    makedate maketime md5 microsecond mid minute mod month nullif octet_length ord pi position pow power quarter quote
    radians regexp_like repeat replace reverse right round rpad rtrim second sha sha1 sha2 sign sin soundex space sqrt
    st_astext st_geomfromtext st_isvalid st_latitude st_longitude st_srid st_x st_y strcmp substr substring
    substring_index tan time_to_sec to_base64 to_days to_seconds trim truncate ucase unhex upper uuid_to_bin
    weight_string year
    cast convert as and or xor not in is between like regexp rlike div case when then else end distinct interval
    array member of char varchar binary decimal signed unsigned float double real integer date datetime time json
"""
_SAME_EVERYWHERE = frozenset(_FUNCTIONS.split())
"""Functions, and words that may stand before a parenthesis. None of them asks for a time zone, a language, the week's
first day, the time or the user; those that write a number or a date as text by the session's language are not here."""
_ASKED_WITHOUT_PARENTHESES = frozenset({"CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_USER"}) | {
    "LOCALTIME", "LOCALTIMESTAMP", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "CURRENT_ROLE", "ZONE",
}  # fmt: skip
_GIVES_A_TIME = frozenset({"time", "maketime"})
_WORDS_OF_TIMES = """
    concat concat_ws hour minute second microsecond time_to_sec length char_length
    and or xor not in is null true false between like if ifnull coalesce nullif isnull case when then else end
    cast convert using as char signed unsigned decimal
"""
_LEAVES_A_TIME = _GIVES_A_TIME | frozenset(_WORDS_OF_TIMES.split())
"""Words that take no TIME for a date."""
_NOTHING = Token(kind="punct", text="", value="", start=0, end=0)
_LOOKS_LIKE_A_DATE = re.compile(r"\d[^\d:]\d|\d{7}")


def read_by(table: Table, expression: str) -> frozenset[str]:
    """Lower-case names of the columns that the expression reads, those behind generated columns included."""
    found: set[str] = set()
    waiting = [expression]
    while waiting:
        for column in _named(table, waiting.pop()):
            if column.name.lower() not in found:
                found.add(column.name.lower())
                waiting += [column.expression] if column.generated else []
    return frozenset(found)


def _named(table: Table, expression: str) -> Iterator[Column]:
    """A word that may be a column's name counts as one."""
    parts = _tokens(expression)
    if parts is None:
        yield from table.columns
        return
    words = {token.value.lower() for token in parts if token.is_name}
    yield from (column for column in table.columns if column.name.lower() in words)


def is_same_everywhere(table: Table, expression: str) -> bool:
    """True when each session computes the same value from the same row."""
    names = read_by(table, expression)
    columns = [column for column in table.columns if column.name.lower() in names]
    texts = [expression, *(column.expression for column in columns if column.generated)]
    # A TIMESTAMP is read in the session's zone, so not even a function that is known gives all the same of it.
    if any(c.data_type == "timestamp" for c in columns) or not all(map(_calls_known, texts)):
        return False
    if are_taken(table, texts, _tokens):
        return False
    return not _has_a_time(columns, texts) or _leaves_times(table, columns, texts)


def is_settled(table: Table, expression: str) -> bool:
    """And all of its digits and matches, however a session divides, rounds and compares with patterns: so has to be
    what a unique key is over. Days of zero apart (`odd_days_of`).
    """
    return is_same_everywhere(table, expression) and not is_read_by_session(table, expression)


def is_read_by_session(table: Table, expression: str) -> bool:
    """By its SQL mode, digits of divisions, flags of patterns; by its time zone, where that is of no TIMESTAMP."""
    texts = [expression, *_behind(table, expression)]
    is_rounded = is_rounded_by_session(table, expression)
    return is_rounded or are_taken(table, texts, _tokens) or match_by_session(texts, _tokens)


def odd_days_of(table: Table, expression: str) -> frozenset[str]:
    """Columns of whose days of zero, and days that no month has, the expression makes other values by the SQL mode.

    Lower-case names.
    """
    if not go_by_mode(table, [expression, *_behind(table, expression)], _tokens):
        return frozenset()
    read = read_by(table, expression)
    return frozenset(n for c in table.columns if (n := c.name.lower()) in read and c.data_type in DATED)


def _behind(table: Table, expression: str) -> list[str]:
    """Expressions of the generated columns that it reads."""
    names = read_by(table, expression)
    return [c.expression for c in table.columns if c.generated and c.name.lower() in names]


def is_rounded_by_session(table: Table, expression: str) -> bool:
    """div_precision_increment says how many digits a division has, that of the session by which the server has opened
    the table (both, measured); under TIME_TRUNCATE_FRACTIONAL a time is cut where it is rounded otherwise (MySQL), or
    the other way round under TIME_ROUND_FRACTIONAL (MariaDB).
    """
    return any(_is_rounded(table, text) for text in {expression, *_behind(table, expression)})


def _is_rounded(table: Table, text: str) -> bool:
    parts = _tokens(text)
    if parts is None or any(token.is_punct("/") or _is_cut(table, parts, at) for at, token in enumerate(parts)):
        return True
    read = [each for each in _named(table, text) if not _is_compared_only(parts, each.name)]
    if any(token.is_word("MAKETIME") for token in parts) and not all(each.data_type in INTEGERS for each in read):
        return True
    own = [c for c in table.columns if c.generated and c.expression == text]
    # A date alone may be written to a number, too, which has no more of it than the seconds.
    is_alone = [token.kind for token in parts if not token.is_punct("(", ")")] in (["word"], ["quoted"])
    written = [c for c in own if c.data_type in TEMPORALS or (is_alone and c.data_type in INTEGERS)]
    return not all(_holds(column.fraction, each) for column in written for each in read)


def _is_compared_only(parts: Sequence[Token], name: str) -> bool:
    """Wherever it stands: what it holds is not written."""
    places = [at for at, token in enumerate(parts) if token.is_name and token.value.lower() == name.lower()]
    return all(is_compared(parts, at) for at in places)


def _is_cut(table: Table, parts: Sequence[Token], at: int) -> bool:
    """`… AS DATETIME`, but of a bare column, or a literal, that has no more behind its seconds."""
    if not parts[at].is_word("DATE", "DATETIME", "TIME") or not parts[at - 1].is_word("AS"):
        return False
    before = parts[at - 2]
    if before.kind == "string":
        # With an offset it goes by the session's zone (MySQL).
        return re.search(r"\.|[+-]\d\d?:\d\d$", before.value) is not None
    digits = parts[at + 2].text if at + 2 < len(parts) and parts[at + 1].is_punct("(") else "0"
    read = [c for c in table.columns if c.name.lower() == before.value.lower()]
    return not (read and parts[at - 3].is_punct("(") and digits.isdecimal() and _holds(int(digits), read[0]))


def _holds(fraction: int, read: Column) -> bool:
    """Nothing that stands behind the seconds is lost."""
    return read.data_type in INTEGERS or (read.data_type in TEMPORALS and read.fraction <= fraction)


def reads_a_char(table: Table, expression: str) -> bool:
    """Under PAD_CHAR_TO_FULL_LENGTH it is of another value (MySQL)."""
    names = read_by(table, expression)
    return any(column.data_type == "char" for column in table.columns if column.name.lower() in names)


def asks_for_the_zone(table: Table, expression: str) -> bool:
    """A TIMESTAMP is read, and more of it than whether it is NULL or its seconds since 1970."""
    names = read_by(table, expression)
    columns = [column for column in table.columns if column.name.lower() in names]
    stamps = frozenset(column.name.lower() for column in columns if column.data_type == "timestamp")
    texts = [expression, *(column.expression for column in columns if column.generated)]
    return bool(stamps) and any(_reads_a_clock(text, stamps) for text in texts)


def _reads_a_clock(text: str, stamps: Container[str]) -> bool:
    parts = _tokens(text)
    if parts is None:
        return True
    for at, token in enumerate(parts):
        if token.is_name and token.value.lower() in stamps and not _is_asked_alone(parts, at):
            return True
    return False


def _is_asked_alone(parts: Sequence[Token], at: int) -> bool:
    """`at IS [NOT] NULL`, ISNULL(at), UNIX_TIMESTAMP(at)."""
    before, behind = parts[max(at - 2, 0) : at], parts[at + 1 : at + 3]
    if behind and behind[0].is_word("IS"):
        return behind[-1].is_word("NULL", "NOT")
    is_called = len(before) == 2 and before[0].is_word("ISNULL", "UNIX_TIMESTAMP") and before[1].is_punct("(")
    return is_called and bool(behind) and behind[0].is_punct(")")


def _has_a_time(columns: Sequence[Column], texts: Sequence[str]) -> bool:
    return any(c.data_type == "time" for c in columns) or any(
        token.is_name and token.value.lower() in _GIVES_A_TIME for text in texts for token in _tokens(text) or ()
    )


def _leaves_times(table: Table, columns: Sequence[Column], texts: Sequence[str]) -> bool:
    """True where no TIME is taken for a date, which would be one of the session's day: by a cast, by a comparison with
    a date, by the column that it is written to.
    """
    written = [c for c in table.columns for text in texts if text in (c.expression, c.default)]
    names = {c.name.lower() for c in table.columns}
    return not any(c.data_type in DATED for c in (*columns, *written)) and all(
        # A character set (MariaDB writes it into the expressions of a table in utf16 or utf32).
        before.is_word("USING") or _leaves_a_time(token, names)
        for text in texts
        for before, token in itertools.pairwise([_NOTHING, *(_tokens(text) or ())])
    )


def _leaves_a_time(token: Token, columns: Container[str]) -> bool:
    if token.kind == "string":
        return not _LOOKS_LIKE_A_DATE.search(token.value)
    word = token.value.lower()
    # A word that begins so is the character set of the string behind it.
    return not token.is_name or word in columns or word in _LEAVES_A_TIME or word.startswith("_")


def _calls_known(expression: str) -> bool:
    parts = _tokens(expression)
    if parts is None:
        return False
    for token, following in zip(parts, [*parts[1:], None], strict=True):
        if token.is_word(*_ASKED_WITHOUT_PARENTHESES) or token.text.startswith("@"):
            return False
        is_called = following is not None and following.is_punct("(")
        if is_called and token.is_name and token.value.lower() not in _SAME_EVERYWHERE:
            return False
    return True


def _tokens(expression: str) -> list[Token] | None:
    """None: it cannot be read. SHOW INDEX escapes the quotes of an expression, SHOW CREATE TABLE does not."""
    for text in (expression, re.sub(r"\\(.)", r"\1", expression, flags=re.S)):
        try:
            found = tokens(text)
        except Unreadable:
            continue
        if not any(token.text == "\\" for token in found):
            return found
    return None


def introduced(sql: str) -> list[tuple[Token, Token]]:
    """Strings with the character set before them, as MySQL writes those of an expression: `_latin1'a'`."""
    pairs = itertools.pairwise(tokens(sql))
    return [(a, b) for a, b in pairs if b.kind == "string" and a.kind == "word" and a.text.startswith("_")]


def has_escapes(table: Table) -> bool:
    """On MySQL: does a string inside an expression hold a backslash? A session with NO_BACKSLASH_ESCAPES that is the
    first to open the table has MySQL 9.7 read it otherwise, for every session that uses it after that."""
    return any("\\" in string.text for _, string in introduced(table.create_sql))


def is_json_check(name: str, check: str) -> bool:
    words = [token.value.lower() for token in tokens(check)]
    return words == ["check", "(", "json_valid", "(", name.lower(), ")", ")"]

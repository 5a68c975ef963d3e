"""Python's codecs for the character sets in which clients send statements.

What must stay true: no codec is better than a wrong one; what cannot be decoded, or not with certainty, stops the
workflow wherever it may name a watched table (statements.py).
"""

from __future__ import annotations

_CODECS = {
    **dict.fromkeys(("utf8mb4", "utf8mb3", "utf8", "binary"), "utf-8"),
    # The servers' latin1 is cp1252, but for five bytes that Python does not have: text with one of them cannot be read,
    # and stops where it may name us.
    **{"latin1": "cp1252", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "ascii": "ascii"},
    **{"gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "euckr": "euc_kr"},
    **{"sjis": "cp932", "cp932": "cp932", "ujis": "euc_jp", "eucjpms": "euc_jp", "tis620": "tis_620"},
    **{"koi8r": "koi8_r", "koi8u": "koi8_u", "greek": "iso8859-7", "hebrew": "iso8859-8"},
    **{name: name for name in ("cp850", "cp852", "cp866", "cp1250", "cp1251", "cp1256", "cp1257")},
    **{"macce": "mac_latin2", "macroman": "mac_roman"},
}


EXACT = frozenset(
    {
        *("utf-8", "ascii", "cp1252", "iso8859-2", "iso8859-9", "iso8859-13", "koi8_r", "tis_620"),
        *("cp850", "cp852", "cp1250", "cp1251", "cp1256", "cp1257", "mac_latin2", "mac_roman"),
    }
)
"""Those that give the servers' own letter for every byte, or none. No one of several bytes a letter: UTF-8 of the
server's in the middle of such a text takes the letters apart. The others differ from the servers in a few letters."""


def codec_of(charset: str | None) -> str | None:
    """None: not known."""
    return _CODECS.get(charset or "")

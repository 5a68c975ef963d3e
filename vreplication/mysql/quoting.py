"""Identifiers and literals as SQL text.

What must stay true: every value that we put into SQL text is a literal in this module's shapes (digits, X'..' with a
character set, quoted date text), so the text is plain ASCII whatever the data is.
"""

from __future__ import annotations

from collections.abc import Iterable


def ident(name: str) -> str:
    """`name` in backticks."""
    return "`" + name.replace("`", "``") + "`"


def qualified(schema: str, table: str) -> str:
    return f"{ident(schema)}.{ident(table)}"


def idents(names: Iterable[str]) -> str:
    """Comma list of quoted identifiers."""
    return ",".join(map(ident, names))


def text(value: str) -> str:
    """A string as a literal that needs no escaping."""
    return f"_utf8mb4 X'{value.encode().hex()}'" if value else "''"


def binary(value: bytes) -> str:
    return f"X'{value.hex()}'" if value else "''"

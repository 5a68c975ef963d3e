"""A server that takes no writes for a moment: while somebody switches over to another one, or has closed it behind a
move. Somebody may open it again, so it is waited for.

What must stay true: nothing but the server's own word for it counts; any other error stays what it is. A trigger of
ours that denies writes gives the same number in other words, and is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.errors import Transient
from vreplication.mysql.session import Session, SqlError

_BY_OPTION, _BY_MODE = 1290, 1836
"""The first has other meanings, too, so the words are looked at."""
CURE = "SET GLOBAL read_only=OFF there; behind a switch the triggers of the workflow deny everybody else's writes."
"""Of tables that move."""


class ReadOnly(Transient):
    """read_only, or super_read_only, is on."""


@contextlib.contextmanager
def told(what: str, of: Session | None = None) -> Iterator[None]:
    """what: the server that tables which move are written to inside the block, as "the source". Raises ReadOnly.

    of: a connection to it, where other servers are written to in there, too.
    """
    try:
        yield
    except SqlError as error:
        if not _says_so(error) or (of is not None and not is_so(of)):
            raise
        raise ReadOnly(sentence(what), cure=CURE) from None


@contextlib.contextmanager
def waited_for() -> Iterator[None]:
    """Of a source that is followed alone. Raises ReadOnly, as of one that is away."""
    try:
        yield
    except SqlError as error:
        if not _says_so(error):
            raise
        raise ReadOnly(f"The source takes no writes: {error.message}") from error


def _says_so(error: SqlError) -> bool:
    is_option = error.code == _BY_OPTION and "read-only option" in error.message.replace("_", "-")
    return is_option or error.code == _BY_MODE


def sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]} is read-only, and the workflow has to write there."


def is_so(session: Session) -> bool:
    return str(session.value("SELECT @@GLOBAL.read_only")) not in ("0", "OFF")

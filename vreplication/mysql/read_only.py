"""A server that takes no writes at the moment, told as what it is: somebody may open it again, so it is waited for.

What must stay true: a trigger of ours that denies writes gives the same number in other words, and is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.errors import Transient
from vreplication.mysql.session import Session, SqlError

_CODE = 1290
_WORDS = "read-only option"


class ReadOnly(Transient):
    """read_only, or super_read_only, is on."""


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """what: the server that is written to inside the block, as "the source". Raises ReadOnly."""
    try:
        yield
    except SqlError as error:
        if error.code != _CODE or _WORDS not in error.message:
            raise
        raise ReadOnly(sentence(what), cure=CURE) from None


def sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]} is read-only, and the workflow has to write there."


CURE = "SET GLOBAL read_only=OFF there; behind a switch the triggers of the workflow deny everybody else's writes."


def is_so(session: Session) -> bool:
    return str(session.value("SELECT @@GLOBAL.read_only")) not in ("0", "OFF")

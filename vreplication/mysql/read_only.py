"""A server that takes no writes for a moment: while somebody switches over to another one, or has closed it behind a
move. Somebody may open it again, so it is waited for.

What must stay true: nothing but the server's own word for it counts; any other error stays what it is. A trigger of
ours that denies writes gives the same number in other words, and is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.ends import Route
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.settings import BEAT_SECONDS

_BY_OPTION, _BY_MODE = 1290, 1836
"""The first has other meanings, too, so the words are looked at."""
CURE = "SET GLOBAL read_only=OFF there; behind a switch the triggers of the workflow deny everybody else's writes."
"""Of tables that move."""


class ReadOnly(Transient):
    """read_only, or super_read_only, is on."""


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """what: the server that tables which move are written to inside the block, as "the source". Raises ReadOnly."""
    try:
        yield
    except SqlError as error:
        if not says_so(error):
            raise
        raise ReadOnly(sentence(what), cure=CURE) from None


@contextlib.contextmanager
def waited_for() -> Iterator[None]:
    """Of a source that is followed alone. Raises ReadOnly, as of one that is away."""
    try:
        yield
    except SqlError as error:
        if not says_so(error):
            raise
        raise ReadOnly(f"The source takes no writes: {error.message}") from error


def named(error: VReplicationError, route: Route) -> VReplicationError:
    """ReadOnly of the server of a move that says so, where that is what the error says; else the error itself."""
    if not route.is_across or not says_so(error):
        return error
    closed = closed_of(route)
    return ReadOnly(sentence(closed), cure=CURE) if closed else ReadOnly(f"A server took no writes: {error.message}")


def closed_of(route: Route) -> str:
    """Which server of a move is read-only now, as "the source". '' where none says so."""
    old = route.source if route.target == route.home else route.target
    for what, url in (("the target", route.home), ("the source", old)):
        # One that is away says nothing: that is told when it is written to.
        with contextlib.suppress(VReplicationError), connect(url, read_timeout=BEAT_SECONDS) as session:
            if is_so(session):
                return what
    return ""


def says_so(error: VReplicationError) -> bool:
    if not isinstance(error, SqlError):
        return False
    is_option = error.code == _BY_OPTION and "read-only option" in error.message.replace("_", "-")
    return is_option or error.code == _BY_MODE


def sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]} is read-only, and the workflow has to write there."


def is_so(session: Session) -> bool:
    return str(session.value("SELECT @@GLOBAL.read_only")) not in ("0", "OFF")

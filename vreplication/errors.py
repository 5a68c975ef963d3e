"""The one error tree.

    VReplicationError
    ├── Transient       may succeed when it is done again: a deadlock, a lock wait, a lost connection
    │   └── LeaseHeld   another process works on this workflow
    ├── Ambiguous       the server may have done it before we lost the answer: looked up, never retried
    └── Terminal        will not succeed when it is done again
        ├── Refused         planning says no; nothing was touched (exit 2)
        ├── SourceChanged   the log shows something that we may not pass over (DDL, unknown event, lost rows)
        ├── BadValue        a row that the new definition cannot hold, or a real duplicate
        ├── Superseded      a newer holder of the lease, or a newer attempt at the chunk, has taken over
        ├── Cancelled       the operator cancelled the workflow (exit 3)
        └── Interrupted     SIGINT or SIGTERM (exit 130)

What must stay true: a message holds no secret, for it is masked here, and it ends with what to do where there is
something to do.
"""

from __future__ import annotations

from vreplication.masking import mask


class VReplicationError(Exception):
    """Anything that we raise on purpose. `cure` is one sentence on what to do, or empty."""

    exit_code = 1

    def __init__(self, message: str, *, cure: str = "") -> None:
        self.message = mask(message)
        self.cure = mask(cure)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.cure}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.cure))


def _rebuild(kind: type[VReplicationError], message: str, cure: str) -> VReplicationError:
    """Errors cross process borders (Spark pickles them), keyword arguments and all."""
    return kind(message, cure=cure)


class Transient(VReplicationError):
    """May succeed when it is done again."""


class LeaseHeld(Transient):
    """Another living process holds the lease of this workflow."""


class Ambiguous(VReplicationError):
    """The server may have done it; look it up before anything else is done."""


class Terminal(VReplicationError):
    """Will not succeed when it is done again."""


class Refused(Terminal):
    """Bad input, or a check that says no: nothing was touched."""

    exit_code = 2


class SourceChanged(Terminal):
    """The binary log shows something that a copy must not pass over."""


class BadValue(Terminal):
    """A row that the new definition of the table cannot hold."""


class Superseded(Terminal):
    """A newer attempt or a newer lease holder has taken over; we must not write any more."""


class Cancelled(Terminal):
    """The operator cancelled the workflow."""

    exit_code = 3


class Interrupted(Terminal):
    """SIGINT or SIGTERM."""

    exit_code = 130

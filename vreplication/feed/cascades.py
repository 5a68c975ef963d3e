"""Foreign keys that come while a feed runs, and whose work the server does not log.

A key comes with a statement that has REFERENCES in it, or with a table that is renamed. What the table is by now
decides, as at the start. It may have lost the key since the statement: then it is told that rows may be missing.

What must stay true: no such statement is sent before it was looked at, so that a feed that stops there looks again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from vreplication.errors import Terminal
from vreplication.feed.catalog import Filter
from vreplication.feed.messages import Ddl
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, SqlError
from vreplication.planning.foreign import acts_on, are_logged

_COMES = re.compile(r"\b(?:REFERENCES|RENAME)\b", re.I)
_ACTING = re.compile(r"\bREFERENCES\b.*\bON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|SET\s+NULL)\b", re.I | re.S)
_GONE = frozenset({1146, 1049})
_CURE = "Make the key RESTRICT, delete by statements of your own, and resume the feed; or accept it: its command with"


@dataclass(slots=True, kw_only=True)
class Cascades:
    """Of one source. is_ignored: somebody has said that such changes may be missing. feed: its id."""

    session: Session
    filter: Filter
    feed: str
    is_ignored: bool = False
    is_folded: bool = False
    warn: Callable[[str], None] = lambda text: None
    _is_logged: bool | None = None

    def check(self, ddl: Ddl) -> None:
        """Raises Terminal."""
        if not _COMES.search(ddl.sql) or self._are_logged():
            return
        # A statement may spell them otherwise than the server stores them, and the filter goes by what is stored.
        names = [(a.lower(), b.lower()) for a, b in ddl.tables] if self.is_folded else ddl.tables
        followed = [each for each in dict.fromkeys(names) if each[1] and self.filter.has(*each)]
        if acting := [each for each in followed if self._acts_on(*each)]:
            self._tell(".".join(acting[0]))
        elif followed and _ACTING.search(ddl.sql):
            self.warn(
                f"Table {'.'.join(followed[0])} was given a foreign key that deletes or changes rows by itself, and has"
                " none any more: what it did meanwhile is in no message. Compare the table's rows with the target's."
            )

    def _are_logged(self) -> bool:
        if self._is_logged is None:
            self._is_logged = are_logged(inspect(self.session))
        return self._is_logged

    def _acts_on(self, schema: str, table: str) -> bool:
        try:
            found = self.session.row(f"SHOW CREATE TABLE {qualified(schema, table)}")
        except SqlError as error:
            if error.code in _GONE:
                return False
            raise
        return found is not None and acts_on(str(found[1]))

    def _tell(self, table: str) -> None:
        words = (
            f"Foreign keys delete or change rows of {table} (ON DELETE, ON UPDATE) since a statement that the log has,"
            " and the server does not log it: such changes are in no message"
        )
        if not self.is_ignored:
            raise Terminal(
                f"{words}, also those that were made since.", cure=f"{_CURE} --workflow {self.feed} --cascades ignore."
            )
        self.warn(f"{words}.")

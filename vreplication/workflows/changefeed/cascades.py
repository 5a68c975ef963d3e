"""Rows that a foreign key deletes or changes by itself, which a server may leave out of its log.

Such a change is in no message, and whoever reads the feed keeps the row. A key that comes later: feed/cascades.py.

What must stay true: no feed of such a table begins unless somebody has said that this may be.
"""

from __future__ import annotations

from typing import Any

from vreplication.planning.facts import Check, ok, refuse, warn
from vreplication.planning.foreign import are_logged, foreign_keys

NAME = "cascades"


def check(facts: Any) -> Check:
    """Of one source."""
    server = facts.server
    if are_logged(server):
        return ok(NAME, "The server logs what foreign keys do.")
    # Of the whole server: the parent whose rows are deleted may be in a schema that is not followed.
    children = {key.child for key in foreign_keys(facts.session, is_mariadb=server.is_mariadb) if key.acts}
    if not (found := sorted(children.intersection(facts.tables))):
        return ok(NAME, "No foreign key changes rows of these tables by itself.")
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    words = (
        f"Foreign keys delete or change rows of {'.'.join(found[0])}{more} (ON DELETE, ON UPDATE), and {server} does"
    )
    words += " not log it: such changes would be in no message."
    if facts.spec.cascades == "ignore":
        return warn(NAME, words, "Delete the children's rows by statements of your own.")
    return refuse(
        NAME,
        words,
        "Make the keys RESTRICT and delete by statements of your own, leave the tables out (--exclude), or accept it:"
        " --cascades ignore.",
    )

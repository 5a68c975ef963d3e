"""Can the table's triggers be carried over to the new table? Asked where that was asked for; else they are refused.

What must stay true: what passes here is what the server itself has been shown on the new table at prepare, while that
is empty; a name that changes is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication import names
from vreplication.planning import privileges
from vreplication.planning.facts import Check, Facts, ok, refuse, warn
from vreplication.schema import triggers as made
from vreplication.schema.triggers import Trigger

_NAME = "triggers"
_DROP = "Drop them first and create them again after the cut-over"
# MySQL 8.2 has SET_ANY_DEFINER in the place of SET_USER_ID; either will do.
_ANY_DEFINER = {True: ("SET USER",), False: ("SET_ANY_DEFINER", "SET_USER_ID")}


def triggers(facts: Facts) -> Check:
    place = facts.source.schema, facts.source.name
    # By name first: one whose text cannot be carried (`triggers.read`) is refused for that only where it is to be
    # carried.
    listed = ", ".join(made.names_on(facts.session, *place))
    if not listed:
        return ok(_NAME, "No triggers.")
    if facts.spec.triggers == "refuse":
        words = f"{facts.name} has triggers ({listed}); they would stay on the retired table."
        return refuse(_NAME, words, f"Take --triggers preserve. Or: {_DROP[0].lower()}{_DROP[1:]}.")
    found = made.read(facts.session, *place)
    return _rights(facts, found) or _columns(facts, found) or _told(facts, found)


def _rights(facts: Facts, found: Sequence[Trigger]) -> Check | None:
    session, is_mariadb = facts.session, facts.server.is_mariadb
    if not privileges.may_create_triggers(session, is_mariadb=is_mariadb):
        return refuse(
            _NAME,
            "The server writes a binary log and log_bin_trust_function_creators is off, so only a user with SUPER may "
            "create triggers.",
            "SET GLOBAL log_bin_trust_function_creators=ON until the workflow has ended, or GRANT SUPER ON *.* TO the "
            "user.",
        )
    other = next((each for each in found if not made.is_definer_us(session, each)), None)
    if other is None or _may_set_definer(facts):
        return None
    right = _ANY_DEFINER[is_mariadb][0]
    words = f"Trigger {other.name} runs as {other.definer}, and only a user with {right} may make it so again."
    return refuse(_NAME, words, f"GRANT {right} ON *.* TO the user.")


def _may_set_definer(facts: Facts) -> bool:
    is_mariadb = facts.server.is_mariadb
    grants = privileges.read_grants(facts.session, is_mariadb=is_mariadb)
    wanted = (*_ANY_DEFINER[is_mariadb], "SUPER")
    return any(not privileges.missing(grants, frozenset({right}), "*") for right in wanted)


def _columns(facts: Facts, found: Sequence[Trigger]) -> Check | None:
    """A plain ALTER would leave a trigger behind that fails at the next write."""
    # Then the server tells at prepare, where each is made on the new table, which is empty, and dropped again.
    if facts.target is None:
        return None
    known = {column.name.lower() for column in facts.target.columns}
    for each in found:
        if lost := sorted(made.columns_of(each) - known):
            words = f"Trigger {each.name} uses column {lost[0]}, which the new definition lacks."
            return refuse(_NAME, words, "Drop the trigger, or make it again without that column, then plan again.")
    return None


def _told(facts: Facts, found: Sequence[Trigger]) -> Check:
    taken = made.taken(facts.session, facts.source.schema)
    new = {}
    for each in found:
        new[each.name] = _free(each.name, taken)
        # Two triggers of one table whose long names begin alike may come to the same name.
        taken.add(new[each.name].lower())
    listed = ", ".join(f"{old} becomes {name}" for old, name in new.items())
    return warn(
        _NAME,
        f"Triggers are made on the new table within the cut-over, under new names, for the old table keeps its own: "
        f"{listed}. Tables that they use are locked with it, for as long.",
    )


def _free(name: str, taken: set[str]) -> str:
    # Without end: who keeps every original keeps its triggers' names, so each change needs another one.
    return next(each for each in names.carried_triggers(name) if each.lower() not in taken)

"""`housekeeping`: what is left over and may go; with --yes it goes.

What must stay true: everything is listed before anything is removed; without --yes nothing is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vreplication.cli import options
from vreplication.cli.operate import by
from vreplication.cli.say import PROGRAM, json_line, say, warn
from vreplication.mysql.session import connect
from vreplication.state import layout

if TYPE_CHECKING:
    from vreplication.scheduler.housekeeping import Item

HELP = """
List what is left over, and with --yes remove it.

That is: originals of complete workflows past their time, or past their window to revert, journal rows and charts older
than 90 days, shadow tables that no workflow has, leases of workflows that are gone. Nothing of
a workflow that goes on, or that has failed and may go on, is touched.
"""
_MOST_DAYS = 36_500
_Days = Annotated[
    int,
    typer.Option("--older-than", metavar="DAYS", min=0, max=_MOST_DAYS, help="Keep originals this long after the end."),
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove what is listed.")]


def housekeeping(
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    older_than: _Days = 7,
    yes: _Yes = False,
    is_json: options.JsonOption = False,
) -> None:
    from vreplication.scheduler import housekeeping as house

    with connect(options.resolve(source, source_file)) as session:
        # First: a user who may not read the sidecar would be told that nothing is left over.
        layout.check_readable(session)
        items = house.find(session, retired_days=older_than)
        for item in items:
            _show(item, is_json)
        left = house.remove_all(session, items, by()) if yes else []
    _conclude(items, left, is_yes=yes, is_json=is_json)
    raise typer.Exit(1 if left else 0)


def _show(item: Item, is_json: bool) -> None:
    if is_json:
        json_line({"event": "found", **item.as_json()})
    else:
        say(f"{item.kind} {item.what}: {item.why}")


def _conclude(items: list[Item], left: list[tuple[Item, str]], *, is_yes: bool, is_json: bool) -> None:
    """Problems go to standard error, or into the last JSON line."""
    removed = len(items) - len(left) if is_yes else 0
    if is_json:
        stays = [{"what": item.what, "reason": reason} for item, reason in left]
        json_line({"event": "housekeeping", "found": len(items), "removed": removed, "left": stays})
        return
    for item, reason in left:
        warn(f"{item.kind} {item.what} stays: {reason}")
    say(_last_words(len(items), removed, is_yes=is_yes))


def _last_words(found: int, removed: int, *, is_yes: bool) -> str:
    if not found:
        return "Nothing is left over."
    return (
        f"Removed {removed} of {found}." if is_yes else f"Nothing was removed; do so with: {PROGRAM} housekeeping --yes"
    )

"""Groups of commands whose help shows no type beside a flag: `--json <bool>` reads as if a value were to follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperGroup


class Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            # With the option --help, which is not among its own.
            _without_types(found.get_params(ctx))
        return found


def _without_types(params: Iterable[Any]) -> list[Any]:
    found = list(params)
    for each in found:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return found

"""docs/cli.md names every command and every option that the program has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from sandbox import reference
from vreplication.cli import main

REFERENCE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


def commands(found: object, name: str = "") -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(found, TyperGroup):
        for part, command in found.commands.items():
            yield from commands(command, f"{name} {part}".strip())
    elif isinstance(found, TyperCommand) and not found.hidden:
        yield name, found


COMMANDS = dict(commands(typer.main.get_command(main.app)))


def test_the_program_has_commands() -> None:
    assert {
        "online-ddl",
        "plan online-ddl",
        "status",
        "cleanup",
        "backfill",
        "submit online-ddl",
        "submit move-tables",
    } <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_options_are_in_the_reference(name: str) -> None:
    words = [name, *(word for p in COMMANDS[name].params for word in (*p.opts, *p.secondary_opts))]
    options = [word for word in words if word.startswith("--") or word == name]
    assert len(options) > 1 or name in ("spark-archive", "completion")
    assert [word for word in options if word not in REFERENCE] == []


def test_the_reference_of_the_kinds_is_the_registrys() -> None:
    """`make reference` writes it."""
    assert reference.PATH.read_text() == reference.text()


def test_the_reference_names_no_option_that_no_command_has() -> None:
    named = set(re.findall(r"^\| `(--[a-z0-9_-]+)", reference.text(), re.MULTILINE))
    known = {word for each in COMMANDS.values() for p in each.params for word in (*p.opts, *p.secondary_opts)}
    assert named - known == set()

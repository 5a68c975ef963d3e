"""Every command and its options as Markdown, from the program's own parser: docs/manual.md and `man vreplication`.

What must stay true: nothing is said here that `--help` does not say; what is hidden there is hidden here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from vreplication.cli import main
from vreplication.cli.say import PROGRAM

_SEE_ALSO = (
    "## See also\n\nThe page *The command line* of the documentation (docs/cli.md) says what the options mean together."
)


def text() -> str:
    """Markdown, with definition lists."""
    root = typer.main.get_command(main.app)
    return "\n\n".join([*_all(root, typer.Context(root, info_name=PROGRAM)), _SEE_ALSO])


def _all(command: Any, context: Any) -> Iterator[str]:
    """A command, then those below it."""
    path = context.command_path
    if path != PROGRAM:
        yield f"## {path.removeprefix(PROGRAM).strip()}"
    else:
        yield "## Description"
    yield f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```"
    yield _help(command.help or "")
    yield from _params(command, context)
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _all(below, typer.Context(below, parent=context, info_name=name))


def _help(words: str) -> str:
    """Lines that are set in are commands, to be read as they stand."""
    parts = [part if not part.startswith("  ") else f"```text\n{_out(part)}\n```" for part in words.split("\n\n")]
    return "\n\n".join(parts)


def _out(part: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in part.rstrip().splitlines())


def _params(command: Any, context: Any) -> Iterator[str]:
    for param in command.get_params(context):
        if (record := param.get_help_record(context)) and "--help" not in param.opts:
            name, said = record
            yield f"`{name}`\n: {_plain(said) or 'See above.'}"


def _plain(said: str) -> str:
    """Without what the terminal's markup needs; what Markdown would take for markup is text."""
    return re.sub(r"([<*_])", r"\\\1", said.replace("\\[", "[").replace("\n", " "))

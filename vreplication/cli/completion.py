"""`completion SHELL`: what makes a shell complete commands, options and their values, by the parser's own library.

What must stay true: a Tab connects to nothing and writes nothing; the shell asks the program itself, so what it offers
is what the program takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from vreplication.cli.say import PROGRAM

HELP = """
Print what makes a shell complete this program's commands, options and values.

Example:

  source <(vreplication completion bash)
"""
ASKED = f"_{PROGRAM.upper()}_COMPLETE"
"""Environment variable: the shell is asking, and for what."""


class Shell(StrEnum):
    """Those that are supported."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="The shell that is to complete.", show_default=False)],
) -> None:
    print(get_completion_script(prog_name=PROGRAM, complete_var=ASKED, shell=shell.value))


def of_words(words: Sequence[str]) -> Callable[[str], list[str]] | None:
    """What a shell offers for an option that takes one of several words; None: it takes anything."""
    return (lambda incomplete: [word for word in words if word.startswith(incomplete)]) if words else None


def prepare() -> None:
    """Before the program is run: answers go to a shell in the words of the script above."""
    if os.environ.get(ASKED):
        # What explains a word comes in one line, however long: fish would offer the next one as a word of its own.
        os.environ["COLUMNS"] = "10000"
        completion_init()

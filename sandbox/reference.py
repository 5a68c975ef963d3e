"""`make reference`: docs/reference.md, made from the registry: each kind's stages, options and params.

What must stay true: nothing is said here that the registry does not say; tests/unit/test_cli_reference.py compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, get_args

from sandbox.install import ROOT
from vreplication.cli import asked
from vreplication.planning.fields import SECTION, own_fields
from vreplication.workflows.registry import COMMANDS, KINDS, Command, WorkflowKind, connection_param

PATH = ROOT / "docs" / "reference.md"
_HEAD = """# What can be asked for?

Made by `make reference` from the registry of workflow kinds (`vreplication/workflows/registry.py`): the same fields
are the options of the command and the form of the DAG; the same stages are run by the command, are the tasks of the
DAG, and are printed by `plan`.
"""
Asked = WorkflowKind | Command
_SECTIONS = {
    "what": "What",
    "when": "When to switch",
    "how": "How hard to work",
    "where": "Where Spark runs",
    "rare": "Rarely needed",
}


def main() -> int:
    PATH.write_text(text())
    return 0


def text() -> str:
    """Markdown."""
    kinds = (line for kind in KINDS.values() for line in _kind(kind))
    return "\n".join([_HEAD, *kinds, *(line for each in COMMANDS.values() for line in _command(each))])


def _kind(kind: WorkflowKind) -> Iterator[str]:
    command = f"vreplication {kind.name.replace('_', '-')}"
    yield f"## {kind.name}\n\n{kind.help} `{command}`, `{command.replace(' ', ' plan ', 1)}`, DAG `{kind.name}`.\n"
    yield "| Stage | Comes after | Phases in `status` |\n|---|---|---|"
    for stage in kind.stages:
        yield f"| `{stage.name}` | {_words(stage.after) or '–'} | {_words(stage.phases) or 'beside the others'} |"
    yield "\n| Option | Param of the DAG | Default | Meaning |\n|---|---|---|---|"
    for end in kind.ends:
        yield f"| `--{end} URL` | `{connection_param(end)}` | `VREPLICATION_{end.upper()}` | the {end} server |"
    yield from map(_optional, kind.optional)
    yield from _fields(kind)


def _optional(end: str) -> str:
    """A server that need not be there: a further one of a role has that role's option, given once more."""
    role, _, number = end.partition("_")
    given = f"`--{role} URL`, once more" if number else f"`--{role} URL`"
    variable = f"`VREPLICATION_{role.upper()}`" + (", behind a space" if number else "")
    words = f"a further {role}" if number else f"a {role} of the source, on which the copy reads"
    return f"| {given} | `{connection_param(end)}` | {variable} | {words} |"


def _command(command: Command) -> Iterator[str]:
    words = f"`vreplication {command.name.replace('_', '-')}`, DAG `{command.name}`"
    yield f"## {command.name}\n\n{command.help} {words}.\n"
    yield "| Option | Param of the DAG | Default | Meaning |\n|---|---|---|---|"
    yield from _fields(command)


def _fields(kind: Asked) -> Iterator[str]:
    own, shared = own_fields(kind.spec)
    for part, title in _SECTIONS.items():
        names = [name for name in (*own, *shared) if _extra(kind, name)[SECTION] == part]
        if names:
            yield f"| **{title}** | | | |"
        yield from (_field(kind, name) for name in names)
    yield ""


def _words(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _extra(kind: Asked, name: str) -> dict[str, Any]:
    found = kind.spec.model_fields[name].json_schema_extra
    assert isinstance(found, dict), name
    return found


def _field(kind: Asked, name: str) -> str:
    field = kind.spec.model_fields[name]
    (_, info) = get_args(asked.option(name, field).annotation)
    flag = str(info.default) + (f" {info.metavar}" if info.metavar else "")
    default = "required" if field.is_required() else asked.default_words(field)
    meaning = str(field.description).replace("|", "\\|")
    return f"| `{flag.replace('|', chr(92) + '|')}` | `{name}` | {default or '–'} | {meaning} |"


if __name__ == "__main__":
    sys.exit(main())

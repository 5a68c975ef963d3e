"""Where the servers come from: --source, --target, their files and the environment, made into SourceUrls.

What must stay true: a password given in argv works but is warned about; once read, no secret stays in our environment,
so no child inherits it, whatever is refused.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vreplication import masking
from vreplication.cli import hooks
from vreplication.cli.say import warn
from vreplication.errors import Refused
from vreplication.mysql.url import SourceUrl, parse, parse_replicas
from vreplication.planning.fields import check_master
from vreplication.workflows.lookup import Servers

SOURCE = "VREPLICATION_SOURCE"
PASSWORD = "VREPLICATION_PASSWORD"
TARGET = "VREPLICATION_TARGET"
TARGET_PASSWORD = "VREPLICATION_TARGET_PASSWORD"
REPLICA = "VREPLICATION_REPLICA"
REPLICA_PASSWORD = "VREPLICATION_REPLICA_PASSWORD"
LAG_REPLICAS = "VREPLICATION_LAG_REPLICAS"


def _url(name: str, what: str, url: str, password: str) -> Any:
    """The option of a server's URL, whose password has better places."""
    words = f"{what}: mysql+pymysql://user@host:port/db. Or set {url}. "
    secret = f"The password is better given in {password} or --{name}-file."
    return typer.Option(f"--{name}", metavar="URL", help=words + secret)


SourceOption = Annotated[str | None, _url("source", "The server and its database", SOURCE, PASSWORD)]
SourceFileOption = Annotated[
    Path | None,
    typer.Option("--source-file", metavar="FILE", help="A file that holds the URL, or the password alone."),
]
SourcesOption = Annotated[
    list[str] | None,
    _url("source", "A server and its database; several times: several servers", SOURCE, PASSWORD),
]
SourceFilesOption = Annotated[
    list[Path] | None,
    typer.Option("--source-file", metavar="FILE", help="A file that holds a URL, or the password alone; also several."),
]
TargetOption = Annotated[str | None, _url("target", "The server that is written", TARGET, TARGET_PASSWORD)]
TargetFileOption = Annotated[
    Path | None,
    typer.Option("--target-file", metavar="FILE", help="A file that holds the target's URL, or its password alone."),
]
ReplicaOption = Annotated[
    str | None, _url("replica", "A replica of the source on which the copy reads", REPLICA, REPLICA_PASSWORD)
]
ReplicaFileOption = Annotated[
    Path | None,
    typer.Option("--replica-file", metavar="FILE", help="A file that holds the replica's URL, or its password alone."),
]
LagReplicasFileOption = Annotated[
    Path | None,
    typer.Option(
        "--lag-replicas-file",
        metavar="FILE",
        help=f"A file with a URL for each replica that has a login of its own. Or set {LAG_REPLICAS}.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines on standard output, and nothing else.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SourceLostOption = Annotated[
    bool,
    typer.Option("--source-lost", help="Of tables that move: the old server is gone for good; what is there stays."),
]
AcceptLostWritesOption = Annotated[
    bool,
    typer.Option(
        "--accept-lost-writes",
        help="With --source-lost, behind a switch back: what the old server took since is lost with it.",
    ),
]
WorkflowArgument = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]


def is_master(value: str | None) -> str | None:
    try:
        return None if value is None else check_master(value)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def directory(text: str) -> Path:
    """For typer: an empty name, which a path takes for the directory that the command stands in, is none."""
    if not str(text):
        raise typer.BadParameter("it is empty.")
    return Path(text)


def is_there(value: Any) -> Any:
    """Of directories that are read."""
    for each in value if isinstance(value, list) else filter(None, [value]):
        if not Path(each).is_dir():
            raise typer.BadParameter(f"there is no directory {str(each)!r}.")
    return value


SparkMasterOption = Annotated[
    str | None,
    typer.Option("--spark-master", metavar="URL", callback=is_master, help="Where Spark runs. [default: local\\[*]]"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Role:
    """One of the servers: how it is called, and where its URL and its password may be."""

    name: str
    url: str
    password: str

    def take(self) -> tuple[str, str]:
        """URL and password, out of the environment; '' where they are not in it."""
        return os.environ.pop(self.url, ""), os.environ.pop(self.password, "")

    def find(self, text: str | None, file: Path | None, environment: tuple[str, str]) -> SourceUrl | None:
        """environment: what `take` gave. None: it is not given. Raises Refused when what is given is not a URL."""
        if text is not None and not text.strip():
            # As from a shell variable that is not set: to go on without it would read or write elsewhere.
            raise Refused(f"--{self.name} is empty.", cure="Give it a URL, or leave it out.")
        from_env, password = environment
        content = read_line(self.name, file) if file else ""
        found = text or (content if "://" in content else "") or from_env
        if not found:
            return None
        if _is_several(found):
            raise Refused(f"{self.url} names several servers.", cure=f"Give the one that is meant: --{self.name} URL.")
        url = self._parsed(found)
        # Before anything may be said of it, the warning below too.
        masking.remember(*url.secrets)
        # /proc shows arguments to everybody, an environment to its owner alone.
        if text and url.password:
            warn(
                f"A password in --{self.name} can be seen by every user of this machine; {self.password} or "
                f"--{self.name}-file hides it."
            )
        chosen = _with_password(url, "" if "://" in content else content, password)
        # What was delivered is noted on the server, and a replica is only read.
        if self.name != "replica":
            hooks.follow(chosen)
        return chosen

    def missing(self) -> Refused:
        return Refused(
            f"No {self.name} is given.",
            cure=f"Pass --{self.name} mysql+pymysql://user@host:port/db or set {self.url}.",
        )

    def _parsed(self, text: str) -> SourceUrl:
        try:
            return parse(text)
        except Refused as failure:
            message = failure.message.replace("The source", f"The {self.name}", 1)
            raise Refused(message, cure=failure.cure) from None


def _is_several(text: str) -> bool:
    """URLs with white space between them, which may be in one as well: in its password."""
    return sum("://" in word for word in text.split()) > 1


def read_line(name: str, path: Path) -> str:
    """Of a file with a secret; name: whose. Raises Refused."""
    named = f"The {name} file {str(path)!r}"
    content = _read(named, path)
    if not content or len(content.splitlines()) > 1:
        raise Refused(f"{named} does not hold one line.", cure="Put the URL or the password in it.")
    return content


def _read(named: str, path: Path) -> str:
    try:
        content = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Refused(f"{named} cannot be read: {reason}.") from None
    # Said and not refused: secrets that are mounted into a container often have such modes.
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IRGRP):
        warn(f"{named} can be read by other users; chmod 600 it.")
    return content


def _logins(file: Path | None, from_env: str) -> tuple[SourceUrl, ...]:
    """Of replicas whose lag counts. Raises Refused."""
    named = f"The file of replicas {str(file)!r}"
    found = parse_replicas(_read(named, file) if file else from_env)
    if file and not found:
        raise Refused(f"{named} is empty.", cure="Put a URL in it for each replica.")
    masking.remember(*(secret for each in found for secret in each.secrets))
    return found


def named(logins: tuple[SourceUrl, ...]) -> str | None:
    """As `--lag-replicas` names them, for where it does not; None: there are none."""
    hosts = ((f"[{url.host}]" if ":" in url.host else url.host, url.port) for url in logins)
    return ",".join(f"{host}:{port}" for host, port in hosts) or None


_SOURCE = _Role(name="source", url=SOURCE, password=PASSWORD)
_TARGET = _Role(name="target", url=TARGET, password=TARGET_PASSWORD)
_REPLICA = _Role(name="replica", url=REPLICA, password=REPLICA_PASSWORD)


def resolve(source: str | None, source_file: Path | None, lag_replicas_file: Path | None = None) -> SourceUrl:
    """The source to work on. Raises Refused when it is not given or is not a URL."""
    # Also what this command has no use for leaves the environment, which Spark and catch-up inherit.
    environment, _, _, replicas = _SOURCE.take(), _TARGET.take(), _REPLICA.take(), os.environ.pop(LAG_REPLICAS, "")
    found = _SOURCE.find(source, source_file, environment)
    if found is None:
        raise _SOURCE.missing()
    return replace(found, replicas=_logins(lag_replicas_file, replicas))


def several(sources: list[str] | None, files: list[Path] | None) -> tuple[SourceUrl, ...]:
    """Servers to follow, those that are named before those out of files. Raises Refused.

    A file with a password alone, and the environment's, are for all that have none of their own.
    """
    url, password = _SOURCE.take()
    os.environ.pop(LAG_REPLICAS, None)
    lines = [(file, read_line("source", file)) for file in files or ()]
    secrets = [line for _, line in lines if "://" not in line]
    if len(secrets) > 1:
        raise Refused("Several source files hold a password alone.", cure="Put the whole URL into each of them.")
    urls = [line for _, line in lines if "://" in line]
    found = [*(sources or ()), *urls] or url.split()
    password = secrets[0] if secrets else password
    each = [_SOURCE.find(text, None, ("", password)) for text in sources or ()]
    each += [_SOURCE.find(None, None, (text, password)) for text in found[len(sources or ()) :]]
    if not each:
        raise _SOURCE.missing()
    return tuple(one for one in each if one is not None)


def with_further(
    sources: list[str] | None,
    files: list[Path] | None,
    target: str | None,
    target_file: Path | None,
    lag_replicas_file: Path | None = None,
) -> tuple[Servers, tuple[SourceUrl, ...]]:
    """As `servers`, and the sources behind the first. Raises Refused."""
    first, file = next(iter(sources or ()), None), next(iter(files or ()), None)
    is_of_file = file is not None and "://" in read_line("source", file)
    # An option and a file with a URL are two servers; a file with a password alone is that of the option's.
    is_one = len(sources or ()) < 2 and len(files or ()) < 2 and not (first and is_of_file)
    # What a feed was begun with has to take it on: its sources may be named in the environment alone.
    if is_one and (first or is_of_file or not _is_several(os.environ.get(SOURCE, ""))):
        return servers(first, file, target, target_file, lag_replicas_file=lag_replicas_file), ()
    found = several(sources, files)
    # The first is where a feed of several sources has its lease and its figures.
    return Servers(source=found[0], target=None), found[1:]


def replica(text: str | None, file: Path | None) -> SourceUrl | None:
    """To be asked for before the other servers, which clear the environment. Raises Refused."""
    return _REPLICA.find(text, file, _REPLICA.take())


def both(
    source: str | None,
    source_file: Path | None,
    target: str | None,
    target_file: Path | None = None,
    lag_replicas_file: Path | None = None,
) -> tuple[SourceUrl, SourceUrl]:
    """Source and target. Raises Refused when one of them is not given."""
    found = servers(source, source_file, target, target_file, is_either=False, lag_replicas_file=lag_replicas_file)
    assert found.source
    assert found.target
    return found.source, found.target


def servers(
    source: str | None,
    source_file: Path | None,
    target: str | None,
    target_file: Path | None,
    *,
    is_either: bool = True,
    is_target: bool = False,
    is_none: bool = False,
    lag_replicas_file: Path | None = None,
) -> Servers:
    """Those that are given. Raises Refused when none is; or without `is_either`, when one of them is not; or with
    `is_target`, when the target is not; with `is_none` never."""
    of_source, of_target, _ = _SOURCE.take(), _TARGET.take(), _REPLICA.take()
    logins = _logins(lag_replicas_file, os.environ.pop(LAG_REPLICAS, ""))
    # Only where the state is they are asked for, and that is not known yet.
    at_source = _with_logins(_SOURCE.find(source, source_file, of_source), logins)
    at_target = _with_logins(_TARGET.find(target, target_file, of_target), logins)
    if is_none:
        return Servers(source=at_source, target=at_target)
    if at_source is None and not is_target and (at_target is None or not is_either):
        raise _SOURCE.missing()
    if at_target is None and (is_target or not is_either):
        raise _TARGET.missing()
    return Servers(source=at_source, target=at_target)


def _with_logins(url: SourceUrl | None, logins: tuple[SourceUrl, ...]) -> SourceUrl | None:
    return None if url is None else replace(url, replicas=logins)


def _with_password(url: SourceUrl, from_file: str, from_env: str) -> SourceUrl:
    """A password from the file, else the URL's own, else the environment's."""
    chosen = url.with_password(from_file or url.password or from_env)
    masking.remember(*chosen.secrets)
    return chosen

"""Where the source comes from: --source, --source-file and the environment, made into one SourceUrl.

What must stay true: a password given in argv works but is warned about; once read, no secret stays in our environment,
so no child inherits it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import typer

from vreplication import masking
from vreplication.cli.say import warn
from vreplication.errors import Refused
from vreplication.mysql.url import SourceUrl, parse

SOURCE = "VREPLICATION_SOURCE"
PASSWORD = "VREPLICATION_PASSWORD"

SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        help=f"The server and its database: mysql+pymysql://user@host:port/db. Or set {SOURCE}. "
        f"The password is better given in {PASSWORD} or --source-file.",
    ),
]
SourceFileOption = Annotated[
    Path | None,
    typer.Option("--source-file", metavar="FILE", help="A file that holds the URL, or the password alone."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON lines on standard output, and nothing else.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
WorkflowArgument = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]
SparkMasterOption = Annotated[
    str | None, typer.Option("--spark-master", metavar="URL", help="Where Spark runs. [default: local\\[*]]")
]


def number_or_auto(text: str | None) -> str | None:
    """What was given; None for auto. What is no number, the Spec refuses."""
    return None if text is None or text.strip().lower() == "auto" else text


def resolve(source: str | None, source_file: Path | None) -> SourceUrl:
    """The source to work on. Raises Refused when it is not given or is not a URL."""
    content = _read(source_file) if source_file else ""
    from_env, password = os.environ.pop(SOURCE, ""), os.environ.pop(PASSWORD, "")
    text = source or (content if "://" in content else "") or from_env
    if not text:
        raise Refused("No source is given.", cure=f"Pass --source mysql+pymysql://user@host:port/db or set {SOURCE}.")
    url = parse(text)
    masking.remember(*url.secrets)
    if source and url.password:
        warn(f"A password in --source can be seen by every user of this machine; {PASSWORD} or --source-file hides it.")
    return _with_password(url, "" if "://" in content else content, password)


def _with_password(url: SourceUrl, from_file: str, from_env: str) -> SourceUrl:
    """A password from the file, else the URL's own, else the environment's."""
    chosen = url.with_password(from_file or url.password or from_env)
    masking.remember(*chosen.secrets)
    return chosen


def _read(path: Path) -> str:
    try:
        content = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Refused(f"The source file {str(path)!r} cannot be read: {reason}.") from None
    if not content or len(content.splitlines()) > 1:
        raise Refused(
            f"The source file {str(path)!r} does not hold one line.", cure="Put the URL or the password in it."
        )
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IRGRP):
        warn(f"The source file {str(path)!r} can be read by other users; chmod 600 it.")
    return content

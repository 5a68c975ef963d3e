"""`backfill`: copies or refreshes the rows of one interval of a table, by a job of migrations/backfills.yaml.

What must stay true: no password stays in our environment or is shown; exit codes are the program's own: 0 complete and
verified, 1 failed, 2 refused, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vreplication.cli import logs, options
from vreplication.cli.attend import stopping_on_signals
from vreplication.cli.say import error, json_line, say, tell
from vreplication.cli.streams import children_to
from vreplication.errors import Refused
from vreplication.mysql.url import SourceUrl
from vreplication.progress import numbers

if TYPE_CHECKING:
    from vreplication.backfill.job import Job
    from vreplication.backfill.run import Result

FOLDER = "VREPLICATION_MIGRATIONS"
HELP = f"""
Copy or refresh the rows of one interval of time, from a table to one on the same server or another.

Rows are written by their primary key and compared afterwards; the same command again changes nothing. The job is one
of migrations/backfills.yaml; servers come from --source and --target, and passwords from {options.PASSWORD} and
{options.TARGET_PASSWORD}.

Example:

  vreplication backfill orders --from 2026-01-01 --to 2026-02-01
"""

_Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name in the file.")]
_From = Annotated[str, typer.Option("--from", metavar="ISO", help="Start, included: 2026-01-31 or 2026-01-31T08:00Z.")]
_To = Annotated[str, typer.Option("--to", metavar="ISO", help="End, not included. Without an offset it is UTC.")]
_File = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="The jobs. [default: migrations/backfills.yaml]", show_default=False),
]
_Mirror = Annotated[
    bool | None,
    typer.Option(
        "--mirror/--no-mirror",
        help="Delete the target's rows that are gone from the source's interval. [default: the job's]",
        show_default=False,
    ),
]


def backfill(
    job: _Job,
    start: _From,
    end: _To,
    file: _File = None,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    mirror: _Mirror = None,
    spark_master: options.SparkMasterOption = None,
    is_json: options.JsonOption = False,
) -> None:
    # The secrets leave the environment first, whatever else may be refused.
    source_url, target_url = options.both(source, source_file, target, target_file)
    asked = _job(file, job, mirror, spark_master)
    interval = _moment(start, "--from"), _moment(end, "--to")
    logs.start(f"backfill-{asked.name}")
    raise typer.Exit(_run(asked, source_url, target_url, interval, is_json=is_json))


def _run(job: Job, source: SourceUrl, target: SourceUrl, interval: tuple[datetime, datetime], *, is_json: bool) -> int:
    from vreplication.backfill.run import run

    stop, done = threading.Event(), threading.Event()
    note = _silent if is_json else _note
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(run(job, source, target, *interval, stop=stop, notify=note))
        except BaseException as failure:
            errors.append(failure)
        finally:
            done.set()

    _attend(work, stop, done)
    # Here, where the program makes one sentence of it; in its thread it would be a traceback.
    if errors:
        raise errors[0]
    return finish(results[0], is_json=is_json)


def _attend(work: Callable[[], None], stop: threading.Event, done: threading.Event) -> None:
    """Not in the main thread: Spark, started there, puts a SIGINT handler of its own over ours."""
    thread = threading.Thread(target=work, name="backfill")
    with stopping_on_signals(stop), children_to(logs.of_children()):
        thread.start()
        while not done.wait(0.25):
            pass
        thread.join()


def _note(text: str) -> None:
    # A pipe that is closed ends no copy: what is said on the way is not its result.
    with contextlib.suppress(OSError):
        tell(text)


def _silent(_: str) -> None:
    """With --json standard output holds the result alone."""


def finish(result: Result, *, is_json: bool) -> int:
    """Print the end; returns the exit code."""
    if is_json:
        json_line({"event": "complete" if result.verified else "failed", **result.as_json()})
    if result.verified:
        if not is_json:
            say(_complete(result))
        return 0
    error(f"failed: {result.reason} Run the same command again.")
    return 1


def _complete(result: Result) -> str:
    fields = ("inserted", "updated", "unchanged", "deleted")
    done = ", ".join(f"{numbers.count(getattr(result, name))} {name}" for name in fields)
    lines = [f"Complete: {numbers.count(result.rows_read)} rows read, {done}; verified."]
    if result.extra_rows:
        lines.append(f"{numbers.count(result.extra_rows)} rows are on the target alone; --mirror deletes them.")
    if result.null_time_rows:
        lines.append(f"{numbers.count(result.null_time_rows)} rows of the source have no time and are never copied.")
    return "\n".join(lines)


def _job(file: Path | None, name: str, mirror: bool | None, spark_master: str | None) -> Job:
    from vreplication.backfill.job import find_job, load_jobs, make_job

    path = file or Path(os.environ.get(FOLDER) or "migrations") / "backfills.yaml"
    found = find_job(load_jobs(path), name, path)
    given = {"mirror": mirror, "spark_master": spark_master}
    changed = {key: value for key, value in given.items() if value is not None}
    # Made anew, so that what an option says is checked as the file is.
    return make_job({**found.model_dump(), **changed}, where=f"Job {name!r}")


def _moment(text: str, option: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Refused(f"{option} {text!r} is not a time.", cure="Write 2026-01-31 or 2026-01-31T08:00Z.") from None
    # Never this machine's zone: the same command has to copy the same rows wherever it is run.
    return found if found.tzinfo else found.replace(tzinfo=UTC)

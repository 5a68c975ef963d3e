"""What a user asks for: a backfill job as a value that is checked once, and the YAML file that jobs are kept in.

What must stay true: a Job holds no URL and no password, only names of connections; every wrong value and every broken
file is one clear sentence (`Refused`) that names the job or the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from vreplication.errors import Refused
from vreplication.planning.fields import said

MAX_BATCH_ROWS = 10_000
MAX_LATENESS_MINUTES = 1_440


def _name(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    return value.strip()


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    # KeyError: there is no such zone; ValueError: a path that leads outside; OSError: a folder of the database, as
    # Europe is.
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is no time zone of the IANA database, such as Europe/Berlin") from None
    return value


Name = Annotated[str, AfterValidator(_name)]


class Job(BaseModel):
    """A table whose rows of one interval are copied from `source` to `target`."""

    # Without `strict` pydantic takes true for 1 and "no" for false: a slip in the YAML would be a setting.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name = Field(description="What the job is called on the command line and in a DAG run's conf.")
    source: Name = Field(description="Airflow connection of the server that is read.")
    target: Name = Field(description="Airflow connection of the server that is written; may be the same.")
    table: Name = Field(description="Table in the source connection's database.")
    target_table: Name | None = Field(
        default=None, description="Table in the target's database; the same name if none."
    )
    time_column: Name = Field(description="DATETIME, TIMESTAMP or DATE column that says which interval a row is in.")
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC", description="IANA zone of the values of a DATETIME or DATE column; TIMESTAMP is UTC."
    )
    mirror: bool = Field(default=False, description="Delete the target's rows that the source's interval has not.")
    lateness_minutes: int = Field(
        default=15,
        ge=0,
        le=MAX_LATENESS_MINUTES,
        description="An interval is read so long after its end, by the source's clock; 0: at once, over or not.",
    )
    batch_rows: int = Field(default=1_000, ge=1, le=MAX_BATCH_ROWS, description="Rows a statement writes or deletes.")
    parallelism: int = Field(default=2, ge=1, le=64, description="Spark tasks at a time.")
    spark_master: Name = Field(default="local[*]", description="Spark's master.")

    @property
    def written_table(self) -> str:
        return self.target_table or self.table


def make_job(given: Any, *, where: str = "The job") -> Job:
    """A Job from what a file or a face gave. Raises Refused with one sentence, which `where` begins."""
    if not isinstance(given, dict):
        raise Refused(f"{where} is not a list of fields.", cure="Write `name: …`, `source: …` and so on.")
    try:
        return Job.model_validate(given)
    except ValidationError as error:
        raise Refused(f"{where}: {said(error)}") from None


def load_jobs(path: Path) -> dict[str, Job]:
    """The jobs of a YAML file by their names. Raises Refused."""
    content = _read(path)
    if not isinstance(content, dict) or set(content) != {"jobs"}:
        raise Refused(f"{path} is not `jobs:` with a list of jobs.", cure="See docs/backfill.md for an example.")
    listed = content["jobs"] if content["jobs"] is not None else []
    if not isinstance(listed, list):
        raise Refused(f"`jobs` in {path} is not a list.", cure="Begin each job with `- name: …`.")
    jobs = [make_job(item, where=f"Job {_called(item, i)} in {path}") for i, item in enumerate(listed, 1)]
    return _by_name(jobs, path)


def _called(item: Any, number: int) -> str:
    return repr(item["name"]) if isinstance(item, dict) and item.get("name") else str(number)


def _by_name(jobs: Sequence[Job], path: Path) -> dict[str, Job]:
    found: dict[str, Job] = {}
    for job in jobs:
        if job.name in found:
            raise Refused(f"{path} has two jobs of the name {job.name!r}.", cure="Rename one of them.")
        found[job.name] = job
    return found


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"The file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Refused(f"The file {path} is not text in UTF-8.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise Refused(
            f"The file {path} is not valid YAML{line}: {getattr(error, 'problem', None) or 'broken'}."
        ) from None


def find_job(jobs: dict[str, Job], name: str, path: Path) -> Job:
    """Raises Refused when there is no such job."""
    if name not in jobs:
        known = ", ".join(sorted(jobs)) or "none"
        raise Refused(f"There is no job {name!r} in {path}; it has: {known}.")
    return jobs[name]

"""What a user asks for when a topic is to become a lake, or a lake is to be compacted.

What must stay true: as of `planning.request`: no secret in it, and one clear sentence for every wrong value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vreplication.planning.fields import SparkMaster, ask, make_request


class LakeSpec(BaseModel):
    """directory: on a file system that Spark's executors share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    topic: str = Field(
        min_length=1,
        title="Topic",
        description="The topic: kafka://host:9092[,host:9092]/topic[?option=value].",
        json_schema_extra=ask("what", option="--from", metavar="URL"),
    )
    directory: str = Field(
        min_length=1,
        title="Directory",
        description="Where the lake is, or will be.",
        json_schema_extra=ask("what", option="--to", metavar="DIRECTORY"),
    )
    every: float = Field(
        default=10.0,
        ge=0.1,
        title="Shortest time between manifests (seconds)",
        description="A manifest at the most so often, seconds.",
        json_schema_extra=ask("how", metavar="SECONDS"),
    )
    until_caught_up: bool = Field(
        title="End when caught up",
        default=False,
        description="End at what stands in the topic now.",
        json_schema_extra=ask("how"),
    )
    claims: str | None = Field(
        default=None,
        min_length=1,
        title="Files of large values",
        description="Where the feed's claim-check:DIRECTORY is here.",
        json_schema_extra=ask("where", metavar="DIRECTORY", default_words="where the feed says"),
    )
    spark_master: SparkMaster = Field(
        default="local[*]",
        title="Spark master",
        description="Where Spark runs; its executors need the directory.",
        json_schema_extra=ask("where", metavar="URL"),
    )

    @property
    def claims_directory(self) -> Path | None:
        return None if self.claims is None else Path(self.claims)


class CompactSpec(BaseModel):
    """fold_before: microseconds since 1970, or ISO 8601."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    directory: str = Field(
        min_length=1,
        title="Directory",
        description="Where the lake is.",
        json_schema_extra=ask("what", option="--of", metavar="DIRECTORY"),
    )
    fold_before: str | None = Field(
        default=None,
        title="Fold history before",
        description="Give up what rows were before this time: ISO 8601, or microseconds.",
        json_schema_extra=ask("how", metavar="TIME"),
    )
    keep_minutes: float = Field(
        default=60.0,
        ge=0,
        title="Keep replaced files for (minutes)",
        description="Replaced files stay so long for readers, minutes.",
        json_schema_extra=ask("how", metavar="N"),
    )
    spark_master: SparkMaster = Field(
        title="Spark master",
        default="local[*]",
        description="Where Spark runs.",
        json_schema_extra=ask("where", metavar="URL"),
    )


def make_lake_spec(**given: Any) -> LakeSpec:
    """From what a face was given; None means the default. Raises Refused with one sentence."""
    return make_request(LakeSpec, given)


def make_compact_spec(**given: Any) -> CompactSpec:
    """Likewise."""
    return make_request(CompactSpec, given)

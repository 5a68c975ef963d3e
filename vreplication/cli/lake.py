"""`lake`, `lake-read`, `lake-compact`: a feed's topic as Parquet files.

What must stay true: as of `changefeed`: a secret of the broker comes from the environment or a file, and is never
shown; rows alone go to standard output, so that they can be read by a program.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vreplication.cli import asked, logs, options
from vreplication.cli.attend import stopping_on_signals
from vreplication.cli.changefeed import SINK_PASSWORD, SinkFileOption, Telling, sink_password
from vreplication.cli.say import json_line, say, tell, warn
from vreplication.cli.streams import children_to
from vreplication.errors import Interrupted, Refused
from vreplication.progress import numbers
from vreplication.workflows.lake.spec import CompactSpec, LakeSpec, make_compact_spec, make_lake_spec

if TYPE_CHECKING:
    from vreplication.feed.lake.spark_reading import Snapshot
    from vreplication.feed.lake.stream import Told

HELP = f"""
Write a topic of a change feed (protocol open) as Parquet files into a directory, each change once: a manifest for each
watermark, so that a reader sees whole transactions of the source only. Spark reads the topic.

Ctrl-C stops it cleanly, and the same command goes on. The broker's password (SASL) comes from {SINK_PASSWORD} or
--sink-file.

Examples:

  vreplication lake --from kafka://broker.example:9092/shop --to /data/lake

  vreplication lake --from kafka://broker.example:9092/shop --to /data/lake --until-caught-up
"""
READ_HELP = """
Read a lake's table as it was at a time; without --table, list its tables. Rows go to standard output, each as
a JSON object.

Examples:

  vreplication lake-read --from /data/lake

  vreplication lake-read --from /data/lake --table shop.orders --as-of 2026-11-24T12:00:00Z
"""
COMPACT_HELP = """
Make few files of a lake's many, and, with --fold-before, give up what its rows were before a time. It may run beside
`lake` and beside readers.

Example:

  vreplication lake-compact --of /data/lake --fold-before 2026-11-01T00:00:00Z
"""
MasterOption = Annotated[
    str, typer.Option("--spark-master", metavar="URL", callback=options.is_master, help="Where Spark runs.")
]


@contextlib.contextmanager
def _spark(master: str, stop: threading.Event, *, has_kafka: bool = False) -> Iterator[Any]:
    """A function that starts it when it is needed; ended at the end. What it says goes into the log."""
    from vreplication.spark.sql import opened

    logs.start("lake")
    with children_to(logs.of_children()), opened(master, stop, has_kafka=has_kafka) as start:
        yield start


@contextlib.contextmanager
def _jobs(master: str, stop: threading.Event) -> Iterator[Any]:
    """As `_spark`, of what has no stream that looks at `stop` by itself: a signal ends what Spark is at."""
    from vreplication.spark.sql import cut

    with stopping_on_signals(stop), _spark(master, stop) as start, cut(stop, start) as begin:
        yield begin


def _check_given(given: Mapping[str, Any], **flags: str) -> None:
    for name, flag in flags.items():
        if not given[name]:
            raise Refused(f"No {name} is given.", cure=f"Pass {flag}.")


def _fill(context: typer.Context, sink_file: Path | None, is_json: bool, **given: Any) -> None:
    from vreplication.feed.address import parse
    from vreplication.feed.lake.manifest import Store
    from vreplication.feed.lake.stream import Filling, fill

    _check_given(given, topic="--from URL", directory="--to DIRECTORY")
    spec = make_lake_spec(**asked.given(LakeSpec, given))
    if spec.claims_directory is not None and not spec.claims_directory.is_dir():
        raise Refused(f"claims: there is no directory {spec.claims!r}.")
    address, stop = parse(spec.topic, sink_password(sink_file)), threading.Event()
    filling = Filling(
        address=address,
        store=Store(Path(spec.directory)),
        seconds=spec.every,
        until_caught_up=spec.until_caught_up,
        claims=spec.claims_directory,
    )
    with (
        stopping_on_signals(stop),
        _spark(spec.spark_master, stop, has_kafka=True) as start,
        _telling(is_json) as telling,
    ):
        telling.note(f"Writing {address} into {spec.directory}; Ctrl-C stops it, and the same command goes on.")
        fill(filling, start, stop=stop, notify=telling.note, committed=lambda told: _say_told(told, is_json=is_json))
    # `fill` ends in order and without an error when it is told to stop; the code has to say that it was.
    if stop.is_set():
        raise Interrupted("Interrupted.")
    newest = filling.store.open()
    if is_json:
        json_line({"event": "caught_up", "manifest": newest.number, "watermark": newest.watermark})
    else:
        say(f"Caught up: {_shown(newest.watermark)}.")


lake = asked.with_options(_fill, LakeSpec, before={"sink_file": SinkFileOption}, after={"is_json": options.JsonOption})


def _telling(is_json: bool) -> Telling:
    return Telling(is_json=is_json)


def _shown(t: int) -> str:
    from vreplication.feed.lake.spark_reading import shown

    return shown(t)


def _say_told(told: Told, *, is_json: bool) -> None:
    if is_json:
        json_line({"event": "manifest", "manifest": told.number, "watermark": told.watermark, "rows": told.rows})
    elif told.rows:
        tell(f"{_shown(told.watermark)}: {numbers.count(told.rows)} changes, manifest {told.number}")


def lake_read(
    of: Annotated[
        Path, typer.Option("--from", metavar="DIRECTORY", parser=options.directory, help="Where the lake is.")
    ],
    table: Annotated[str | None, typer.Option("--table", metavar="SCHEMA.NAME", help="Without it: list them.")] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="ISO 8601, or microseconds. Default: the newest.")
    ] = None,
    changes: Annotated[bool, typer.Option("--changes", help="All changes up to then, instead of rows.")] = False,
    format: Annotated[
        Literal["json", "parquet", "csv"], typer.Option("--format", help="json: to standard output; else --to.")
    ] = "json",
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIRECTORY", parser=options.directory, help="A new one, for parquet and csv."),
    ] = None,
    spark_master: MasterOption = "local[*]",
) -> None:
    """Read a lake."""
    from vreplication.feed.lake import spark_reading as reading
    from vreplication.feed.lake.manifest import Store

    store, stop = Store(of), threading.Event()
    manifest = store.open()
    if table is None:
        _list(manifest)
        return
    if (format == "json") != (to is None):
        raise Refused("--format parquet and csv need --to, and json goes without.")
    snapshot = reading.find(manifest, table, as_of)
    _warn(snapshot)
    with _jobs(spark_master, stop) as start:
        read = reading.all_changes if changes else reading.state
        _hand_out(read(start(), store, snapshot), format, to, stop)


def _warn(snapshot: Snapshot) -> None:
    for each in snapshot.alters:
        warn(f"rows last written before {_shown(each.t)} are as they were written, before: {each.sql[:200]}")


def _hand_out(rows: Any, format: str, to: Path | None, stop: threading.Event) -> None:
    from vreplication.feed.lake import spark_reading as reading

    if to is not None:
        # Here, and not by Spark, whose word for it is a traceback of Java's.
        if to.exists():
            raise Refused(f"{to} is there already.", cure="Give a new directory.")
        rows.write.format(format).options(**(reading.TIMES if format == "csv" else {})).save(str(to.absolute()))
        return
    # One of Spark's partitions at a time: the table need not fit into this process.
    for row in reading.lines(rows).toLocalIterator():
        print(row.line)
        if stop.is_set():
            raise Interrupted("Interrupted.")


def _list(manifest: Any) -> None:
    from vreplication.feed.lake.manifest import FOREVER

    tables = []
    for each in manifest.names:
        if each.until == FOREVER:
            files = manifest.tables[each.table].files
            tables.append(
                {
                    "table": f"{each.schema}.{each.name}",
                    "files": len(files),
                    "changes": sum(file.rows for file in files),
                }
            )
    json_line(
        {
            "event": "lake",
            "topic": manifest.topic,
            "manifest": manifest.number,
            "watermark": manifest.watermark,
            "as_of": _shown(manifest.watermark),
            "horizon": manifest.horizon,
            "tables": sorted(tables, key=lambda each: str(each["table"])),
        }
    )


def _compact(context: typer.Context, is_json: bool, **given: Any) -> None:
    from vreplication.feed.lake import spark_reading as reading
    from vreplication.feed.lake.manifest import Store
    from vreplication.feed.lake.spark_compacting import compact

    _check_given(given, directory="--of DIRECTORY")
    spec, stop = make_compact_spec(**asked.given(CompactSpec, given)), threading.Event()
    upto = None if spec.fold_before is None else reading.microseconds(spec.fold_before)
    store = Store(Path(spec.directory))
    with _jobs(spec.spark_master, stop) as start:
        done = compact(store, start, fold_before=upto, keep_seconds=spec.keep_minutes * 60)
    if is_json:
        json_line({"event": "compacted", **{name: getattr(done, name) for name in done.__slots__}})
    else:
        say(f"{done.files_before} files are {done.files_after} now; {done.removed} old ones were removed.")


lake_compact = asked.with_options(_compact, CompactSpec, before={}, after={"is_json": options.JsonOption})

"""`lake`, `lake-read`, `lake-compact`: a feed's topic as Parquet files.

What must stay true: as of `changefeed`: a secret of the broker comes from the environment or a file, and is never
shown; rows alone go to standard output, so that they can be read by a program.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vreplication.cli import logs, options
from vreplication.cli.attend import stopping_on_signals
from vreplication.cli.changefeed import SINK_PASSWORD, ClaimsOption, FromOption, SinkFileOption, Telling, sink_password
from vreplication.cli.say import json_line, say, warn
from vreplication.cli.streams import children_to
from vreplication.errors import Interrupted, Refused
from vreplication.progress import numbers

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
MasterOption = Annotated[str, typer.Option("--spark-master", metavar="URL", help="Where Spark runs.")]


@contextlib.contextmanager
def _spark(master: str, stop: threading.Event, *, has_kafka: bool = False) -> Iterator[Any]:
    """A function that starts it when it is needed; ended at the end."""
    from vreplication.spark.sql import kafka_jars, sql_session
    from vreplication.spark.start import end_context

    jars = kafka_jars() if has_kafka else ()
    started: list[Any] = []

    def check() -> None:
        if stop.is_set():
            raise Interrupted("Interrupted.")

    def start() -> Any:
        if not started:
            started.append(sql_session(master, jars=jars, check=check))
        return started[0]

    with children_to(logs.start("lake")):
        try:
            yield start
        finally:
            for session in started:
                end_context(session.sparkContext)


def lake(
    topic: FromOption,
    to: Annotated[Path, typer.Option("--to", metavar="DIRECTORY", help="Where the lake is, or will be.")],
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="A manifest at the most so often.")
    ] = 10.0,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End at what stands in the topic now.")
    ] = False,
    claims: ClaimsOption = None,
    spark_master: MasterOption = "local[*]",
    sink_file: SinkFileOption = None,
    is_json: options.JsonOption = False,
) -> None:
    """Fill a lake."""
    from vreplication.feed.address import parse
    from vreplication.feed.lake.manifest import Store
    from vreplication.feed.lake.stream import Filling, fill

    address, stop = parse(topic, sink_password(sink_file)), threading.Event()
    asked = Filling(address=address, store=Store(to), seconds=every, until_caught_up=until_caught_up, claims=claims)
    with stopping_on_signals(stop), _spark(spark_master, stop, has_kafka=True) as start, _telling(is_json) as telling:
        telling.note(f"Writing {address} into {to}; Ctrl-C stops it, and the same command goes on.")
        fill(asked, start, stop=stop, notify=telling.note, committed=lambda told: _say_told(told, is_json=is_json))
    if stop.is_set():
        raise Interrupted("Interrupted.")
    newest = asked.store.open()
    if is_json:
        json_line({"event": "caught_up", "manifest": newest.number, "watermark": newest.watermark})
    else:
        say(f"Caught up: {_shown(newest.watermark)}.")


def _telling(is_json: bool) -> Telling:
    return Telling(is_json=is_json)


def _shown(t: int) -> str:
    from vreplication.feed.lake.spark_reading import shown

    return shown(t)


def _say_told(told: Told, *, is_json: bool) -> None:
    if is_json:
        json_line({"event": "manifest", "manifest": told.number, "watermark": told.watermark, "rows": told.rows})
    elif told.rows:
        say(f"{_shown(told.watermark)}: {numbers.count(told.rows)} changes, manifest {told.number}")


def lake_read(
    of: Annotated[Path, typer.Option("--from", metavar="DIRECTORY", help="Where the lake is.")],
    table: Annotated[str | None, typer.Option("--table", metavar="SCHEMA.NAME", help="Without it: list them.")] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="ISO 8601, or microseconds. Default: the newest.")
    ] = None,
    changes: Annotated[bool, typer.Option("--changes", help="All changes up to then, instead of rows.")] = False,
    format: Annotated[
        Literal["json", "parquet", "csv"], typer.Option("--format", help="json: to standard output; else --to.")
    ] = "json",
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIRECTORY", help="A new one, for parquet and csv.")
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
    with stopping_on_signals(stop), _spark(spark_master, stop) as start:
        read = reading.all_changes if changes else reading.state
        _hand_out(read(start(), store, snapshot), format, to, stop)


def _warn(snapshot: Snapshot) -> None:
    for each in snapshot.alters:
        warn(f"rows last written before {_shown(each.t)} are as they were written, before: {each.sql[:200]}")


def _hand_out(rows: Any, format: str, to: Path | None, stop: threading.Event) -> None:
    from vreplication.feed.lake import spark_reading as reading

    if to is not None:
        if to.exists():
            raise Refused(f"{to} is there already.", cure="Give a new directory.")
        rows.write.format(format).options(**(reading.TIMES if format == "csv" else {})).save(str(to.absolute()))
        return
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


def lake_compact(
    of: Annotated[Path, typer.Option("--of", metavar="DIRECTORY", help="Where the lake is.")],
    fold_before: Annotated[
        str | None, typer.Option("--fold-before", metavar="TIME", help="Give up what rows were before; as of --as-of.")
    ] = None,
    keep_minutes: Annotated[
        float, typer.Option("--keep-minutes", metavar="N", min=0, help="Replaced files stay so long for readers.")
    ] = 60.0,
    spark_master: MasterOption = "local[*]",
    is_json: options.JsonOption = False,
) -> None:
    """Compact a lake."""
    from vreplication.feed.lake import spark_reading as reading
    from vreplication.feed.lake.manifest import Store
    from vreplication.feed.lake.spark_compacting import compact

    store, stop = Store(of), threading.Event()
    upto = None if fold_before is None else reading.microseconds(fold_before)
    with stopping_on_signals(stop), _spark(spark_master, stop) as start:
        done = compact(store, start, fold_before=upto, keep_seconds=keep_minutes * 60)
    if is_json:
        json_line({"event": "compacted", **{name: getattr(done, name) for name in done.__slots__}})
    else:
        say(f"{done.files_before} files are {done.files_after} now; {done.removed} old ones were removed.")

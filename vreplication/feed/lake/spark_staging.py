"""What has been read from Kafka and is not done with: as it came, in Parquet, a folder a batch.

A batch is looked at once when it comes: numbers without a gap, nothing behind a Resolved that belongs before it,
duplicates out. What it says of DDL, Admin and Resolved is handed out; rows wait until somebody asks for them by time.

What must stay true: nothing of a batch is believed before all of it is staged and looked at; what is staged belongs to
one run of one process, and is read from Kafka again by the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vreplication.errors import Terminal
from vreplication.feed import spoken
from vreplication.feed.claims import Fetcher
from vreplication.feed.formats.open import begins_generation, read_admin, read_ddl
from vreplication.feed.lake.ddl import Statement
from vreplication.feed.lake.deciding import Admin, Known, Span
from vreplication.feed.lake.manifest import Place

SCHEMA = (
    "p INT, o BIGINT, kind STRING, t BIGINT, seq BIGINT, n BIGINT, gen BIGINT, i INT, m INT, key STRING, value BINARY,"
    " claim STRING, bare BOOLEAN, session STRING"
)
_AGAIN = "Begin a new feed into another topic, and a new lake."
_HEADERS = "map_from_entries(transform(headers, h -> struct(h.key AS name, cast(h.value AS STRING) AS text))) AS h"
# try_cast: a header that is no number becomes NULL, and the message is named as none of a feed's (`_LOOK`).
_STAGED = (
    *("p", "o", "h['vr-kind'] AS kind"),
    *(f"try_cast(h['vr-{name}'] AS BIGINT) AS {name}" for name in ("t", "seq", "n", "gen")),
    *(f"try_cast(split_part(h['vr-part'], '/', {at}) AS INT) AS {name}" for at, name in ((1, "i"), (2, "m"))),
    *(
        "key",
        "value",
        "h['vr-claim-check'] AS claim",
        "h['vr-key-only'] IS NOT NULL AS bare",
        "h['vr-session'] AS session",
    ),
)
_BEFORE = "ORDER BY o ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_COUNTED = "kind IN ('row', 'ddl', 'admin')"
# A Resolved counts in its generation alone, for what is behind an Admin's time comes again in the next one. Spark's
# greatest passes over NULLs: where the first number of a partition is not known, nothing is taken for lost.
_LOOK = """
WITH numbered AS (
  SELECT p, o, kind, t, n, gen, i, claim, bare, {counted} AS c,
    greatest(max(IF({counted}, n, NULL)) OVER (PARTITION BY p {before}), {last}) AS m,
    greatest(max(IF(kind = 'resolved', t, NULL)) OVER (PARTITION BY p, gen {before}), {resolved}) AS r
  FROM {staged}),
judged AS (
  SELECT *, coalesce(c AND n <= m, FALSE) AS again,
    CASE WHEN kind IS NULL OR kind NOT IN ('row', 'ddl', 'admin', 'resolved', 'align')
              OR t IS NULL OR n IS NULL OR gen IS NULL THEN 'foreign'
         WHEN n > m + IF(c, 1, 0) THEN 'lost'
         WHEN bare AND NOT coalesce(n <= m, FALSE) THEN 'bare'
         WHEN kind IN ('row', 'ddl') AND NOT coalesce(n <= m, FALSE) AND t <= r THEN 'late' END AS wrong
  FROM numbered)
SELECT p, gen, max(o) AS o, max(t) AS latest, max(IF(c, n, NULL)) AS n, max(IF(kind = 'resolved', t, NULL)) AS resolved,
  count_if(again) AS duplicates, count_if(kind IN ('ddl', 'admin')) AS marks, count_if(i IS NOT NULL) AS parts,
  count_if(claim IS NOT NULL) AS claims,
  min(IF(kind = 'row', t, NULL)) AS first, max(IF(kind = 'row', t, NULL)) AS last,
  min_by(struct(o, wrong, n, m, t, r), o) FILTER (WHERE wrong IS NOT NULL) AS wrong
FROM judged GROUP BY p, gen
"""
_ONCE = """
SELECT {names} FROM (
  SELECT *, greatest(max(IF({counted}, n, NULL)) OVER (PARTITION BY p {before}), {last}) AS before FROM {staged})
WHERE NOT coalesce({counted} AND n <= before, FALSE)
"""
_NAMES = ", ".join(each.split()[0] for each in SCHEMA.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """first, last: times of its rows, None without any. latest, generation: the greatest of all messages."""

    folder: str
    first: int | None
    last: int | None
    latest: int
    generation: int
    has_parts: bool

    def has_rows_of(self, spans: Iterable[Span]) -> bool:
        if self.first is None or self.last is None:
            return False
        return any(self.first <= span.upto and self.last > span.after for span in spans)


@dataclass(slots=True, kw_only=True)
class Staging:
    """places: where each partition has been read to. fetcher: of values in files. Everything is of one run."""

    spark: Any
    folder: Path
    topic: str
    known: Known
    places: dict[int, Place]
    fetcher: Fetcher = field(default_factory=Fetcher)
    statements: dict[int, Statement] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    _pieces: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)

    def take(self, frame: Any, number: int) -> None:
        """A batch of Spark's Kafka source. Raises Terminal."""
        folder = str(self.folder / f"batch-{number}")
        raw = frame.selectExpr("partition AS p", "offset AS o", _HEADERS, "cast(key AS STRING) AS key", "value")
        # D6: foreachBatch brings a batch at least once; the same number writes the same folder.
        raw.selectExpr(*_STAGED).write.mode("overwrite").parquet(folder)
        looked = self._look(folder)
        if any(each.duplicates for each in looked):
            folder = self._once(folder)
            looked = self._look(folder)
        if any(each.claims for each in looked):
            folder = self._whole(folder)
        self._learn(folder, looked)

    def _view(self, folders: Sequence[str]) -> Any:
        return self.spark.read.schema(SCHEMA).parquet(*folders)

    def _sql(self, text: str, folder: str) -> Any:
        last = {str(number): place.n for number, place in self.places.items()}
        resolved = {f"{gen}:{p}": t for (gen, p), t in self.known.resolved.items()}
        words = {"last": _case("cast(p AS STRING)", last), "resolved": _case("concat(gen, ':', p)", resolved)}
        self._view([folder]).createOrReplaceTempView("vr_staged")
        return self.spark.sql(text.format(staged="vr_staged", counted=_COUNTED, before=_BEFORE, names=_NAMES, **words))

    def _look(self, folder: str) -> list[Any]:
        found: list[Any] = self._sql(_LOOK, folder).collect()
        for each in found:
            if each.wrong is not None:
                raise self._wrong(each.p, each.wrong)
        return found

    def _wrong(self, partition: int, wrong: Any) -> Terminal:
        words = {
            "foreign": "holds a message without the headers of a feed",
            "lost": f"has message {wrong.n} where {(wrong.m or 0) + 1} was to come: what is between is lost",
            "bare": "has the key of a row alone (--max-message key-only), and a lake asks no source",
            "late": f"has something of {wrong.t} behind what says that all up to {wrong.r} came",
        }[wrong.wrong]
        return Terminal(f"Partition {partition} of topic {self.topic} at offset {wrong.o} {words}.", cure=_AGAIN)

    def _once(self, folder: str) -> str:
        """Without what has come before."""
        self._sql(_ONCE, folder).write.mode("overwrite").parquet(f"{folder}-once")
        return f"{folder}-once"

    def _whole(self, folder: str) -> str:
        """With the values that are in files. Raises Terminal, Transient."""
        from pyspark.sql.functions import udf

        view = self._view([folder])
        fetched = view.filter("claim IS NOT NULL").withColumn("value", udf(self.fetcher.get, "binary")("claim"))
        try:
            view.filter("claim IS NULL").unionByName(fetched).write.mode("overwrite").parquet(f"{folder}-whole")
        except Exception:
            # What went wrong there, in our words.
            # Spark makes an error of its own of what a task raises: whether to wait for the file would not be known.
            for each in view.filter("claim IS NOT NULL").select("claim").toLocalIterator():
                self.fetcher.get(each.claim)
            raise
        return f"{folder}-whole"

    def _learn(self, folder: str, looked: list[Any]) -> None:
        if not looked:
            return
        # Before what is resolved: of a generation that has not begun in a partition nothing can be (deciding.py).
        if any(each.marks for each in looked):
            self._learn_marks(folder)
        for each in looked:
            if each.resolved is not None:
                self.known.resolve(each.gen, each.p, each.resolved)
            place = self.places.get(each.p, Place(next=0, n=0))
            n = place.n if each.n is None else max(place.n, each.n)
            self.places[each.p] = Place(next=max(place.next, each.o + 1), n=n)
        firsts = [each.first for each in looked if each.first is not None]
        lasts = [each.last for each in looked if each.last is not None]
        self.batches.append(
            Batch(
                folder=folder,
                first=min(firsts, default=None),
                last=max(lasts, default=None),
                latest=max(each.latest for each in looked),
                generation=max(each.gen for each in looked),
                has_parts=any(each.parts for each in looked),
            )
        )

    def _learn_marks(self, folder: str) -> None:
        marks = self._view([folder]).filter("kind IN ('ddl', 'admin')").orderBy("p", "o").collect()
        for each in marks:
            if each.kind == "admin":
                value = bytes(each.value or b"")
                _, count, t = read_admin(value)
                if begins_generation(value):
                    self.known.admin(each.gen, each.p, Admin(t, count))
                continue
            if each.t <= self.known.watermark:
                # It was run: what is read again begins with what waits.
                continue
            pieces = self._pieces.setdefault((each.p, each.t), [])
            pieces.append(bytes(each.value or b""))
            if len(pieces) == (each.m or 1):
                value = b"".join(self._pieces.pop((each.p, each.t)))
                schema, sql = read_ddl(each.key.encode(), value)
                told = spoken.read((each.session or "").encode())
                self.statements[each.t] = Statement(
                    t=each.t, schema=schema, sql=sql, is_folded=told.is_folded, sql_mode=told.sql_mode
                )

    # What may be applied.

    def due(self) -> list[Statement]:
        """DDL up to the watermark, in order; it is not asked for again."""
        found = [self.statements.pop(t) for t in sorted(self.statements) if t <= self.known.watermark]
        return found

    def rows(self, spans: Sequence[Span]) -> Any | None:
        """t, seq, key, value of the rows of these spans, parts put together. None: there are none."""
        batches = [batch for batch in self.batches if batch.has_rows_of(spans)]
        if not batches:
            return None
        within = " OR ".join(f"(gen = {s.generation} AND t > {s.after} AND t <= {s.upto})" for s in spans)
        staged = self._view([batch.folder for batch in batches]).filter(f"kind = 'row' AND ({within})")
        whole = staged.filter("i IS NULL").selectExpr("t", "seq", "key", "value", "0 AS missing")
        if not any(batch.has_parts for batch in batches):
            return whole
        staged.filter("i IS NOT NULL").createOrReplaceTempView("vr_parts")
        return whole.unionByName(
            self.spark.sql(
                "SELECT t, seq, any_value(key) AS key,"
                # collect_list has no order of its own.
                " aggregate(transform(sort_array(collect_list(struct(i, value))), x -> x.value), X'',"
                " (a, b) -> concat(a, b)) AS value, cast(max(m) - count(*) AS INT) AS missing"
                " FROM vr_parts GROUP BY p, gen, t, seq"
            )
        )

    def reached(self) -> dict[int, Place]:
        """From where each partition is to be read when all up to the watermark is stored."""
        known = self.known
        waiting = [b for b in self.batches if b.latest > known.watermark or b.generation > known.generation]
        found = dict(self.places)
        if waiting:
            # resolved_waits: a Resolved above the watermark is read again, too. Passed, nobody would say it again, and
            # its rows would wait for ever.
            late = f"gen > {known.generation} OR (gen = {known.generation} AND t > {known.watermark})"
            view = self._view([batch.folder for batch in waiting]).filter(late)
            firsts = view.groupBy("p").agg({"o": "min"}).selectExpr("p", "`min(o)` AS o")
            before = view.join(firsts, ["p", "o"]).selectExpr("p", "o", f"n - IF({_COUNTED}, 1, 0) AS n")
            found |= {each.p: Place(next=each.o, n=each.n) for each in before.collect()}
        return found

    def forget(self) -> None:
        """Batches of which nothing waits."""
        known = self.known
        done = [b for b in self.batches if b.latest <= known.watermark and b.generation <= known.generation]
        for batch in done:
            _remove(Path(batch.folder))
        self.batches = [batch for batch in self.batches if batch not in done]


def _remove(folder: Path) -> None:
    """A batch as it came, without what came before, and with what is in files."""
    name = "-".join(folder.name.split("-")[:2])
    for each in (folder.with_name(name), *folder.parent.glob(f"{name}-*")):
        shutil.rmtree(each, ignore_errors=True)


def _case(what: str, values: dict[str, int]) -> str:
    """SQL of the number of a name; NULL where there is none."""
    if not values:
        return "CAST(NULL AS BIGINT)"
    return f"CASE {what} " + " ".join(f"WHEN '{name}' THEN {n}L" for name, n in values.items()) + " END"

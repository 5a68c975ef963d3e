"""Files of a lake as they are written, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vreplication.feed.lake.ddl import Catalog
from vreplication.feed.lake.manifest import Manifest, Store
from vreplication.feed.lake.spark_files import Files


class Frame:
    """Written as Spark does it: with a checksum of each part, and a mark that it is whole."""

    @property
    def write(self) -> Frame:
        return self

    def parquet(self, path: str, **_: Any) -> None:
        folder = Path(path)
        folder.mkdir(parents=True)
        for name in ("part-0.parquet", ".part-0.parquet.crc", "_SUCCESS", "._SUCCESS.crc"):
            (folder / name).write_text(name)


def test_what_was_written_leaves_nothing_in_the_work_folder(tmp_path: Path) -> None:
    """A run may last for months, with a write for each table that changes."""
    store, work = Store(tmp_path / "lake"), tmp_path / "lake" / "_work" / "run-1"
    store.create()
    work.mkdir()
    files = Files(None, store, work, Catalog(Manifest(topic="t", topic_id="x", number=1)))
    (path,) = files.save(Frame(), "s.t", "w")
    assert Path(store.path(path)).read_text() == "part-0.parquet"
    assert list(work.iterdir()) == []

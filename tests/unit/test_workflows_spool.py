"""Where a workflow keeps what does not fit into memory."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from tests.support.rows import workflow_row
from vreplication.changes.sorter import DiskSorter
from vreplication.engine import spool


def test_workflows_of_two_servers_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that is begun again under the same id."""
    monkeypatch.setenv(spool.FOLDER, str(tmp_path))
    one, other = (workflow_row("same", created_at=datetime(2026, 1, 2, 3, 4, 5, micros)) for micros in (6, 7))
    first, second = DiskSorter(spool.home(one)), DiskSorter(spool.home(other))
    second.forget_others()
    spool.forget(other)
    assert [folder.name for folder in tmp_path.iterdir()] == ["same-20260102T030405000006"]
    first.forget_others()
    first.remove()

"""A file of tables with a wrong option: the sentence says which table it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from vreplication.cli.tables_file import named, spec_of
from vreplication.errors import Refused

FILE = """
- {table: orders, alter: FORCE, options: {verify-every: 5}}
- {table: items, alter: FORCE, options: {copy-path: fast}}
"""


def test_a_wrong_value_names_its_table(tmp_path: Path) -> None:
    (path := tmp_path / "tables.yaml").write_text(FILE)
    first, second = named((), None, path)
    assert spec_of(first, {}).verify_every_minutes == 5
    with pytest.raises(Refused, match=r"^Table 2 of the file, items: copy_path: it has to be one of"):
        spec_of(second, {})
    # What holds for all of them comes from the command line, and is wrong with none of the tables.
    with pytest.raises(Refused, match=r"^max_lag"):
        spec_of(second, {"max_lag": "x"})

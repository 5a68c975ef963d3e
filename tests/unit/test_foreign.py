"""Which foreign keys act by themselves, as both servers print them."""

from __future__ import annotations

import pytest

from vreplication.planning.foreign import acts_on


@pytest.mark.parametrize(
    ("key", "acts"),
    [
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`)", False),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE CASCADE", True),
        ("FOREIGN KEY (`p`) REFERENCES `s`.`t` (`id`) ON UPDATE SET NULL", True),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE CASCADE ON UPDATE NO ACTION,", True),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE NO ACTION ON UPDATE CASCADE", True),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE RESTRICT ON UPDATE RESTRICT,", False),
        ("FOREIGN KEY (`p`) REFERENCES `x) ON DELETE CASCADE` (`id`)", False),
        ("CHECK (`a` <> ' FOREIGN KEY (p) ON DELETE CASCADE')", False),
    ],
)
def test_a_key_acts_by_its_clauses(key: str, acts: bool) -> None:
    lines = (
        "CREATE TABLE `k` (",
        "  `p` int COMMENT 'FOREIGN KEY () ON DELETE CASCADE',",
        f"  CONSTRAINT `a``b` {key}",
        ")",
    )
    assert acts_on("\n".join(lines)) is acts

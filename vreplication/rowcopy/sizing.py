"""How many rows the next chunk has.

What must stay true: a chunk is never larger than the warnings that can be read of it (MAX_CHUNK_ROWS); the size at most
doubles from one chunk to the next and falls at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.settings import MAX_CHUNK_ROWS, Limits

FIRST_ROWS = 2_000
MIN_ROWS = 100


@dataclass(slots=True)
class Sizer:
    """rows: size of the next chunk; it follows the time that chunks take unless the user has fixed it."""

    limits: Limits
    rows: int = FIRST_ROWS

    def __post_init__(self) -> None:
        self.rows = _clamped(self.limits.chunk_rows or self.rows, smallest=1 if self.limits.chunk_rows else MIN_ROWS)

    def learn(self, rows_read: int, millis: float, *, at_most: int = MAX_CHUNK_ROWS) -> None:
        """Take a landed chunk into account. `at_most`: rows that the copy path handles well in one go."""
        if self.limits.chunk_rows is None:
            self.rows = min(next_rows(self.rows, rows_read, millis, self.limits.chunk_millis), max(at_most, MIN_ROWS))


def next_rows(rows: int, rows_read: int, millis: float, target_millis: float) -> int:
    """From a chunk meant to have `rows` that had `rows_read` and took `millis`."""
    wanted = rows * target_millis / max(millis, 0.1)
    if wanted <= rows:
        return _clamped(wanted)
    if rows_read < rows / 2:
        # A split's tail or a gap was quick because it was short.
        return _clamped(rows)
    return _clamped(min(2 * rows, rows + 0.75 * (wanted - rows)))


def _clamped(rows: float, smallest: int = MIN_ROWS) -> int:
    # F6: each row of a chunk may give a warning, and max_error_count holds no more than so many.
    return max(smallest, min(MAX_CHUNK_ROWS, int(rows)))

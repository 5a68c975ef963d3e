"""Protocol versions: the rules by which the watermark moves.

Numbers of a workflow are compared by processes of different age while an installation is being renewed. Its row in the
sidecar says under which version it goes on: the one that it began with, until all that work on it know a newer one.

What must stay true: a version's rules never change once it has been released; a workflow of a version that this
program does not know is refused.
"""

from __future__ import annotations

from vreplication.changes.watermark import Watermark
from vreplication.errors import Refused, Transient


class RulesRenewed(Transient):
    """Catch-up begins again at its checkpoint, by the rules of this version."""

    def __init__(self, protocol: int) -> None:
        super().__init__(f"All workers of the workflow know protocol version {protocol} now.")
        self.protocol = protocol


class BeatWatermark(Watermark):
    """Version 1: only heartbeats move it, at most 250 ms behind what has been applied."""

    def took(self, time: int, beat_micros: int | None = None) -> int:
        if beat_micros is None:
            self._whole = time
            return time
        return super().took(time, beat_micros)


RULES: dict[int, type[Watermark]] = {1: BeatWatermark, 2: Watermark}


def watermark_of(protocol: int) -> Watermark:
    """Raises Refused for a version that is not known here."""
    if protocol not in RULES:
        raise Refused(
            f"The workflow was begun under protocol version {protocol}; this program knows {sorted(RULES)}.",
            cure="Use the vreplication that began it, or a newer one.",
        )
    return RULES[protocol]()

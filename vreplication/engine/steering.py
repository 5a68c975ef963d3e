"""Keeps the pace of a workflow: probes the server, decides once a second, and writes what holds from then on.

What must stay true: only a driver writes the pace, and writing it is the probe: one row, one commit, from a process
that does nothing else at the time; who copies or verifies heeds what is written (rowcopy/chunker.py, verify/).
"""

from __future__ import annotations

from vreplication.clock import SYSTEM
from vreplication.engine.job import request_of
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.settings import Limits, Pace, holds_verification
from vreplication.state import gate, throttle, throttling
from vreplication.state.workflows import WorkflowRow
from vreplication.throttle.pace import Pacer, spared

PROBED = frozenset({Phase.PLANNING, Phase.PREPARING, Phase.COPYING, Phase.CATCHING_UP, Phase.VERIFYING})
"""While a workflow is only held nobody has to know how the server is."""
_PERIOD_SECONDS = 0.9
_WORKING = frozenset({Phase.COPYING, Phase.VERIFYING})


class Steering:
    """Of one driver. `pace` None: nothing has been decided yet."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._pacer: Pacer | None = None
        self._phase = Phase.PREPARING
        self._decided = float("-inf")
        self._is_told = False
        """The pace is one that has to be known, although nobody regards the latency."""
        self.pace: Pace | None = None
        self._written: Pace | None = None

    def decide(self, session: Session, row: WorkflowRow, limits: Limits) -> None:
        """To be called twice a second, and it is done every other time; `limits` as the operator has set them."""
        self._phase = row.phase
        if (now := SYSTEM.monotonic()) - self._decided < _PERIOD_SECONDS:
            return
        self._decided = now
        asked = request_of(row, throttling.read(session, self._workflow))
        if self._pacer is None:
            self._pacer = Pacer(factor=asked.latency_factor, base=throttle.base(session, self._workflow))
        self._pacer.factor = asked.latency_factor
        others = throttle.others_per_second(session, self._workflow)
        tasks, millis = limits.copy_parallelism, limits.chunk_millis
        is_first = self.pace is None
        found = self._pacer.decide(now, others, tasks=tasks, chunk_millis=millis)
        is_held = self._phase in _WORKING and holds_verification(gate.read(session, self._workflow).reason)
        self.pace, self._is_told = spared(found, asked.nice_ratio, is_held=is_held), bool(asked.nice_ratio)
        if is_first:
            throttle.begin(session, self._workflow, self.pace)
            self._written = self.pace

    def probe(self, session: Session) -> None:
        """Write the pace, and see how long that takes."""
        pacer, pace = self._pacer, self.pace
        if pacer is None or pace is None or self._phase not in PROBED:
            return
        # Where nobody regards the latency, a pace that stands there already would be a commit for nothing, four times a
        # second. But for the time before we work: who asks for regard later asks against that.
        is_working = self._phase in _WORKING
        if is_working and not (pacer.factor or self._is_told or pace != self._written):
            return
        began = SYSTEM.monotonic()
        throttle.write(session, self._workflow, pace, base=pacer.base, latency=pacer.latency)
        self._written = pace
        now = SYSTEM.monotonic()
        pacer.took(now, now - began, is_working=is_working)

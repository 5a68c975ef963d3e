"""Keys that differed, examined again under live writes until each is known to be equal, wrong or merely busy.

A round is a window between two markers: the first is applied, then the source's rows are read, then the target's,
then the second is applied. What differs although no event came for it in the window is wrong, exactly; what differs
and was touched goes round again.

What must stay true: the window opens before the source is read and closes after the target was read, both by markers
that the applier has applied; where the source is MariaDB it is read only when no XA branch is between its commit in the
log and its being visible; keys are compared by the server wherever two literals may mean one key. Nothing is taken for
granted of where the state is: it may be beside the source, beside the target, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vreplication import names
from vreplication.clock import SYSTEM, Clock
from vreplication.errors import Transient
from vreplication.mysql.ends import Ends
from vreplication.mysql.server import prepared_branches
from vreplication.mysql.session import Session
from vreplication.schema import checksum
from vreplication.schema.checksum import RowHash, Side, source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.settings import MAX_HOT_KEYS, VERIFY_ROUNDS
from vreplication.state import dirty, keytables, markers
from vreplication.state.keytables import KEYS_PER_STATEMENT, key_predicate
from vreplication.state.markers import PLAIN, SUSPECTS_CLOSE, SUSPECTS_OPEN, Applied, Markers, OnServer
from vreplication.state.source_marks import AcrossServers
from vreplication.verify.scan import unequal

PATIENCE_SECONDS = 1800.0
"""How long a marker or an XA branch is waited for; catch-up may be far behind."""
_MAX_ROUNDS = VERIFY_ROUNDS + 10
_PAUSE_SECONDS = (0.25, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """bad: differ for certain. hot: still being written to after every round.

    gave_way: differ because another row took their place under a new unique key; they are copied again at the gate.
    """

    bad: tuple[str, ...]
    hot: tuple[str, ...]
    gave_way: tuple[str, ...]


def markers_of(ends: Ends, stream: str) -> Markers:
    """Those of a stream, written on its source."""
    return AcrossServers(ends.home, ends.source, stream) if ends.is_across else OnServer(ends.home, stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examiner:
    """ends: autocommit, so that each statement reads afresh. `check` is called while waiting and may raise.

    table: id under which home keeps the table's keys. markers: of its stream. is_mariadb: the source is.
    """

    ends: Ends
    mapping: TableMapping
    table: str
    markers: Markers
    is_mariadb: bool
    check: Callable[[], None]
    clock: Clock = SYSTEM

    def pass_marker(self, kind: str = PLAIN) -> None:
        """When this returns, whatever was in the log before is on the target, and visible on the source."""
        marker = self.markers.write(kind)
        applied = self._wait(marker)
        if self.is_mariadb:
            self._settle(applied)
        self.markers.remove(marker)

    def _wait(self, marker: str) -> Applied:
        return markers.wait(self.markers, marker, timeout_seconds=PATIENCE_SECONDS, check=self.check)

    def _settle(self, applied: Applied) -> None:
        """A branch that is listed although its outcome is in the log is not visible yet (MariaDB, measured)."""
        # F1b: prepared, and yet not held by catch-up: its outcome is in the log, and what it wrote is on the target and
        # not yet to be seen on the source. Read now, the source would be called wrong.
        if pending := self._branches() - set(applied.branches):
            marker = self.markers.write()
            self._wait_for(pending, marker)
            self.markers.remove(marker)

    def _wait_for(self, pending: set[str], marker: str) -> None:
        """marker: written after the branches were listed."""
        deadline = self.clock.monotonic() + PATIENCE_SECONDS
        while pending := pending & self._branches():
            # One prepared behind the first marker: its outcome comes by the stream, as a later marker tells.
            later = self.markers.find_applied(marker)
            pending -= set(later.branches) if later else set()
            if self.clock.monotonic() > deadline:
                raise Transient(
                    f"XA branch {min(pending)} stays prepared, and catch-up does not know it.",
                    cure="XA COMMIT or XA ROLLBACK it.",
                )
            self.check()
            self.clock.sleep(0.02)

    def _branches(self) -> set[str]:
        return set(map(str, prepared_branches(self.ends.source, is_mariadb=self.is_mariadb)))

    def examine(self, keys: Iterable[str]) -> Examined:
        """Go round until few keys are left. Raises Transient when too many stay busy."""
        again = list(dict.fromkeys(keys))
        bad: dict[str, None] = {}
        gave_way: dict[str, None] = {}
        for number in range(1, _MAX_ROUNDS + 1):
            wrong, away, again = self._round(again) if again else ([], [], [])
            bad |= dict.fromkeys(wrong)
            gave_way |= dict.fromkeys(away)
            # F24: rows that are written to in every round are compared under the cut-over's lock, where writers wait:
            # so only a bounded number of them.
            if not again or (number >= VERIFY_ROUNDS and len(again) <= MAX_HOT_KEYS):
                return Examined(bad=tuple(bad), hot=tuple(again), gave_way=tuple(gave_way))
            self._pause(number)
        raise Transient(f"{len(again)} rows change too often to be compared.", cure="Verify again at a quieter time.")

    def _pause(self, number: int) -> None:
        """After the usual rounds, ever longer."""
        if number >= VERIFY_ROUNDS:
            end = self.clock.monotonic() + min(_PAUSE_SECONDS[0] * 2 ** (number - VERIFY_ROUNDS), _PAUSE_SECONDS[1])
            while self.clock.monotonic() < end:
                self.check()
                self.clock.sleep(0.05)

    def _round(self, keys: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """(wrong, gave way, to be looked at again)."""
        table = names.suspect_table(self.table)
        # A verification that was cut short has left its keys there.
        keytables.clear(self.ends.home, table)
        # Before the marker: from there on catch-up marks those that it writes, and it can mark only what is listed.
        keytables.put(self.ends.home, table, keys, "0")
        self.pass_marker(SUSPECTS_OPEN)
        # F24: the source first. Catch-up can be ahead of what a SELECT on the source shows, so both are read behind an
        # applied marker; the source's state is then one that the target comes to inside the window.
        one = _by_ident(read_keys(self.ends.source, source_side(self.mapping), keys))
        other = _by_ident(read_keys(self.ends.target, target_side(self.mapping), keys))
        away = self.gave_way([several[0] for several in _differing(one, other)])
        # R26: the window is closed by a marker that is applied, not by the reading of the target. A change that the
        # source showed and the target did not would else be called wrong.
        close = self.markers.write(SUSPECTS_CLOSE)
        self._wait(close)
        self.markers.remove(close)
        wrong, again = self._judge(table, set(keys), one, other)
        keytables.clear(self.ends.home, table)
        return [key for key in wrong if key not in away], [key for key in wrong if key in away], again

    def gave_way(self, keys: Sequence[str]) -> set[str]:
        """Those whose rows gave way under a new unique key: copied again at the gate, and compared after that.

        To be asked inside the window: later the row's own change may have taken the key off that list.
        """
        if not self.mapping.may_collide or not keys:
            return set()
        return dirty.among(self.ends.home, self.mapping, self.table, keys)

    def _judge(
        self, table: str, asked: set[str], one: dict[str, RowHash], other: dict[str, RowHash]
    ) -> tuple[list[str], list[str]]:
        differ = _differing(one, other)
        first = [several[0] for several in differ]
        touched = keytables.listed(self.ends.home, self.mapping, table, "touched=1", first)
        bad: list[str] = []
        again: list[str] = []
        for several in differ:
            # A key that was not asked for (the collation calls it the same) was not looked for on the other side.
            is_sure = several[0] not in touched and not asked.isdisjoint(several)
            (bad if is_sure else again).append(several[0])
        return bad, again


def _by_ident(rows: Iterable[RowHash]) -> dict[str, RowHash]:
    return {row.ident: row for row in rows}


def _differing(one: dict[str, RowHash], other: dict[str, RowHash]) -> list[list[str]]:
    """Of each row that is not the same on both sides, the keys under which it was found."""
    return [list(dict.fromkeys(row.key for row in rows)) for _, rows in unequal(one, other)]


def read_keys(
    session: Session, side: Side, keys: Sequence[str], is_over: Callable[[], bool] = lambda: False
) -> list[RowHash]:
    """The rows with these keys. is_over: asked between statements; then nobody wants them any more."""
    found: list[RowHash] = []
    for at in range(0, len(keys), KEYS_PER_STATEMENT):
        if is_over():
            break
        part = [keytables.in_templates(key, side.lookups) for key in keys[at : at + KEYS_PER_STATEMENT]]
        predicate = key_predicate(side.names, part)
        found += checksum.row_hashes(session, side, f"({predicate})")
    return found

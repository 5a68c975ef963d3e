"""What becomes of a message that is larger than the topic takes: parts, claim-check, key-only, or stop.

parts: the producer cuts it. claim-check: its value goes into a file (claims.py), and a message with the columns of the
key alone names it. key-only: that message says that the rest has to be asked from the source. stop: the feed ends.

A size is that of key, value and headers before they are compressed, so that it is the same each time. All ways but
parts make one message of each, so that they may be exchanged for each other while the feed lives; parts may follow
stop, and nothing may follow parts, for parts of a row may stand in the topic already.

What must stay true: nothing is left out or sent otherwise without a word; the same row gives the same messages, but for
where their file is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast
from urllib.parse import unquote, urlsplit

import msgspec

from vreplication.errors import Refused, Terminal
from vreplication.feed.claims import MOST_DIRECTORY, Claims
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Ddl, Encoded, Format, KeyOnly, Row
from vreplication.feed.progress import Progress

Way = Literal["parts", "claim-check", "key-only", "stop"]
WAYS = ("parts", "claim-check", "key-only", "stop")
OVERHEAD = 2_000
"""Bytes of a message beside what is counted: our headers, and what a batch adds."""
LEAST_BYTES, MOST_BYTES = 5_000, 1_000_000_000
_LEAST_PIECE = 1_000
_KEY_ONLY = ("vr-key-only", b"1")
# Twice an address of 663 bytes at the most (directory 400, topic 200, day and name of the file) with length and
# SHA-256.
_CLAIM_BYTES = 1_600
"""What names a file, in the header and in the value."""
_USE = "Use parts, claim-check:DIRECTORY, key-only or stop."


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """is_chosen: somebody has asked for it; else it is what a protocol does by itself."""

    way: Way
    directory: Path | None = None
    is_chosen: bool = True

    def __str__(self) -> str:
        return f"{self.way}:{self.directory}" if self.directory else self.way

    def may_become(self, other: Policy) -> bool:
        """While the feed lives: each message stays one message, or nothing is in the topic of what did not fit."""
        if "parts" not in (self.way, other.way):
            return True
        return self.way == other.way or self.way == "stop"


PARTS, STOP = Policy(way="parts", is_chosen=False), Policy(way="stop", is_chosen=False)


def parse(text: str) -> Policy:
    """Raises Refused."""
    way, _, where = text.strip().partition(":")
    if way not in WAYS or bool(where) != (way == "claim-check"):
        raise Refused(f"{text!r} does not say what is to be done with large messages.", cure=_USE)
    return Policy(way=cast(Way, way), directory=_directory(where) if where else None)


def policy_of(protocol: str, asked: str | None) -> Policy:
    """Parts are for who knows of them: a reader of other protocols does not."""
    if asked is not None:
        return parse(asked)
    return PARTS if protocol == "open" else STOP


def _directory(text: str) -> Path:
    parts = urlsplit(text)
    path = Path(unquote(parts.path) if parts.scheme == "file" else text)
    if parts.scheme not in ("", "file") or parts.netloc or not path.is_absolute() or ".." in path.parts:
        raise Refused(
            f"{text!r} is no directory for large messages.",
            cure="Use claim-check:/a/directory (or file:///…) that the feed and its readers have mounted.",
        )
    if len(path.as_uri()) > MOST_DIRECTORY:
        raise Refused(
            f"The name of directory {text!r} is too long.", cure=f"Use one of at most {MOST_DIRECTORY} bytes."
        )
    return path


def room(message: Encoded, piece: int) -> int:
    """Bytes that its value may have, where all of it may have `piece`."""
    more = sum(len(name) + len(value) for name, value in message.headers) if message.headers else 0
    return max(_LEAST_PIECE, piece - len(message.key or b"") - more)


def is_whole(message: Encoded, piece: int) -> bool:
    """Of a message with no headers of its own, as most are, and with no need to look closer."""
    return not message.headers and len(message.value or b"") + len(message.key or b"") <= piece


def fits(message: Encoded, piece: int) -> bool:
    return len(message.value or b"") <= room(message, piece)


def size(message: Encoded) -> int:
    more = sum(len(name) + len(value) for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + more


def piece_of(most_bytes: int) -> int:
    """Bytes of a message that a topic takes, without what we add."""
    return max(_LEAST_PIECE, most_bytes - OVERHEAD)


def pieced(progress: Progress, policy: Policy, piece: int) -> Progress:
    """Parts are cut as at the feed's start; else a message may be what the topic takes now. Raises Terminal."""
    if policy.way != "parts":
        return msgspec.structs.replace(progress, piece=piece)
    if progress.piece > piece:
        raise Terminal(
            f"Topic {progress.topic} takes messages of {piece:,} bytes by now, and the feed cuts them at"
            f" {progress.piece:,}, as it has begun.",
            cure=f"Set max.message.bytes of the topic to {progress.piece + OVERHEAD} at the least, then resume.",
        )
    return progress


@dataclass(slots=True, kw_only=True)
class Fit:
    """Makes messages fit. piece: bytes that one may have; feed, topic: for what is said where it ends."""

    policy: Policy
    piece: int
    feed: str
    topic: str
    _claims: Claims | None = field(init=False)
    _keys: dict[int, tuple[Layout, Layout, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = self.policy.directory
        self._claims = Claims(where, self.topic) if where is not None else None

    def row(self, format: Format, row: Row, messages: Sequence[Encoded]) -> Sequence[Encoded]:
        """Raises Terminal."""
        if self.policy.way == "parts" or self._all_fit(messages):
            return messages
        # As many messages as of the whole row: only a change of the key makes more of one, and the key is in both.
        bare = format.row(self._key_of(row))
        return [
            message if fits(message, self.piece) else self._instead(format, row, message, bare[number])
            for number, message in enumerate(messages)
        ]

    def ddl(self, format: Format, ddl: Ddl) -> Sequence[Encoded]:
        """Raises Terminal. A statement has no key, so there is nobody to ask for it."""
        messages = format.ddl(ddl)
        if self.policy.way == "parts" or self._all_fit(messages):
            return messages
        bare = format.ddl(replace(ddl, sql=""))
        return [
            message if fits(message, self.piece) else self._instead(format, ddl, message, bare[number])
            for number, message in enumerate(messages)
        ]

    def _all_fit(self, messages: Sequence[Encoded]) -> bool:
        """Asked for every row."""
        for message in messages:  # noqa: SIM110
            if not fits(message, self.piece):
                return False
        return True

    def _instead(self, format: Format, of: Row | Ddl, message: Encoded, bare: Encoded) -> Encoded:
        bare = Encoded(key=message.key, value=bare.value, headers=message.headers)
        if self._claims is not None:
            if not fits(bare, self.piece - _CLAIM_BYTES):
                raise self._too_large(of, size(message))
            claim = self._claims.put(of.place, message.value or b"")
            made = format.mark(bare, claim)
            return Encoded(key=made.key, value=made.value, headers=(*made.headers, claim.header))
        if self.policy.way != "key-only" or not isinstance(of, Row) or not of.layout.has_key:
            raise self._too_large(of, size(message))
        made = format.mark(bare, KeyOnly(source=of.source, columns=tuple(each.name for each in of.layout.columns)))
        if not fits(made, self.piece - len(_KEY_ONLY[0]) - len(_KEY_ONLY[1])):
            raise self._too_large(of, size(message))
        return Encoded(key=made.key, value=made.value, headers=(*made.headers, _KEY_ONLY))

    def _key_of(self, row: Row) -> Row:
        """The row as if its table had the columns of the key alone; none where no key tells rows apart."""
        known = self._keys.get(row.layout.number)
        if known is None or known[0] is not row.layout:
            known = self._keys[row.layout.number] = row.layout, *_key_layout(row.layout)
        _, layout, places = known
        before, after = (
            None if image is None else tuple(image[place] for place in places) for image in (row.before, row.after)
        )
        return Row(
            layout=layout,
            place=row.place,
            before=before,
            after=after,
            gtid=row.gtid,
            source=row.source,
            commit=row.commit,
            is_snapshot=row.is_snapshot,
        )

    def _too_large(self, of: Row | Ddl, found: int) -> Terminal:
        what = f"A row of {of.layout.name}" if isinstance(of, Row) else f"A statement in schema {of.schema or '(none)'}"
        without_key = self.policy.way == "key-only" and isinstance(of, Row) and not of.layout.has_key
        return Terminal(
            f"{what} (transaction {of.gtid or 'of a snapshot'}, {of.place.t}/{of.place.seq}) takes {found:,} bytes in"
            f" a message, and topic {self.topic} takes {self.piece:,}"
            f"{', and the table has no key by which it could be asked for' if without_key else ''}.",
            cure=f"Nothing is lost: raise max.message.bytes of the topic (and --max-message-bytes, where it is set) and"
            f" run `vreplication resume {self.feed}`, or run the feed's command with --workflow {self.feed} and another"
            f" --max-message, {'claim-check:DIRECTORY' if self._claims is None else 'stop'}.",
        )


def _key_layout(layout: Layout) -> tuple[Layout, tuple[int, ...]]:
    key = set(layout.key if layout.has_key else ())
    places = tuple(place for place, column in enumerate(layout.columns) if column.name in key)
    columns = tuple(layout.columns[place] for place in places)
    names = layout.key if layout.has_key else ()
    # Formats know a layout by its number, and this one is another.
    return replace(layout, number=-1 - layout.number, columns=columns, key=names, unique=(names,)), places

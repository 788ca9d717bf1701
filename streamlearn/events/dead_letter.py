"""Dead letters: what is kept of a record or event that could not be used, so that no data vanishes silently."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from streamlearn.events.event import Failure
from streamlearn.schemas import DEAD_LETTER

__all__ = ["KEY_BYTES_MAX", "OVERSIZE_HEAD_BYTES", "Origin", "dead_letter"]

OVERSIZE_HEAD_BYTES = 4_096
KEY_BYTES_MAX = 4_096
DETAIL_CHARS_MAX = 4_096


class Origin(NamedTuple):
    """The origin of a record."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None


def dead_letter(failure: Failure, origin: Origin, wall_ms: int) -> bytes:
    """Return a record for the dead-letter topic, written at `wall_ms`.

    Of an oversize record it keeps only head, length and hash, and of a long key the first bytes and its length, since
    the dead-letter topic also limits the size.
    """
    whole, key, detail = failure.bytes, origin.key, failure.detail[:DETAIL_CHARS_MAX]
    if key is not None and len(key) > KEY_BYTES_MAX:
        detail = f"{detail} (its key has {len(key)} bytes; the first {KEY_BYTES_MAX} are kept)"
    return DEAD_LETTER.write(
        {
            **origin._asdict(),
            "key": key and key[:KEY_BYTES_MAX],
            "event_index": failure.event_index,
            "reason": failure.reason,
            "detail": detail,
            "length": len(whole),
            "sha256": hashlib.sha256(whole).digest(),
            "head": whole[:OVERSIZE_HEAD_BYTES] if failure.reason == "oversize" else whole,
            "wall_ms": wall_ms,
        }
    )

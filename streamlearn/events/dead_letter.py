"""What is kept of a record or event that could not be used, so that nobody's data vanishes in silence."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from streamlearn.events.event import Failure
from streamlearn.schemas import DEAD_LETTER

__all__ = ["OVERSIZE_HEAD_BYTES", "Origin", "dead_letter"]

OVERSIZE_HEAD_BYTES = 4_096
DETAIL_CHARS_MAX = 4_096


class Origin(NamedTuple):
    """Where a record came from.

    Attributes:
        topic: The name of its topic.
        topic_id: The id of its topic.
        partition: Its partition.
        offset: Its offset.
        timestamp_ms: Its timestamp.
        key: Its key.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None


def dead_letter(failure: Failure, origin: Origin, wall_ms: int) -> bytes:
    """A record for the dead-letter topic.

    An oversize record keeps its head, length and hash only: the dead-letter topic has a size limit as well.

    Args:
        failure: What could not be used, and why.
        origin: Where it came from.
        wall_ms: When it was set aside.
    """
    whole = failure.bytes
    head = whole[:OVERSIZE_HEAD_BYTES] if failure.reason == "oversize" else whole
    return DEAD_LETTER.write(
        {
            "topic": origin.topic,
            "topic_id": origin.topic_id,
            "partition": origin.partition,
            "offset": origin.offset,
            "timestamp_ms": origin.timestamp_ms,
            "event_index": failure.event_index,
            "reason": failure.reason,
            "detail": failure.detail[:DETAIL_CHARS_MAX],
            "length": len(whole),
            "sha256": hashlib.sha256(whole).digest(),
            "head": head,
            "key": origin.key,
            "wall_ms": wall_ms,
        }
    )

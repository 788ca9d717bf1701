"""Dead letters: every field, for every reason."""

from __future__ import annotations

import hashlib

import pytest

from streamlearn.errors import BadRecord
from streamlearn.events import EventDecoder, Failure, Origin
from streamlearn.events.dead_letter import KEY_BYTES_MAX, OVERSIZE_HEAD_BYTES, dead_letter
from streamlearn.schemas import DEAD_LETTER
from streamlearn.schemas.fixed_schemas import DEAD_LETTER_REASONS
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.testing import small_app

ORIGIN = Origin("shop.impressions", "topic-1", 3, 1 << 40, 1_700_000_000_000, b"q1")
WHOLE = bytes(range(256)) * 64


def test_a_dead_letter_says_where_it_came_from_and_why_and_keeps_all_its_bytes() -> None:
    record = dead_letter(Failure(9, 4, "malformed", "user: cut (at byte 3)", WHOLE), ORIGIN, 77)
    assert record.startswith(DEAD_LETTER.prefix)
    assert DEAD_LETTER.read(record[PREFIX_BYTES:]) == {
        "topic": "shop.impressions",
        "topic_id": "topic-1",
        "partition": 3,
        "offset": 1 << 40,
        "timestamp_ms": 1_700_000_000_000,
        "event_index": 4,
        "reason": "malformed",
        "detail": "user: cut (at byte 3)",
        "length": len(WHOLE),
        "sha256": hashlib.sha256(WHOLE).digest(),
        "head": WHOLE,
        "key": b"q1",
        "wall_ms": 77,
    }


def test_an_oversize_record_keeps_its_head_length_and_hash_alone() -> None:
    record = dead_letter(Failure(0, -1, "oversize", "too large", WHOLE), ORIGIN._replace(key=None), 77)
    letter = DEAD_LETTER.read(record[PREFIX_BYTES:])
    assert letter["head"] == WHOLE[:OVERSIZE_HEAD_BYTES]
    assert (letter["length"], letter["key"]) == (len(WHOLE), None)
    assert letter["sha256"] == hashlib.sha256(WHOLE).digest()
    assert len(record) < OVERSIZE_HEAD_BYTES + 200


def test_a_long_key_is_cut_so_that_every_record_of_an_event_topic_has_a_letter_that_fits() -> None:
    key = bytes(range(256)) * 600
    record = dead_letter(Failure(0, -1, "garbage", "no event", b"x" * 900_000), ORIGIN._replace(key=key), 77)
    assert len(record) < 1 << 20
    letter = DEAD_LETTER.read(record[PREFIX_BYTES:])
    assert letter["key"] == key[:KEY_BYTES_MAX]
    assert letter["detail"] == "no event (its key has 153600 bytes; the first 4096 are kept)"
    whole = DEAD_LETTER.read(dead_letter(Failure(0, -1, "garbage", "", b""), ORIGIN, 0)[PREFIX_BYTES:])
    assert (whole["key"], whole["detail"]) == (b"q1", "")


@pytest.mark.parametrize("reason", DEAD_LETTER_REASONS)
def test_every_reason_can_be_written(reason: str) -> None:
    record = dead_letter(Failure(0, -1, reason, "", b""), ORIGIN, 0)
    assert DEAD_LETTER.read(record[PREFIX_BYTES:])["reason"] == reason


def test_a_reason_nobody_knows_is_a_bug_told_at_once() -> None:
    with pytest.raises(BadRecord, match="cannot encode the value as DeadLetter: 'mood' is not in list"):
        dead_letter(Failure(0, -1, "mood", "", b""), ORIGIN, 0)


def test_a_failures_bytes_stay_out_of_its_repr() -> None:
    (failure,) = EventDecoder(small_app(), EventSettings()).decode([b"secret-bytes"]).failures
    assert "secret-bytes" not in repr(failure)

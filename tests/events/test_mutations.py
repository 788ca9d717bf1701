"""Damaged records: whatever the bytes, decoding never raises and never touches another record's events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlearn.events import EventDecoder, EventEncoder, Events
from streamlearn.schemas import EVENT_PACK
from streamlearn.settings import EventSettings
from streamlearn.testing import small_app, small_impression
from tools.golden_records import ACTION

DECODER = EventDecoder(small_app(), EventSettings())
ENCODER = EventEncoder(small_app(), EventSettings())


def shown(seed: int) -> bytes:
    return ENCODER.impression(small_impression(seed) | {"shown_wall_ms": 5})


ACTED = ENCODER.action(ACTION)
PACK = EVENT_PACK.write({"events": [shown(1), ACTED, shown(2)], "items": [2, 0, 2]})
FIRST = EVENT_PACK.write({"events": [shown(3), ACTED], "items": [2, 0]})
LAST = shown(4)


@st.composite
def mutated(draw: Any, record: bytes) -> bytes:
    """The record with some bytes changed, cut out, added or swapped."""
    damaged = bytearray(record)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(damaged) - 1, 0)))
        span = draw(st.integers(0, 12))
        kind = draw(st.sampled_from(["flip", "cut", "add", "end"]))
        if kind == "flip" and damaged:
            damaged[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del damaged[at : at + span]
        elif kind == "add":
            damaged[at:at] = draw(st.binary(max_size=12))
        elif kind == "end":
            del damaged[at:]
    return bytes(damaged)


def of_record(events: Events, record: int) -> list[Any]:
    """All that was made of one record, as plain values."""
    found: list[Any] = []
    for kind in (events.impressions, events.actions, events.controls):
        for row in (kind.record_index == record).nonzero()[0].tolist():
            at = (int(kind.event_index[row]), int(kind.item_base[row]))
            found.append((at, kind.texts("request_id")[row], int(kind.columns["event_time_ms"][row])))
    impressions = events.impressions
    for row in (impressions.record_index == record).nonzero()[0].tolist():
        begin, end = impressions.columns["items[]"][row : row + 2]
        found.append(impressions.columns["items.video_id"][begin:end].tolist())
        found.append(impressions.columns["items.vector"][3 * begin : 3 * end].tolist())
        found.append(impressions.texts("items.segment_fresh")[begin:end])
    return found


ALONE = {record: of_record(DECODER.decode([record]), 0) for record in (FIRST, LAST)}


@given(damaged=mutated(PACK) | mutated(LAST) | st.binary(max_size=64))
def test_a_damaged_record_never_raises_and_harms_no_other(damaged: bytes) -> None:
    events = DECODER.decode([FIRST, damaged, LAST])
    assert of_record(events, 0) == ALONE[FIRST]
    assert of_record(events, 2) == ALONE[LAST]
    assert {failure.record_index for failure in events.failures} <= {1}
    for failure in events.failures:
        assert failure.bytes in damaged
        assert failure.detail
    for kind in (events.impressions, events.actions, events.controls):
        assert len(kind.item_base) == len(kind.event_index) == len(kind.columns["event_time_ms"])


@given(damaged=mutated(shown(2)))
def test_a_damaged_event_never_moves_the_others_of_its_pack(damaged: bytes) -> None:
    record = EVENT_PACK.write({"events": [shown(1), damaged, shown(3)], "items": [2, 2, 2]})
    events = DECODER.decode([record])
    kept = [
        place
        for place in zip(events.impressions.event_index.tolist(), events.impressions.item_base.tolist(), strict=True)
        if place[0] != 1
    ]
    assert kept == [(0, 0), (2, 4)]
    assert all(failure.event_index == 1 for failure in events.failures)

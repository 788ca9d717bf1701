"""How far one topic of a partition may run ahead of the other, and reading of what is acknowledged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlearn.ingest.reading.lead import Lead
from streamlearn.ingest.reading.ledger import Ledger
from streamlearn.ingest.reading.watermark import BEFORE_ALL, TopicClock

LEAD_MS, LEAD_BYTES = 100, 1_000
BOTH = (True, True)


def at(*reached_ms: int) -> tuple[TopicClock, TopicClock]:
    first, second = (TopicClock(reached_ms=one) for one in reached_ms)
    return first, second


def test_the_topic_that_is_behind_comes_first_and_the_other_within_its_time() -> None:
    lead = Lead(LEAD_MS, LEAD_BYTES)
    assert lead.allowed(at(150, 100), BOTH) == [1, 0]
    assert lead.allowed(at(199, 100), BOTH) == [1, 0]
    assert lead.allowed(at(200, 100), BOTH) == [1]


def test_what_was_read_ahead_is_bounded_in_bytes_until_the_other_catches_up() -> None:
    lead = Lead(LEAD_MS, LEAD_BYTES)
    lead.note(0, 120, 600)
    lead.note(0, 150, 600)
    assert lead.allowed(at(150, 100), BOTH) == [1]
    assert lead.bytes_ahead(0) == 1_200
    assert lead.allowed(at(150, 120), BOTH) == [1, 0]
    assert lead.bytes_ahead(0) == 600


def test_of_a_topic_that_nothing_was_read_of_bytes_alone_bound_the_other() -> None:
    lead = Lead(LEAD_MS, LEAD_BYTES)
    assert 0 in lead.allowed(at(10_000, BEFORE_ALL), BOTH)
    lead.note(0, 10_000, LEAD_BYTES)
    assert lead.allowed(at(10_000, BEFORE_ALL), BOTH) == [1]


def test_nobody_waits_for_a_topic_that_is_idle_or_has_ended() -> None:
    assert 0 in Lead(LEAD_MS, LEAD_BYTES).allowed(at(10_000, 100), (True, False))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 500), st.integers(1, 600)), max_size=40),
    st.tuples(st.booleans(), st.booleans()),
)
def test_one_topic_may_always_be_read_and_no_bound_is_passed_by_more_than_one_read(
    wanted: list[tuple[int, int, int]], waited_for: tuple[bool, bool]
) -> None:
    lead, reached = Lead(LEAD_MS, LEAD_BYTES), [BEFORE_ALL, BEFORE_ALL]
    read: list[list[tuple[int, int]]] = [[], []]
    for topic, moved_ms, size in wanted:
        allowed = lead.allowed(at(*reached), waited_for)
        assert allowed
        if topic not in allowed:
            assert waited_for[1 - topic]
            continue
        ahead = sum(one for time_ms, one in read[topic] if time_ms > reached[1 - topic])
        assert not waited_for[1 - topic] or reached[topic] <= reached[1 - topic] or ahead < LEAD_BYTES
        reached[topic] = max(0, reached[topic]) + moved_ms
        read[topic].append((reached[topic], size))
        lead.note(topic, reached[topic], size)


def test_reading_waits_at_its_bound_for_the_watermark_that_went_with_a_blob() -> None:
    ledger = Ledger(100)
    for watermark_ms in (10, 20):
        ledger.add(watermark_ms, 60)
    assert not ledger.has_room(9)
    assert ledger.has_room(10)
    assert ledger.unacknowledged_bytes == 60
    assert ledger.has_room(20)
    assert ledger.unacknowledged_bytes == 0


def test_one_blob_larger_than_the_bound_goes_alone() -> None:
    ledger = Ledger(100)
    assert ledger.has_room(BEFORE_ALL)
    ledger.add(10, 500)
    assert not ledger.has_room(9)
    assert ledger.has_room(10)

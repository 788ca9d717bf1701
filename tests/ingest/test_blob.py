"""Blobs, lots and marks as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import BadRecord
from streamlearn.ingest.join.lot_events import decode_lot
from streamlearn.ingest.reading.blob import Blob, Section, decode_blob, encode_blob
from streamlearn.ingest.reading.mark import PairMark, decode_marks, encode_marks
from streamlearn.ingest.reading.watermark import TopicClock
from streamlearn.topics import Position

Row = tuple[int, int, int, bytes | None, bytes | None]
ints = st.integers(-(2**60), 2**60)
rows = st.lists(st.tuples(ints, ints, ints, st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=40)))


def section(of: list[Row]) -> Section:
    offsets, times, limits = (np.array([row[at] for row in of], np.int64) for at in range(3))
    return Section(offsets, times, limits, [row[3] for row in of], [row[4] for row in of])


def plain(one: Section) -> tuple[list[int], list[int], list[int], list[bytes | None], list[bytes | None]]:
    return one.offsets.tolist(), one.timestamps_ms.tolist(), one.limits_ms.tolist(), list(one.keys), list(one.values)


@given(rows, rows, st.booleans(), ints)
def test_a_blob_comes_back_as_it_was(shown: list[Row], done: list[Row], opens: bool, watermark_ms: int) -> None:
    blob = Blob(3, opens, not opens, watermark_ms, section(shown), section(done), watermark_ms + 1)
    found = decode_blob(encode_blob(blob))
    assert (found.partition, found.opens, found.closes, found.watermark_ms) == (3, opens, not opens, watermark_ms)
    assert plain(found.impressions) == plain(blob.impressions)
    assert plain(found.actions) == plain(blob.actions)


@given(st.binary(max_size=60).filter(lambda data: data != encode_marks(())))
def test_bytes_that_are_no_blob_no_lot_and_no_mark_are_refused(data: bytes) -> None:
    for decode in (decode_blob, decode_lot, decode_marks):
        with pytest.raises(BadRecord):
            decode(data)


def test_a_cut_blob_is_refused() -> None:
    data = encode_blob(Blob(0, False, False, 0, section([(1, 2, 3, b"k", b"value")]), section([]), 0))
    for length in range(len(data)):
        with pytest.raises(BadRecord):
            decode_blob(data[:length])


def test_equal_marks_have_equal_bytes_and_come_back() -> None:
    def mark() -> PairMark:
        clocks = (TopicClock(5, 6, False), TopicClock(7, 8, True))
        return PairMark(Position("a", 1, 2), Position("b", 1, 3), clocks, 9, True)

    assert encode_marks((mark(),)) == encode_marks((mark(),))
    assert decode_marks(encode_marks((mark(),))) == (mark(),)

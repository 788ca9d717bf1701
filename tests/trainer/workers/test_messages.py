"""Messages: what does not fit is refused before memory is taken for it."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import BadRecord
from streamlearn.trainer.workers.messages import (
    Ask,
    Idle,
    Leave,
    Message,
    Report,
    Setup,
    Side,
    SliceWork,
    Welcome,
    decode,
    encode,
    inputs_of,
)
from tests.campaign import examples


def test_a_message_has_its_head_and_its_arrays() -> None:
    report = Report("ab", 1, 2, 3, 0.5, True, 9, 0.25)
    logits = np.arange(6, dtype=np.float32).reshape(3, 2)
    head, (found,) = decode(encode(report, [logits]), "ask")
    assert head == report
    np.testing.assert_array_equal(found, logits)
    assert decode(encode(Idle(1, 2, 3)), "answer") == (Idle(1, 2, 3), [])


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.sampled_from(["ask", "answer"]))
def test_bytes_that_are_no_message_are_refused(data: bytes, of: str) -> None:
    with pytest.raises(BadRecord):
        decode(data, of)


@settings(max_examples=examples(300))
@given(st.data())
def test_a_damaged_message_is_refused_or_decodes_to_a_message(data: st.DataObject) -> None:
    whole = bytearray(encode(Ask("ab", "host:1", Setup("d", "e"), 1, 5, 6), [np.arange(4, dtype=np.uint64)]))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        head, arrays = decode(bytes(whole), "ask")
    except BadRecord:
        return
    assert isinstance(head, msgspec.Struct)
    assert sum(array.nbytes for array in arrays) <= len(whole)


@pytest.mark.parametrize(
    "shapes", [[["f4", [1 << 40]]], [["f4", [-1]]], [["f8", [1]]], [["f4", [1] * 5]], [["u8", []]] * 10_000]
)
def test_arrays_that_the_bytes_do_not_hold_are_refused(shapes: list[object]) -> None:
    head = msgspec.msgpack.encode((Idle(1, 2, 3), shapes))
    with pytest.raises(BadRecord):
        decode(struct.pack("<I", len(head)) + head + bytes(8), "answer")


def test_a_head_of_many_shapes_is_refused_before_they_become_objects() -> None:
    count = 1_000_000
    ask = msgspec.msgpack.encode(Ask("ab", "host:1", Setup("d", "e"), 1))
    head = b"\x92" + ask + b"\xdd" + struct.pack(">I", count) + b"\x92\xa2f4\x90" * count
    tracemalloc.start()
    with pytest.raises(BadRecord, match="length <= 8192"):
        decode(struct.pack("<I", len(head)) + head, "ask")
    assert tracemalloc.get_traced_memory()[1] < 2 * len(head)
    tracemalloc.stop()


@pytest.mark.parametrize(
    "head",
    [
        Ask("leader", "host:1", Setup("d", "e"), 1),  # the name of the leader's own worker
        Ask("ab\n", "host:1", Setup("d", "e"), 1),
        Ask("ab", "host:1", Setup("d", "e"), -1),
        Leave("leader"),
        Report("leader", 1, 2, 3, 0.5, True, 9, 0.25),
        *(Report("ab", 1, 2, 3, 0.5, True, 9, busy_s) for busy_s in (-1.0, math.nan, math.inf)),
    ],
)
def test_a_head_whose_fields_cannot_be_is_refused(head: Message) -> None:
    with pytest.raises(BadRecord):
        decode(encode(head), "ask")


def test_a_slice_without_all_its_arrays_is_refused() -> None:
    side = Side([("one", True, True)], ["price"])
    work = SliceWork(1, 0, 0, 1, 0, 4, 0, 2, side, side)
    head, arrays = decode(encode(work, [np.zeros(4, np.int32)]), "answer")
    with pytest.raises(BadRecord, match="fewer than"):
        inputs_of(head, arrays)
    assert isinstance(head, SliceWork)
    assert not isinstance(head, Welcome)


def test_who_learns_is_listed_without_tensorflow() -> None:
    script = "import sys, streamlearn.trainer.workers.leader_link; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "False"

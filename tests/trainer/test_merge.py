"""Merge: one order of all partitions' messages, whoever puts them when, and wherever it begins again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.testing import small_app, small_batch
from streamlearn.trainer.intake.merge import Merge
from streamlearn.trainer.intake.message import Message, Reached
from tests.campaign import examples

_BATCH = small_batch(small_app(), 1, 1)
# The watermarks of each partition's messages; they may go back, for messages of several lots stand side by side.
Partitions = list[list[int]]
partitions = st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=1, max_size=4)


def messages_of(marks: Partitions) -> list[list[Message]]:
    def message(partition: int, offset: int, mark: int) -> Message:
        header = replace(_BATCH.header, watermark_ms=mark, lot=partition, lots_count=len(marks))
        batch = replace(_BATCH, header=header)
        # Offsets of a topic have gaps.
        return Message(partition, 3 * offset + partition, 10 + offset, batch)

    return [[message(at, number, mark) for number, mark in enumerate(some)] for at, some in enumerate(marks)]


def expected(marks: Partitions) -> list[tuple[int, int]]:
    """All messages, (partition, number), by the highest watermark up to them."""
    keys = [
        (max(some[: number + 1]), at, number) for at, some in enumerate(marks) for number in range(len(some))
    ]  # fmt: skip
    return [(at, number) for _, at, number in sorted(keys)]


def beginning(count: int) -> Reached:
    return Reached((0,) * count, (None,) * count, leader_epochs=(-1,) * count)


def number_of(message: Message) -> tuple[int, int]:
    return message.partition, (message.offset - message.partition) // 3


@settings(max_examples=examples(80))
@given(partitions, st.data())
def test_the_order_depends_on_nothing_but_what_messages_say(marks: Partitions, data: st.DataObject) -> None:
    messages = messages_of(marks)
    merge, found = Merge(beginning(len(marks))), []
    left = [list(some) for some in messages]
    while any(left):
        at = data.draw(st.sampled_from([number for number, some in enumerate(left) if some]))
        merge.put(left[at].pop(0))
        if not left[at] and data.draw(st.booleans()):
            merge.end(at)
        while data.draw(st.booleans()) and (taken := merge.take()) is not None:
            found.append(number_of(taken))
    for at in range(len(marks)):
        merge.end(at)
    while (taken := merge.take()) is not None:
        found.append(number_of(taken))
    assert found == expected(marks)
    assert merge.bytes == 0
    assert list(merge.waiting) == [0] * len(marks)


@settings(max_examples=examples(50))
@given(partitions)
def test_it_goes_on_from_wherever_messages_were_consumed(marks: Partitions) -> None:
    messages, order = messages_of(marks), expected(marks)

    def rest(reached: Reached) -> list[tuple[tuple[int, int], Reached]]:
        merge, found = Merge(reached), []
        for at, some in enumerate(messages):
            for message in some:
                if message.offset >= reached.offsets[at]:
                    merge.put(message)
            merge.end(at)
        while (taken := merge.take()) is not None:
            merge.consume(taken)
            found.append((number_of(taken), merge.reached))
        return found

    whole = rest(beginning(len(marks)))
    assert [one for one, _ in whole] == order
    for done, (_, reached) in enumerate(whole, 1):
        assert rest(reached) == whole[done:]


def test_how_far_a_lot_is_is_heard_in_the_partition_of_its_samples_alone() -> None:
    merge = Merge(beginning(3))
    for partition, mark in ((2, 700), (1, 500), (0, 300)):  # of two lots: the first speaks in the last partition too
        header = replace(_BATCH.header, watermark_ms=mark, lot=partition % 2, lots_count=2)
        message = Message(partition, 0, 10, replace(_BATCH, header=header))
        merge.put(message)
        merge.consume(message)
        assert merge.reached.watermark_ms == (300 if partition == 0 else None)
    assert merge.reached.lots_ms == (300, 500)


@settings(max_examples=examples(50))
@given(partitions)
def test_what_was_consumed_is_told_by_partition(marks: Partitions) -> None:
    messages = messages_of(marks)
    merge, highest = Merge(beginning(len(marks))), list[int | None]([None] * len(marks))
    for at, some in enumerate(messages):
        for message in some:
            merge.put(message)
        merge.end(at)
    assert merge.reached == beginning(len(marks))
    clock_ms = -1
    while (taken := merge.take()) is not None:
        at, number = number_of(taken)
        before = merge.reached
        # What is taken and not consumed counts for the clock alone.
        assert before.offsets[at] <= taken.offset
        merge.consume(taken)
        highest[at] = max(marks[at][: number + 1])
        clock_ms = max(clock_ms, highest[at] or 0)
        assert merge.reached.offsets[at] == taken.offset + 1
        assert merge.reached.watermarks_ms == tuple(highest)
        assert merge.reached.clock_ms == before.clock_ms == clock_ms
        known = [one for one in highest if one is not None]
        assert merge.reached.watermark_ms == (min(known) if len(known) == len(marks) else None)


@settings(max_examples=examples(50))
@given(partitions, st.data())
def test_without_waiting_each_comes_once_and_in_the_order_of_its_partition(
    marks: Partitions, data: st.DataObject
) -> None:
    merge, found = Merge(beginning(len(marks))), []
    left = [list(some) for some in messages_of(marks)]
    while any(left):
        at = data.draw(st.sampled_from([number for number, some in enumerate(left) if some]))
        merge.put(left[at].pop(0))
        if data.draw(st.booleans()):
            taken = merge.take(wait=False)
            assert taken is not None
            found.append(number_of(taken))
    while (taken := merge.take(wait=False)) is not None:
        found.append(number_of(taken))
    assert sorted(found) == sorted(expected(marks))
    for at in range(len(marks)):
        numbers = [number for partition, number in found if partition == at]
        assert numbers == sorted(numbers)


def test_a_silent_partition_is_waited_for_until_it_has_ended() -> None:
    (first,), _ = messages_of([[5], []])
    merge = Merge(beginning(2))
    merge.put(first)
    assert merge.take() is None
    assert merge.bytes == first.bytes
    assert merge.take(wait=False) is first
    assert merge.take(wait=False) is None
    merge.put(first)
    merge.end(1)
    assert merge.take() is first


def test_samples_are_complete_up_to_where_the_slowest_lot_is() -> None:
    merge = Merge(beginning(1))

    def hear(lot: int, mark: int, lots_count: int = 2) -> int | None:
        header = replace(_BATCH.header, watermark_ms=mark, lot=lot, lots_count=lots_count)
        merge.put(Message(0, merge.reached.offsets[0], 1, replace(_BATCH, header=header)))
        taken = merge.take()
        assert taken is not None
        merge.consume(taken)
        return merge.reached.watermark_ms

    assert hear(0, 7_000) is None
    assert hear(1, 10) == 10
    assert hear(0, 7_500) == 10
    assert hear(1, 7_200) == 7_200
    assert hear(1, 7_100) == 7_200
    # Ingest that began anew has lots of its own.
    assert hear(0, 7_600, lots_count=3) is None

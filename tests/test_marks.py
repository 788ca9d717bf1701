"""Marks against a dict: what is learned, what is saved, what is forgotten."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, MarksFull
from streamlearn.marks import MarkedRows, Marks, Settled
from streamlearn.native import native
from streamlearn.settings.join import MarksSettings

NONE, NEGATIVE, POSITIVE, REFUSED = range(4)
Row = tuple[str, int, int, int, int, int, int]  # topic, partition, offset, item, time, settles, labels
Oracle = dict[tuple[object, ...], int]


def columns(rows: Sequence[Row]) -> MarkedRows:
    """Rows of one topic as columns; rows of one record that lie side by side share a request."""
    requests: list[Row] = []
    index = []
    for row in rows:
        if not requests or requests[-1][1:3] != row[1:3]:
            requests.append(row)
        index.append(len(requests) - 1)
    return MarkedRows(
        rows[0][0] if rows else "one",
        np.array([row[1] for row in requests], np.int32),
        np.array([row[2] for row in requests], np.int64),
        np.array([row[4] for row in requests], np.int64),
        np.array(index, np.int32),
        np.array([row[3] for row in rows], np.int32),
        np.array([row[5] for row in rows], np.uint32),
        np.array([row[6] for row in rows], np.uint32),
    )


def settle(oracle: Oracle, rows: Sequence[Row], labels: int, horizon: int) -> list[tuple[int, int, int, int]]:
    """What the rules say, label by label."""
    found = []
    for *identity, time, settles, positive in rows:
        learn = correct = 0
        for bit in range(labels):
            key, is_positive = (*identity, bit), positive >> bit & 1
            mark = oracle.get(key, NONE)
            if time < horizon or not settles >> bit & 1:
                continue
            if mark == NONE:
                learn |= 1 << bit
                oracle[key] = POSITIVE if is_positive else NEGATIVE
            elif mark == NEGATIVE and is_positive:
                correct |= 1 << bit
                oracle[key] = POSITIVE
        known = sum(1 << bit for bit in range(labels) if oracle.get((*identity, bit)) == POSITIVE)
        found.append((learn, correct, int(time < horizon), 0 if time < horizon else known))
    return found


def plain(settled: Settled) -> list[tuple[int, int, int, int]]:
    """What marks said, as values."""
    said = (settled.learn, settled.correct, settled.old, settled.positive)
    return list(zip(*(one.tolist() for one in said), strict=True))


def make_rows(rng: random.Random, labels: int) -> list[Row]:
    """Rows of few identities, so that they meet again; a record's time follows from its offset."""
    topic, rows = rng.choice(("one", "two")), []
    for _ in range(rng.randrange(8)):
        partition, offset = rng.randrange(2), rng.choice((0, 1, 1_023, 1_024, 5_000, 1 << 40))
        for _ in range(rng.randrange(1, 4)):
            settles = rng.getrandbits(labels)
            item = rng.choice((0, 1, 2, 9, 700))
            rows.append((topic, partition, offset, item, offset % 7_000, settles, rng.getrandbits(labels) & settles))
    return rows


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(1, 32), st.integers(1, 40))
def test_marks_do_what_a_dict_does_through_saves_and_restarts(seed: int, labels: int, turns: int) -> None:
    rng = random.Random(seed)
    marks, step, horizon = Marks(labels), 0, 0
    oracle: Oracle = {}
    learned: Oracle = {}
    saved: Oracle = {}
    unlearned: list[tuple[int, Oracle]] = []
    saves: list[Mapping[str, bytes]] = []
    since = 0
    for _ in range(turns):
        turn = rng.random()
        if turn < 0.6:
            step += rng.randrange(3)
            rows = make_rows(rng, labels)
            assert plain(marks.settle(step, columns(rows))) == settle(oracle, rows, labels, horizon)
            unlearned.append((step, dict(oracle)))
        elif turn < 0.7:
            rows = make_rows(rng, labels)
            marks.refuse(step, columns(rows))
            for *identity, time, settles, _positive in rows:
                keys = [(*identity, bit) for bit in range(labels) if settles >> bit & 1 and time >= horizon]
                oracle.update(dict.fromkeys(keys, REFUSED))
            unlearned.append((step, dict(oracle)))
        elif turn < 0.8:
            upto = rng.randrange(step + 1)
            marks.acknowledge(upto)
            for one, then in unlearned:
                learned = then if one <= upto else learned
            unlearned = [(one, then) for one, then in unlearned if one > upto]
        elif turn < 0.9:
            save = marks.save(since)
            saves, saved = ([*saves, save.entries] if since else [save.entries]), dict(learned)
            since = rng.choice((0, save.number))
        else:
            marks, oracle, unlearned = Marks(labels), dict(saved), []
            since = 0
            for entries in saves:
                since = marks.load(entries)
            learned, step = dict(saved), 0
    if saves:
        read = Marks(labels)
        for entries in saves:
            read.load(entries)
        _check(read, saved, labels)
    _check(marks, oracle, labels)


def _check(marks: Marks, oracle: Oracle, labels: int) -> None:
    """Every mark is the dict's: asked about with positives, none is learned, negative corrected, others dropped."""
    everything = (1 << labels) - 1
    for topic in ("one", "two"):
        places = [
            (partition, offset, item)
            for partition in range(2)
            for offset in (0, 1, 1_023, 1_024, 5_000, 1 << 40)
            for item in (0, 1, 2, 3, 9, 700)
        ]
        rows = [(topic, *place, 9_999, everything, everything) for place in places]
        assert plain(marks.settle(1 << 40, columns(rows))) == settle(dict(oracle), rows, labels, 0)


def row(time: int, settles: int = 1, labels: int = 0, **changes: int) -> Row:
    """One row of a record."""
    return ("one", 0, changes.get("offset", time), changes.get("item", 0), time, settles, labels)


def test_what_is_older_than_the_horizon_is_refused_and_its_pages_forgotten() -> None:
    marks = Marks(2)
    rows = [row(time) for time in range(0, 10_000, 500)]
    marks.settle(1, columns(rows))
    pages, held = marks.pages, marks.bytes
    marks.forget(5_000)
    assert marks.pages == pages  # nothing in flight is forgotten
    marks.acknowledge(1)
    marks.forget(5_000)
    assert (marks.pages, marks.horizon_ms) == (pages - 4, 5_000)
    assert marks.bytes < held
    settled = marks.settle(2, columns(rows))
    assert settled.old.tolist() == [1] * 10 + [0] * 10
    assert not settled.learn.any()
    assert marks.counters["rows_old"] == 10
    marks.forget(0)
    assert marks.horizon_ms == 5_000
    read = Marks(2)
    read.load(marks.save().entries)
    assert (read.horizon_ms, read.pages) == (5_000, marks.pages)


def test_what_is_in_flight_is_known_to_later_steps_but_in_no_save() -> None:
    marks = Marks(1)
    assert plain(marks.settle(1, columns([row(0)]))) == [(1, 0, 0, 0)]
    assert plain(marks.settle(2, columns([row(0, labels=1)]))) == [(0, 1, 0, 1)]
    assert marks.inflight == 2
    marks.acknowledge(1)
    read = Marks(1)
    read.load(marks.save().entries)
    assert plain(read.settle(1, columns([row(0, labels=1)]))) == [(0, 1, 0, 1)]
    marks.acknowledge(2)
    read = Marks(1)
    read.load(marks.save().entries)
    assert plain(read.settle(1, columns([row(0, labels=1)]))) == [(0, 0, 0, 1)]


def test_a_save_has_the_same_bytes_however_far_was_read_ahead() -> None:
    ahead, behind = Marks(2), Marks(2)
    for marks in (ahead, behind):
        marks.settle(1, columns([row(time, offset=3, item=item) for item, time in enumerate((50, 10))]))
    # Later rows of a record and of records that have marks, and of some that have none; one is newer than all.
    rows = [row(90, offset=3, item=7), row(40, offset=3, item=1, labels=1), row(60, offset=4), row(60, offset=9_000)]
    for step, later in enumerate(rows, 2):
        ahead.settle(step, columns([later]))
    ahead.acknowledge(1)
    behind.acknowledge(1)
    assert ahead.save().entries == behind.save().entries
    ahead.forget(55)
    behind.forget(55)
    assert ahead.save().entries == behind.save().entries
    assert ahead.save().entries.keys() == {"head"}


def test_a_save_since_another_has_the_pages_alone_that_changed() -> None:
    marks = Marks(1)
    marks.settle(1, columns([row(time, offset=time * 10_000) for time in range(50)]))
    marks.acknowledge(1)
    first = marks.save()
    assert marks.save(first.number).entries.keys() == {"head"}
    marks.settle(2, columns([row(7, labels=1, offset=70_000)]))
    assert marks.save(first.number).entries.keys() == {"head"}
    marks.acknowledge(2)
    second = marks.save(first.number)
    assert len(second.entries["0-0"]) < len(first.entries["0-0"]) / 20
    # A version that was never committed is covered by the next.
    assert marks.save(first.number).entries["0-0"] == second.entries["0-0"]


def test_a_refused_label_is_never_learned_again() -> None:
    marks = Marks(2)
    marks.settle(1, columns([row(0, settles=3)]))
    marks.refuse(1, columns([row(0, settles=1)]))
    assert plain(marks.settle(2, columns([row(0, settles=3, labels=3)]))) == [(0, 2, 0, 2)]
    assert marks.counters["refused"] == 1


def test_full_marks_refuse_and_mark_nothing() -> None:
    marks = Marks(4, MarksSettings(bytes_max=1 << 16, record_items_max=1_000))
    many = [row(number, offset=number * 1_024) for number in range(100)]
    with pytest.raises(MarksFull, match="of at most 65536 bytes"):
        marks.settle(1, columns(many))
    assert plain(marks.settle(1, columns(many[:2]))) == [(1, 0, 0, 0)] * 2
    assert marks.counters["refusals"] == 1
    with pytest.raises(ValueError, match="at most 1000 items"):
        marks.settle(1, columns([row(0, item=1_000)]))


def test_a_save_that_does_not_fit_is_refused_before_memory_is_taken_for_it() -> None:
    marks = Marks(4)
    marks.settle(1, columns([row(number, offset=number * 1_024) for number in range(100)]))
    marks.acknowledge(1)
    entries = marks.save().entries
    assert Marks(4).load(entries) == 1
    small = Marks(4, MarksSettings(bytes_max=1 << 16))
    with pytest.raises(MarksFull, match="of at most 65536 bytes"):
        small.load(entries)
    assert small.bytes <= 1 << 16


def test_a_later_save_may_take_the_room_of_pages_that_it_forgets() -> None:
    marks, room = Marks(4), Marks(4, MarksSettings(bytes_max=10 * 8_400))
    for step, begin in ((1, 0), (2, 8)):
        marks.settle(step, columns([row(begin + number, offset=(begin + number) * 1_024) for number in range(8)]))
        marks.acknowledge(step)
        marks.forget(begin)
        saved = marks.save(step - 1)
        room.load(saved.entries)
    assert room.pages == marks.pages == 8


def test_a_page_without_records_is_refused() -> None:
    marks = Marks(4)
    marks.settle(1, columns([row(0)]))
    marks.acknowledge(1)
    entries = dict(marks.save().entries)
    pages = b"".join(struct.pack("<5q", at, 0, 0, 0, 0) for at in range(1_000))
    body = b"SLMK" + struct.pack("<H3q", 1, 0, 0, 1_000) + pages
    entries["0-0"] = body + struct.pack("<I", native.crc32c(body))
    with pytest.raises(BadRecord, match="columns of page 0 contradict each other"):
        Marks(4).load(entries)


def test_rows_that_contradict_themselves_are_refused() -> None:
    marks = Marks(2)
    for bad, reason in (
        (row(0, settles=4), "labels 0b11"),
        (row(0, settles=1, labels=2), "0b10"),
        (row(0, offset=-1), "offset -1"),
        (row(0, item=-1), "item index -1"),
        (row(-(1 << 63)), "time -9223372036854775808"),
        (row(1 << 52), "time 4503599627370496"),
    ):
        with pytest.raises(ValueError, match=reason):
            marks.settle(1, columns([bad]))
    marks.settle(5, columns([row(0)]))
    with pytest.raises(ValueError, match="step 4 after step 5"):
        marks.settle(4, columns([row(0)]))


def test_damaged_saves_are_refused() -> None:
    marks = Marks(2)
    marks.settle(1, columns([row(time) for time in range(50)]))
    with pytest.raises(BadRecord, match="in flight"):
        marks.load(marks.save().entries)
    marks.acknowledge(1)
    entries = dict(marks.save().entries)
    with pytest.raises(BadRecord, match="labels"):
        Marks(3).load(entries)
    with pytest.raises(BadRecord, match="head"):
        Marks(2).load({"0-0": entries["0-0"]})
    for name, whole in entries.items():
        for place in range(len(whole)):
            broken = bytearray(whole)
            broken[place] ^= 4
            with pytest.raises(BadRecord):
                Marks(2).load({**entries, name: bytes(broken)})


def test_memory_is_as_stated() -> None:
    marks, records, items = Marks(3), 20_480, 10
    rows = [("one", 0, offset, item, offset, 7, 0) for offset in range(records) for item in range(items)]
    marks.settle(1, columns(rows))
    marks.acknowledge(1)
    # 8 bytes a record, and of 3 labels 8 bits an item; pages keep room to grow by a quarter.
    assert records * (8 + items) < marks.bytes < records * (8 + items * 1.25) + 200 * marks.pages

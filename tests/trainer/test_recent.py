"""Recent rows, held against loops over rows that are copied one by one."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.samples import SampleBatch
from streamlearn.trainer.intake.identity import identity_of, request_identity
from streamlearn.trainer.intake.recent import RecentSamples
from streamlearn.trainer.step import Piece
from streamlearn.versions import TimeSkip
from tests.campaign import examples
from tests.trainer.stream import STEP_MS, T_MS, learnable_app, messages_of

APP = learnable_app()
MESSAGES = [batch for _, batch in messages_of(APP, 8, 40)]
ALL = (1 << 64) - 1


@dataclass
class Loops:
    """What is to be held, row by row."""

    rows_max: int
    share_max: int = ALL
    clock_ms: int = 0
    held: deque[list[dict[str, Any]]] = field(default_factory=deque)
    corrected: set[tuple[int, int]] = field(default_factory=set)

    def add(self, pieces: Sequence[Piece], watermark_ms: int) -> None:
        self.clock_ms = max(self.clock_ms, watermark_ms)
        for piece in pieces:
            rows = list(zip(*(one.tolist() for one in (piece.rows, piece.learn, piece.correct)), strict=True))
            seen = [(row_of(piece.batch, row), learn, correct) for row, learn, correct in rows]
            mine = [one for one in seen if one[0]["share"] <= self.share_max]
            self.corrected |= {
                (label, row["identity"]) for row, _, correct in mine for label in (0, 1) if correct >> label & 1
            }
            if learned := [row | {"learn": learn} for row, learn, _ in mine if learn]:
                self.held.append(learned)
        while self.count > self.rows_max and self.share_max:
            if len(self.held) > 1 and max(row["settled"] for row in self.held[1]) + 120_000 <= self.clock_ms:
                gone = {row["identity"] for row in self.held.popleft()}
                self.corrected = {one for one in self.corrected if one[1] not in gone}
                continue
            self.share_max //= 2
            # What was settled last says when a message is closed, whether or not that row is still here.
            newest = [max(row["settled"] for row in rows) for rows in self.held]
            left = [[row for row in rows if row["share"] <= self.share_max] for rows in self.held]
            pairs = zip(left, newest, strict=True)
            self.held = deque([row | {"settled": at} for row in rows] for rows, at in pairs if rows)
            there = {row["identity"] for rows in self.held for row in rows}
            self.corrected = {one for one in self.corrected if one[1] in there}

    @property
    def count(self) -> int:
        return sum(map(len, self.held))

    def closed(self) -> list[tuple[Any, ...]]:
        found = []
        for row in (row for rows in self.held for row in rows):
            labels = []
            for label, window_ms in enumerate((60_000, 120_000)):
                is_closed = bool(row["learn"] >> label & 1) and row["shown"] + window_ms <= self.clock_ms
                is_positive = row["values"][label] != 0 or (label, row["identity"]) in self.corrected
                labels.append((int(is_closed), int(is_closed and is_positive)))
            if any(settles for settles, _ in labels):
                found.append((row["content"], *labels))
        return found


def row_of(batch: SampleBatch, row: int) -> dict[str, Any]:
    of = int(batch.request_index[row])
    return {
        "share": int(request_identity(batch)[of]),
        "identity": int(identity_of(batch, np.array([row]))[0]),
        "shown": int(batch.requests.event_time_ms[of]),
        "settled": int(batch.settle_time_ms[row]),
        "values": [int(one.value[row]) for one in batch.labels],
        "content": content(batch, row),
    }


def content(batch: SampleBatch, row: int) -> tuple[Any, ...]:
    of = int(batch.request_index[row])
    tags, history = batch.item.slots["tags"], batch.user.slots["history"]
    assert tags.offsets is not None
    assert history.offsets is not None
    return (
        int(batch.requests.partition[of]),
        int(batch.requests.offset[of]),
        int(batch.item_index[row]),
        int(batch.user.slots["user_id"].keys[of]),
        tuple(history.keys[history.offsets[of] : history.offsets[of + 1]].tolist()),
        int(batch.item.slots["video_id"].keys[row]),
        tuple(tags.keys[tags.offsets[row] : tags.offsets[row + 1]].tolist()),
        batch.user.dense["age"][of].tolist(),
        batch.item.dense["length"][row].tolist(),
        float(batch.labels[0].sample_rate[row]),
    )


def told(recent: RecentSamples) -> list[tuple[Any, ...]]:
    return [
        (content(batch, row), *((int(one.settles[row]), int(one.value[row])) for one in batch.labels))
        for batch in recent.closed()
        for row in range(len(batch))
    ]


def piece(number: int, every: int, begin: int, learn: int, correct: int) -> Piece:
    batch = MESSAGES[number]
    rows = np.arange(begin, len(batch), every)
    kind = np.uint32
    return Piece(batch, rows, (rows % 4 & learn).astype(kind), ((rows + 1) % 4 & correct).astype(kind))


_PIECE = st.builds(
    piece,
    number=st.integers(0, len(MESSAGES) - 1),
    every=st.sampled_from([1, 2, 3, 9]),
    begin=st.integers(0, 8),
    learn=st.integers(0, 3),
    correct=st.integers(0, 3),
)
_STEP = st.tuples(st.lists(_PIECE, max_size=3), st.integers(0, 250))


@settings(max_examples=examples(40))
@given(st.lists(_STEP, max_size=10), st.sampled_from([5, 20, 60, 1_000]))
def test_what_is_held_is_what_copies_of_single_rows_would_be(
    steps: list[tuple[list[Piece], int]], rows_max: int
) -> None:
    recent, loops = RecentSamples(APP, rows_max, batch_rows=64), Loops(rows_max)
    for pieces, watermark_s in steps:
        recent.add(pieces, T_MS + watermark_s * STEP_MS)
        loops.add(pieces, T_MS + watermark_s * STEP_MS)
        assert len(recent) == loops.count
        assert told(recent) == loops.closed()


def test_what_is_closed_goes_for_what_is_new_whatever_the_steps_are_of() -> None:
    """A step of many messages: as many of the oldest go, and the share of requests stays what it was."""
    recent, batch = RecentSamples(APP, 200), MESSAGES[0]
    whole = piece(0, 1, 0, 3, 0)
    longest_ms = 121 * STEP_MS
    for _ in range(10):
        recent.add([whole] * 4, int(batch.settle_time_ms.max()) + longest_ms)
        assert len(recent) <= 200
    assert len(recent) > 200 - 2 * len(whole)


def test_a_message_of_which_little_is_held_is_let_go() -> None:
    def held(rows: int) -> bool:
        """Whether a message is still there when only so many of its 40 rows are held."""
        recent, batch = RecentSamples(APP, 1_000), messages_of(APP, 1, 40)[0][1]
        there = weakref.ref(batch)
        which = np.arange(rows)
        recent.add([Piece(batch, which, np.ones(rows, np.uint32), np.zeros(rows, np.uint32))], T_MS)
        assert len(recent) == rows
        keys = weakref.ref(batch.item.slots["video_id"].keys)
        del batch
        assert (there() is None) == (keys() is None)
        return there() is not None

    assert [held(rows) for rows in (40, 10, 9, 1)] == [True, True, False, False]


def test_what_was_learned_after_a_restored_version_is_held_once_when_it_is_learned_again() -> None:
    recent, whole = RecentSamples(APP, 10_000), RecentSamples(APP, 10_000)
    for steps in (1, 2, 3, 2, 3):
        if steps == 2:
            recent.go_back(1)
        recent.add([piece(steps, 1, 0, 3, 3)], T_MS + 1_000 * STEP_MS, steps)
    for steps in (1, 2, 3):
        whole.add([piece(steps, 1, 0, 3, 3)], T_MS + 1_000 * STEP_MS, steps)
    assert len(recent) == len(whole)
    assert told(recent) == told(whole)


def test_what_is_skipped_from_now_on_is_not_judged_by_either() -> None:
    recent = RecentSamples(APP, 10_000)
    pieces = [piece(number, 1, 0, 3, 3) for number in range(len(MESSAGES))]
    recent.add(pieces, T_MS + 1_000 * STEP_MS)
    shown = np.concatenate([one.requests.event_time_ms for one in MESSAGES])
    skip = TimeSkip(begin_ms=int(np.quantile(shown, 0.3)), end_ms=int(np.quantile(shown, 0.7)))
    whole, rows = sum(len(batch) for batch in recent.closed()), len(recent)
    recent.leave_out([skip])
    left = recent.closed()
    assert 0 < sum(map(len, left)) < whole
    assert 0 < len(recent) < rows
    for batch in left:
        times = batch.requests.event_time_ms[batch.request_index]
        assert not ((times >= skip.begin_ms) & (times < skip.end_ms)).any()
    recent.leave_out([])
    assert [len(batch) for batch in recent.closed()] == [len(batch) for batch in left]

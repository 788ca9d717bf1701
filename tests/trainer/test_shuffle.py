"""A history in another order for each pass: the same rows, the same sizes of steps, corrections after their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from streamlearn.testing import small_app, small_batch
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.intake.shuffle import WINDOW_STEPS, shuffled
from streamlearn.trainer.intake.split import SplitRequest
from streamlearn.trainer.step import Piece, Step
from tests.trainer.stream import learnable_folder, messages_of
from tests.trainer.test_evaluation import Made, complete, folder_of

ROWS, SIZES = 40, [7, 0, 30, 3] * WINDOW_STEPS


def steps() -> Iterator[Step | None]:
    """Steps that cut messages of 40 rows, in which every fifth row is a correction; and once nothing to read.

    Every fourth step has no row, as where all rows of a while are left out.
    """
    message, begin = small_batch(small_app(), 5, ROWS, seed=1), 0
    for number, size in enumerate(SIZES, 1):
        pieces, left = [], size
        while left:
            rows = np.arange(begin, min(begin + left, ROWS), dtype=np.int64)
            correct = (rows % 5 == 0).astype(np.uint32)
            before = np.repeat(rows[:, None].astype(np.float32), 2, axis=1)
            pieces.append(Piece(message, rows, 1 - correct, correct, rows.astype(np.uint32), before))
            left, begin = left - len(rows), begin + len(rows)
            if begin == ROWS:
                message, begin = small_batch(small_app(), 5, ROWS, seed=1 + number), 0
        yield Step(number, tuple(pieces), Reached((number,), (number,)), size)
        if number == WINDOW_STEPS:
            yield None


def rows_of(step: Step) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for piece in step.pieces:
        assert piece.known is not None
        assert piece.before is not None
        columns = (piece.rows, piece.known, piece.before[:, 0], piece.correct, piece.learn)
        found += [(id(piece.batch), *one) for one in zip(*(column.tolist() for column in columns), strict=True)]
    return found


def test_each_row_comes_once_in_a_step_near_its_own_and_corrections_come_last() -> None:
    plain = list(steps())
    mixed = list(shuffled(iter(plain), np.random.default_rng(1)))
    assert [one is None for one in plain] == [one is None for one in mixed]
    before, after = ([one for one in some if one is not None] for some in (plain, mixed))
    assert [(one.number, len(one), one.reached) for one in before] == [
        (one.number, len(one), one.reached) for one in after
    ]
    moved = 0
    for begin in range(0, len(before), WINDOW_STEPS):
        windows = [[rows_of(one) for one in some[begin : begin + WINDOW_STEPS]] for some in (before, after)]
        was, now = ([row for step in window for row in step] for window in windows)
        assert Counter(was) == Counter(now)
        # Each row keeps its own columns.
        assert all(row[1] == row[2] == row[3] for row in now)
        steps_of = [{row: at for at, step in enumerate(window) for row in step} for window in windows]
        corrected, learned = ([steps_of[1][row] for row in now if row[column]] for column in (4, 5))
        assert max(learned) <= min(corrected)
        moved += sum(steps_of[0][row] != steps_of[1][row] for row in was)
        assert all(len({id(piece.batch) for piece in one.pieces}) == len(one.pieces) for one in after)
        # But for corrections, a request is in one step, or in two where a step was full.
        of_request: dict[tuple[int, int], set[int]] = {}
        for at, one in enumerate(after[begin : begin + WINDOW_STEPS]):
            for piece in one.pieces:
                for row in piece.batch.request_index[piece.rows[piece.learn != 0]].tolist():
                    of_request.setdefault((id(piece.batch), row), set()).add(at)
        split = [found for found in of_request.values() if len(found) > 1]
        assert len(split) <= WINDOW_STEPS
    assert moved > sum(SIZES) // 2


def test_passes_have_other_orders_each_and_the_same_ones_in_every_evaluation(tmp_path: Path) -> None:
    messages = complete(messages_of(learnable_folder(Path()).app, 24))

    def made(name: str, *, is_shuffled: bool) -> Made:
        return Made(folder_of(tmp_path / name, messages), SplitRequest(hold_out=0.0), passes=2, is_shuffled=is_shuffled)

    plain, one, other = made("plain", is_shuffled=False), made("one", is_shuffled=True), made("other", is_shuffled=True)
    assert one.dense == other.dense
    assert one.dense[0] != plain.dense[0]
    assert [each.tally.rows for each in one.passes] == [each.tally.rows for each in plain.passes]
    assert [each.tally.counts for each in one.passes] == [each.tally.counts for each in plain.passes]

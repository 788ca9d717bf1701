"""Golden requests: a node refuses a version that it scores differently from training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionRefused
from streamlearn.features.pack import PackPlan
from streamlearn.models.description import TensorNote
from streamlearn.samples import SampleBatch
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes.lane_kind import Scorer, Work
from streamlearn.serving.lanes.slab import Slab
from streamlearn.table import Packing
from streamlearn.table.derivation import with_derived
from streamlearn.table.pin import At
from streamlearn.table.source import RowSource

__all__ = ["check_golden", "score_samples"]

Float32s = npt.NDArray[np.float32]


def check_golden(
    scores: Float32s, logits: Float32s, difference_max: float, units: Sequence[float] | float = 1.0
) -> float:
    """Compare scores with the logits of training, both float32[rows, labels]; return the largest difference.

    Differences are in the unit of each label, and relative for logits or numbers above it. The unit of a logit is 1.

    Raises:
        VersionRefused: A difference is above `difference_max`, or a score is not a number.
    """
    assert scores.shape == logits.shape
    with np.errstate(invalid="ignore"):
        difference = np.abs(scores - logits) / np.maximum(np.asarray(units, np.float32), np.abs(logits))
    difference = np.where(np.isfinite(difference), difference, np.inf)
    largest = float(difference.max(initial=0))
    ExecutionMeters().golden.set(largest)
    if largest > difference_max:
        row, label = np.unravel_index(difference.argmax(), difference.shape)
        message = (
            f"golden sample {row} is scored {scores[row, label]:.7g} here for label {label}, "
            f"but {logits[row, label]:.7g} in training: "
            f"{(difference > difference_max).sum()} of {difference.size} scores differ by more "
            f"than {difference_max:g}"
        )
        hint = (
            "rows, dense weights or graphs of the version differ from training; or training computes in "
            "another number format than serving: then raise serving.golden_difference_max"
        )
        raise VersionRefused(message, help=hint)
    return largest


def score_samples(
    executables: Scorer,
    ladder: Ladder,
    dense: Any,
    batch: SampleBatch,
    *,
    pack: PackPlan,
    tables: RowSource,
    at: At,
) -> Float32s:
    """Score samples as requests are scored, with the executables of the ladder on the first device.

    `tables` has the rows of version `at`, and `dense` is its dense weights. Returns float32[rows, labels].
    """
    user, item = Packing(pack.user, tables), Packing(pack.item, tables)
    requests = len(batch.requests)
    of_users, of_items = with_derived(pack, batch.user, batch.item, batch.request_index)
    users = {
        "user_flat": user.flat(of_users, requests, at=at),
        "user_sequence": user.sequences(of_users, requests, at=at),
    }
    items = {
        "item_flat": item.flat(of_items, len(batch), at=at),
        "item_sequence": item.sequences(of_items, len(batch), at=at),
    }
    scores = [np.zeros((0, len(batch.labels)), np.float32)]
    for rows in _pieces(batch.request_index, ladder.users_max, ladder.candidates[-1]):
        requests_used, index = np.unique(batch.request_index[rows], return_inverse=True)
        blocks = {name: block[requests_used] for name, block in users.items()}
        blocks |= {name: block[rows] for name, block in items.items()}
        work = _work(executables, ladder, dense, {**blocks, "user_index": index.astype(np.int32)})
        scores.append(executables.score(executables.places[0], work)[: rows.stop - rows.start])
    return np.concatenate(scores)


def _pieces(request_index: npt.NDArray[Any], users_max: int, rows_max: int) -> Iterator[slice]:
    """Split the rows into runs that fit one execution."""
    begin, users = 0, set[int]()
    for at, user in enumerate(request_index.tolist()):
        if at - begin == rows_max or (len(users) == users_max and user not in users):
            yield slice(begin, at)
            begin, users = at, set()
        users.add(user)
    if begin < len(request_index):
        yield slice(begin, len(request_index))


def _work(executables: Scorer, ladder: Ladder, dense: Any, blocks: Mapping[str, npt.NDArray[Any]]) -> Work:
    described, index = executables.described, blocks["user_index"]
    user: list[npt.NDArray[Any]] = []
    if described.user is not None:
        user = _padded(described.user.inputs, blocks, ladder.users_bucket(int(index.max()) + 1))
    notes = [note for note in described.score.inputs if note.name.startswith("item_") or note.name == "user_index"]
    padded = _padded(notes, blocks, ladder.candidates_bucket(len(index)))
    return Work(dense, user, padded[0], padded[1:])


def _padded(notes: Sequence[TensorNote], blocks: Mapping[str, npt.NDArray[Any]], rows: int) -> list[npt.NDArray[Any]]:
    """Return the blocks of a graph in its order, padded with rows of zeros."""
    slab = Slab(*(((rows, *blocks[note.name].shape[1:]), note.dtype) for note in notes))
    for note, array in zip(notes, slab.arrays, strict=True):
        array[: len(blocks[note.name])] = blocks[note.name]
    return slab.arrays

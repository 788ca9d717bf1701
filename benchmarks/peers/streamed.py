"""The feed of a peer that learns from a topic: it decodes the messages, and remembers the rows that it has learned.

Every streaming trainer does both. Messages are those of our trainer, decoded by the same native code. The rows are
remembered in sorted arrays of NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.answer import Order, Wrong
from benchmarks.peers.training_trial import Padded, padded
from benchmarks.trainer_samples import ITEM_SLOTS, STEP_SAMPLES, USER_SLOTS, StepSamples
from benchmarks.trainer_topic import samples_folder, write_samples
from streamlearn.samples import SampleBatch, SampleCodec

__all__ = ["SeenRows", "fed_from", "streamed", "topic_of"]

_MESSAGES_A_READ, _READ_BYTES, _READ_MS = 8, 1 << 24, 100
# The number of steps after which new rows are moved to the large array.
_STEPS_A_MERGE = 8
_ITEMS_A_REQUEST_MAX = 1 << 12


class SeenRows:
    """A set of row identities: a large sorted array, and a small one of the last steps."""

    def __init__(self) -> None:
        self._old = self._new = np.zeros(0, np.int64)
        self._steps = 0

    def add(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Add rows, and return which of them are new."""
        is_new = ~(_isin(rows, self._old) | _isin(rows, self._new))
        self._new = np.sort(np.concatenate([self._new, rows[is_new]]), kind="stable")
        self._steps += 1
        if self._steps % _STEPS_A_MERGE == 0:
            self._old = np.sort(np.concatenate([self._old, self._new]), kind="stable")
            self._new = self._new[:0]
        return is_new


def _isin(rows: NDArray[np.int64], seen: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(seen):
        return np.zeros(len(rows), np.bool_)
    is_in: NDArray[np.bool_] = seen[np.minimum(np.searchsorted(seen, rows), len(seen) - 1)] == rows
    return is_in


def _ids(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the ids of keys that `every_bit` made."""
    return (keys >> np.uint64(1)).view(np.int64)


class _Rows(NamedTuple):
    """The columns of whole requests."""

    user_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    history_ids: NDArray[np.int64]
    item_ids: NDArray[np.int64]
    request: NDArray[np.int64]
    dense: NDArray[np.float32]
    label: NDArray[np.float32]
    identity: NDArray[np.int64]


@contextmanager
def topic_of(order: Order) -> Iterator[Path | None]:
    """Yield a folder for the topic of a peer that learns from one, and None for others."""
    if not order.peer.endswith("_stream"):
        yield None
        return
    with TemporaryDirectory(prefix="streamlearn-peer-") as place:
        yield Path(place)


def fed_from(
    steps: Sequence[StepSamples], keys_count: int, topic: Path | None
) -> Padded | Callable[[], Iterator[Padded]]:
    """Return what feeds a learner: arrays in memory, or the steps of a topic in a folder."""
    if topic is None:
        return padded(steps)
    return lambda: streamed(topic, keys_count, steps)


def streamed(place: Path, keys_count: int, steps: Sequence[StepSamples]) -> Iterator[Padded]:
    """Write the topic of our trainer's benchmark, and yield its steps.

    Raises:
        Wrong: A row came twice.
    """
    folder = samples_folder(place, keys_count)
    write_samples(folder, steps)
    codec, seen = SampleCodec(folder.app, folder.settings.samples), SeenRows()
    waiting: list[_Rows] = []
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        offsets = {0: reader.earliest(0)}
        while offsets[0] < reader.end(0):
            for records in reader.read_many(
                offsets, max_records=_MESSAGES_A_READ, max_bytes=_READ_BYTES, wait_ms=_READ_MS
            ):
                offsets[0] = records.next_offset
                waiting += [_rows(codec.decode(value)) for value in records.values if value is not None]
            while sum(len(rows.label) for rows in waiting) >= STEP_SAMPLES:
                rows, rest = _cut(waiting)
                waiting = [rest]
                if not seen.add(rows.identity).all():
                    message = "a row came twice"
                    raise Wrong(message)
                yield _padded(rows)


def _rows(batch: SampleBatch) -> _Rows:
    history = batch.user.slots["history"]
    assert history.offsets is not None
    return _Rows(
        _stacked(batch, "user", USER_SLOTS),
        np.diff(history.offsets).astype(np.int64),
        _ids(history.keys),
        _stacked(batch, "item", ITEM_SLOTS),
        batch.request_index.astype(np.int64),
        batch.item.dense["numbers"],
        batch.labels[0].value.astype(np.float32),
        batch.requests.offset[batch.request_index] * _ITEMS_A_REQUEST_MAX + batch.item_index,
    )


def _stacked(batch: SampleBatch, side: str, slots: int) -> NDArray[np.int64]:
    columns = getattr(batch, side).slots
    return _ids(np.stack([columns[f"{side}_{slot}"].keys for slot in range(slots)], axis=1))


def _cut(waiting: Sequence[_Rows]) -> tuple[_Rows, _Rows]:
    """Return the rows of a step, which ends with a request, and the rest."""
    firsts = np.cumsum([0, *(len(rows.user_ids) for rows in waiting)])
    numbered = [rows._replace(request=rows.request + first) for rows, first in zip(waiting, firsts, strict=False)]
    whole = _Rows(*(np.concatenate(columns) for columns in zip(*numbered, strict=True)))
    requests = int(whole.request[STEP_SAMPLES - 1]) + 1
    ids = int(whole.lengths[:requests].sum())
    ends = (requests, requests, ids, *(STEP_SAMPLES,) * 5)
    columns: tuple[NDArray[Any], ...] = whole
    step = _Rows(*(column[:end] for column, end in zip(columns, ends, strict=True)))
    rest = _Rows(*(column[end:] for column, end in zip(columns, ends, strict=True)))
    return step, rest._replace(request=rest.request - requests)


def _padded(rows: _Rows) -> Padded:
    requests = np.arange(len(rows.user_ids), dtype=np.int32)
    step = StepSamples(
        user_ids=rows.user_ids,
        history_ids=rows.history_ids,
        history_request=np.repeat(requests, rows.lengths),
        item_ids=rows.item_ids,
        request_index=rows.request.astype(np.int32),
        dense=rows.dense,
        label=rows.label,
        logit=np.zeros(0),
    )
    return Padded(*(column[0] for column in padded([step])))

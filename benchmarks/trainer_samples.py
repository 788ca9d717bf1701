"""Samples for trainers: requests of several items, with labels drawn by a hidden logistic model.

Peers use this file in their own environments, so it imports only numpy. Everything is a function of the seed. A
request that the end of a step cuts does not continue in the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import Keys, zipf

__all__ = [
    "DENSE_COLUMNS",
    "HISTORY_IDS_MAX",
    "ITEM_SLOTS",
    "SLOTS",
    "STEP_SAMPLES",
    "USER_SLOTS",
    "StepSamples",
    "Workload",
]

STEP_SAMPLES = 4_096
USER_SLOTS = 11  # with one id each; the history is the twelfth user slot
ITEM_SLOTS = 8
SLOTS = USER_SLOTS + 1 + ITEM_SLOTS
DENSE_COLUMNS = 8  # all on the item side
HISTORY_IDS_MAX = 9  # lengths are uniform from 1: 5 on average
_ITEMS_MAX = 15  # per request, uniform from 1: 8 on average

_SLOT_SCALE = 0.6  # for each of 20 slots: the logit's standard deviation is about 1.6
_DENSE_SCALE = 0.3
_BIAS = -1.0
# Odd, so that every bit of an id affects the upper bits of the product.
_MIXER = np.uint64(0xD6E8FEB86659FD93)
_CHANCE_SHIFT = np.uint64(40)  # leaves 24 bits


@dataclass(frozen=True)
class StepSamples:
    """The samples of a step as arrays: U requests, N items, V ids in the requests' histories.

    Attributes:
        user_ids: (U, USER_SLOTS) one id a slot; no two slots share an id.
        history_ids: (V,) ids of the slot with several, request by request.
        history_request: (V,) the request of each, not decreasing.
        item_ids: (N, ITEM_SLOTS).
        request_index: (N,) the request of each item, not decreasing.
        dense: (N, DENSE_COLUMNS).
        label: (N,) 0 or 1.
        logit: (N,) of the hidden model, which learners do not see.
    """

    user_ids: NDArray[np.int64]
    history_ids: NDArray[np.int64]
    history_request: NDArray[np.int32]
    item_ids: NDArray[np.int64]
    request_index: NDArray[np.int32]
    dense: NDArray[np.float32]
    label: NDArray[np.float32]
    logit: NDArray[np.float64]

    @property
    def requests(self) -> int:
        """Number of requests, U."""
        return len(self.user_ids)

    @property
    def floor_log_loss(self) -> float:
        """The log loss of the hidden model. A learner is lower only by chance."""
        signed = np.where(self.label > 0, self.logit, -self.logit)
        return float(np.log1p(np.exp(-signed)).mean())


@dataclass(frozen=True)
class Workload:
    """All samples of one seed.

    Attributes:
        keys_count: Number of ids in all slots together; a multiple of the number of slots.
        seed: Two seeds share neither ids nor requests.
    """

    keys_count: int
    seed: int

    def __post_init__(self) -> None:
        """Check the number of ids.

        Raises:
            ValueError: It is not a multiple of the number of slots.
        """
        if self.keys_count <= 0 or self.keys_count % SLOTS:
            message = f"{self.keys_count} ids cannot be divided evenly among {SLOTS} slots"
            raise ValueError(message)

    @cached_property
    def _keys(self) -> Keys:
        return Keys(self.seed)

    def ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the ids with these numbers. Numbers below `keys_count` cover all ids in samples."""
        return self._keys.between(begin, end)

    def steps(self, count: int) -> list[StepSamples]:
        """Return the first steps."""
        requests = list(self._requests(count))
        users = np.concatenate([[0], np.cumsum([len(items) for items in requests])])  # (count + 1,)
        rng = np.random.default_rng((self.seed, 11))
        lengths = rng.integers(1, HISTORY_IDS_MAX + 1, users[-1])
        histories = np.concatenate([[0], np.cumsum(lengths)])
        user_ids = np.stack([self._drawn(slot, int(users[-1])) for slot in range(USER_SLOTS)], axis=1)
        history_ids = self._drawn(USER_SLOTS, int(histories[-1]))
        item_slots = range(USER_SLOTS + 1, SLOTS)
        item_ids = np.stack([self._drawn(slot, count * STEP_SAMPLES) for slot in item_slots], axis=1)
        samples = []
        for step, items in enumerate(requests):
            first, last = users[step], users[step + 1]
            samples.append(
                self._step(
                    step,
                    items,
                    lengths[first:last],
                    (
                        user_ids[first:last],
                        history_ids[histories[first] : histories[last]],
                        item_ids[step * STEP_SAMPLES : (step + 1) * STEP_SAMPLES],
                    ),
                )
            )
        return samples

    def _requests(self, count: int) -> Iterator[NDArray[np.int64]]:
        """Yield the number of items of each request, by step; the step cuts its last request."""
        rng = np.random.default_rng((self.seed, 12))
        for _ in range(count):
            ends = np.cumsum(rng.integers(1, _ITEMS_MAX + 1, STEP_SAMPLES))
            within = int(np.searchsorted(ends, STEP_SAMPLES))
            yield np.diff(np.minimum(ends[: within + 1], STEP_SAMPLES), prepend=0)

    def _drawn(self, slot: int, size: int) -> NDArray[np.int64]:
        each = self.keys_count // SLOTS
        return self._keys.of(zipf(each, size, self.seed * SLOTS + slot) + slot * each)

    def _step(
        self,
        step: int,
        items: NDArray[np.int64],
        lengths: NDArray[np.int64],
        ids: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    ) -> StepSamples:
        user_ids, history_ids, item_ids = ids
        rng = np.random.default_rng((self.seed, 13, step))
        request_index = np.repeat(np.arange(len(items), dtype=np.int32), items)
        history_request = np.repeat(np.arange(len(items), dtype=np.int32), lengths)
        dense = rng.standard_normal((STEP_SAMPLES, DENSE_COLUMNS), np.float32)
        user = _taste(user_ids).sum(axis=1) + np.bincount(history_request, _taste(history_ids)) / lengths
        logit = _SLOT_SCALE * (_taste(item_ids).sum(axis=1) + user[request_index]) + _BIAS
        logit += _DENSE_SCALE * (dense * np.linspace(-1.0, 1.0, DENSE_COLUMNS)).sum(axis=1)
        label = (rng.random(STEP_SAMPLES) < 1.0 / (1.0 + np.exp(-logit))).astype(np.float32)
        return StepSamples(user_ids, history_ids, history_request, item_ids, request_index, dense, label, logit)


def _taste(ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the contribution of ids to the hidden logit, in [-1, 1)."""
    bits: NDArray[np.uint64] = (ids.view(np.uint64) * _MIXER) >> _CHANCE_SHIFT
    return bits.astype(np.float64) * 2.0**-23 - 1.0

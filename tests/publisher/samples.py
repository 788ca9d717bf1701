"""Samples whose labels are known, and a scorer that scores them from the rows of a version."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.ps import PsClient
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleHeader,
    SlotColumns,
)
from tests.publisher.training import KEYS

__all__ = ["RowScorer", "samples_of"]


def samples_of(rows: int, seed: int = 1, *, rate: float = 0.5) -> SampleBatch:
    """Samples of one key each; the first half of the keys is mostly positive. A share of the negatives is kept."""
    rng = np.random.default_rng(seed)
    at = rng.integers(0, len(KEYS), rows)
    positive = rng.random(rows) < np.where(at < len(KEYS) // 2, 0.9, 0.1)
    kept = positive | (rng.random(rows) < rate)
    at, positive, count = at[kept], positive[kept], int(kept.sum())
    label = LabelColumns(
        "click",
        value=positive.astype(np.uint8),
        settles=np.ones(count, np.uint8),
        sample_rate=np.full(count, rate, np.float32),
        weight=np.ones(count, np.float32),
        served_score=np.full(count, np.nan, np.float32),
    )
    nothing = np.zeros(count, np.int64)
    return SampleBatch(
        header=SampleHeader("features", "windows", "topic", 0, 1, 1, 0),
        requests=RequestColumns(np.zeros(count, np.int32), nothing, nothing, nothing, nothing),
        user=FeatureColumns({}, {}),
        request_index=np.arange(count, dtype=np.int32),
        item_index=np.zeros(count, np.int32),
        settle_time_ms=nothing,
        item=FeatureColumns({"key": SlotColumns(KEYS[at])}, {}),
        labels=(label,),
        segments=(),
    )


class RowScorer:
    """The logit of a sample is the sum of the row of its key, as of a version.

    Args:
        client: Where the rows are.
    """

    def __init__(self, client: PsClient) -> None:
        self.client = client
        self.asked: list[int] = []

    def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
        """See `Scorer`."""
        self.asked.append(version)
        rows = self.client.pull("main", batch.item.slots["key"].keys, at=version)
        scores: npt.NDArray[np.float32] = rows.sum(axis=1, dtype=np.float32)[:, None]
        return scores

    def learn(self, batch: SampleBatch, *, rate: float = 1.0, is_flipped: bool = False) -> None:
        """Push the gradients of the log loss on samples, each as often as it weighs."""
        label: Any = batch.labels[0]
        keys = batch.item.slots["key"].keys
        logits = self.client.pull("main", keys).sum(axis=1)
        truth = 1 - label.value if is_flipped else label.value
        weight = np.where(label.value > 0, 1.0, 1 / label.sample_rate)
        slope = (1 / (1 + np.exp(-logits)) - truth) * weight * rate
        self.client.push("main", keys, np.repeat(slope[:, None], 4, axis=1).astype(np.float32), now_ms=1_000)

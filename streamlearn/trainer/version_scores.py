"""VersionScorer: scores samples with a version, while the shards still keep its rows and training continues."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from streamlearn.errors import VersionDefect, VersionRefused
from streamlearn.features.retrieval import of_ranking
from streamlearn.samples import SampleBatch
from streamlearn.table.pin import At
from streamlearn.trainer.columns import columns_in
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.versions import Chain, Store, load_tensors

__all__ = ["SCORED_ROWS", "VersionScorer", "score_rows"]

SCORED_ROWS = 4_096
"""How many samples are scored at once, whatever the size of training steps."""

Float32s = npt.NDArray[np.float32]
_WEIGHTS_MAX = 4


class VersionScorer:
    """Scores samples with versions; see `versions.Scorer`. `rows` packs `SCORED_ROWS` at once."""

    def __init__(self, model: str, store: Store, learner: Learner, rows: Rows) -> None:
        self._model, self._store, self._learner, self._rows = model, store, learner, rows
        self._weights_of = lru_cache(_WEIGHTS_MAX)(self._read_weights)

    def score(self, version: int, batch: SampleBatch) -> Float32s:
        """Return the logits of a version; see `versions.Scorer`."""
        weights = self._weights_of(version)
        return score_rows(self._learner, self._rows, batch, SCORED_ROWS, at=version, weights=weights)

    def _read_weights(self, version: int) -> Float32s:
        try:
            chain = Chain.find(self._store, self._model, version)
            dense = load_tensors(self._store, chain.head, "dense")
        except VersionDefect as error:
            message = f"dense weights of version {version} cannot be read: {error.message}"
            raise VersionRefused(message, help=error.help) from error
        return self._learner.end_to_end(of_ranking(dense))


def score_rows(
    learner: Learner,
    rows: Rows,
    batch: SampleBatch,
    step_rows: int,
    *,
    at: At = "newest",
    weights: Float32s | None = None,
) -> Float32s:
    """Return the logits of samples, float32[rows, labels].

    `step_rows` samples are packed at once, with the rows of version `at`; `weights` defaults to the current ones.
    """
    logits = [np.zeros((0, len(batch.labels)), np.float32)]
    for begin in range(0, len(batch), step_rows):
        index = np.arange(begin, min(begin + step_rows, len(batch)))
        logits.append(learner.score(rows.pack(columns_in(batch, index), at=at), weights))
    return np.concatenate(logits)

"""TowerSteps: learns the steps of the ranking model as before, and each step's positives by the towers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.features.retrieval import of_ranking
from streamlearn.library.library import Library
from streamlearn.ps import PsClient
from streamlearn.samples import FeatureColumns
from streamlearn.telemetry import counter
from streamlearn.trainer.columns import StepColumns
from streamlearn.trainer.learner import Learned, Learner
from streamlearn.trainer.learning_loop import OwnSteps, StepLearner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.towers.positives import Positives
from streamlearn.trainer.towers.tower_learner import PackedTowers
from streamlearn.trainer.towers.tower_rows import TowerRows
from streamlearn.trainer.towers.tower_state import TowerState

__all__ = ["TowerMaker", "TowerSteps", "own_steps"]

_LOG = logging.getLogger("streamlearn.trainer.towers")
Float32s = npt.NDArray[np.float32]
# Histories of more users would take too much memory at once.
_USERS_AT_ONCE = 512
Tensors = Mapping[str, npt.NDArray[Any]]
Lead = Callable[[Learner, Rows], StepLearner]


@dataclass(eq=False)
class _Packed:
    """A step of both models, from stage to stage."""

    ranking: Any  # as the ranking model packs it
    towers: PackedTowers | None  # None if the step has no positive
    gradients: tuple[Float32s, ...] | None = None  # what the towers learned, to be pushed


class TowerSteps:
    """A `StepLearner` that learns the step of the ranking model first, and then that of the towers in this process.

    Ranking never depends on the towers, and workers may learn it. What the towers know changes in `learn` only, and
    rows in `push`, so that a cut between two steps has both models after the same step. `before` sees each step of the
    towers before it is learned.
    """

    def __init__(self, ranking: StepLearner, state: TowerState, rows: TowerRows) -> None:
        self.ranking, self.state, self.rows = ranking, state, rows
        self.before: Callable[[PackedTowers], None] | None = None
        self._outcomes = counter("trainer", "tower_steps", "Steps of the towers by outcome", labels=["outcome"])

    @property
    def steps(self) -> int:
        """See `StepLearner`."""
        return self.ranking.steps

    @property
    def rate_scale(self) -> float:
        """See `StepLearner`."""
        return self.ranking.rate_scale

    @property
    def weights(self) -> TowerSteps:
        """See `StepLearner`."""
        return self

    def session(self, stop: threading.Event) -> AbstractContextManager[None]:
        """See `StepLearner`."""
        return self.ranking.session(stop)

    def pack(self, columns: StepColumns, now_ms: int) -> _Packed:
        """Pull the rows of a step, for both models."""
        return _Packed(self.ranking.pack(columns, now_ms), self.rows.pack(columns))

    def learn(self, packed: _Packed) -> Learned:
        """Learn a step; one that the ranking model refuses is not learned by the towers either."""
        rate_scale = self.rate_scale
        learned = self.ranking.learn(packed.ranking)
        if learned.is_finite:
            packed.gradients = None if packed.towers is None else self._learn(packed.towers, rate_scale)
        return learned

    def push(self, columns: StepColumns, packed: _Packed, learned: Learned, now_ms: int, rate_scale: float) -> int:
        """Push the gradients of a step's rows, for both models."""
        pushed = self.ranking.push(columns, packed.ranking, learned, now_ms, rate_scale)
        if packed.towers is not None and packed.gradients is not None:
            pushed += self.rows.push(packed.towers, packed.gradients, now_ms, rate_scale)
        return pushed

    def reset(self) -> None:
        """See `Weights`."""
        self.ranking.weights.reset()
        self.state.reset()

    def dense(self) -> dict[str, Float32s]:
        """See `Weights`."""
        return self.ranking.weights.dense() | self.state.dense()

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """See `Weights`."""
        return self.ranking.weights.optimizer_state() | self.state.optimizer_state()

    def load(self, dense: Tensors, state: Tensors) -> None:
        """See `Weights`."""
        self.ranking.weights.load(of_ranking(dense), of_ranking(state))
        self.state.load(dense, state)

    def _learn(self, packed: PackedTowers, rate_scale: float) -> tuple[Float32s, ...] | None:
        """Learn a step of the towers, and return the gradients of rows; None if they are not finite."""
        if self.before is not None:
            self.before(packed)
        learner, frequency = self.state.learner, self.state.frequency
        step = learner.steps + 1
        gradients = learner.learn(packed, frequency.chances(packed.keys, step, come=packed.own), rate_scale)
        self._outcomes.labels("refused" if gradients is None else "learned").inc()
        if gradients is None:
            _LOG.error("step %d of the towers gave numbers that are not finite, and is skipped", step)
        else:
            frequency.see(packed.keys[: packed.own], step)
        return gradients


class TowerMaker:
    """The towers of an application that retrieves, and what makes its `StepLearner` with them. It is a `Tower`.

    The rows of a step are learned by `client`, and compete with items of the library. `lead` makes what learns the
    ranking model.
    """

    def __init__(self, folder: AppFolder, client: PsClient, library: Library, lead: Lead = OwnSteps) -> None:
        self._state, self._lead = TowerState(folder), lead
        self.rows = TowerRows(folder, client, library, is_padded=self._state.learner.is_compiled)

    def __call__(self, learner: Learner, ranking: Rows) -> TowerSteps:
        """Return what learns steps by both models."""
        return TowerSteps(self._lead(learner, ranking), self._state, self.rows)

    @property
    def has_weights(self) -> bool:
        """See `Tower`."""
        return self._state.learner.item_has_weights

    @property
    def weights(self) -> Float32s:
        """See `Tower`."""
        return self._state.learner.weights

    def vectors(self, items: FeatureColumns, count: int, weights: Float32s, version: int) -> Float32s:
        """See `Tower`."""
        return self._state.learner.items(self.rows.pack_items(items, count, at=version), weights)

    def users(self, positives: Positives, dense: Mapping[str, Float32s], version: int) -> Float32s:
        """Return the vectors of users, float32[requests, dim], by the weights and rows of a version."""
        learner = self._state.learner
        weights, vectors = learner.end_to_end(dense), [np.zeros((0, learner.dim), np.float32)]
        for begin in range(0, positives.requests, _USERS_AT_ONCE):
            part = slice(begin, min(begin + _USERS_AT_ONCE, positives.requests))
            packed = self.rows.pack_users(positives.users.take(part), part.stop - part.start, at=version)
            vectors.append(learner.users(*packed, weights))
        return np.concatenate(vectors)


def own_steps(folder: AppFolder, client: PsClient, library: Library | None) -> Lead:
    """Return what makes the `StepLearner` of this process, with towers if the application has a library."""
    return OwnSteps if library is None else TowerMaker(folder, client, library)

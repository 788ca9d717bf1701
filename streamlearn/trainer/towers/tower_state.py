"""TowerState: all that the towers of an application learn and hold beside rows, as a version holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.errors import SpecError, UsageError
from streamlearn.features.retrieval import PREFIX, of_retrieval
from streamlearn.models.chosen import checked_model, own_model
from streamlearn.trainer.towers.frequency import Frequency
from streamlearn.trainer.towers.protocol import Towers
from streamlearn.trainer.towers.tower_learner import TowerLearner
from streamlearn.trainer.towers.two_tower import TwoTower

__all__ = ["TowerState", "towers_of"]

_CALLS = {"build": ("features", "seed"), "user": ("weights", "inputs"), "item": ("weights", "inputs")}
_READY_MADE = {"two_tower": TwoTower}
Tensors = Mapping[str, npt.NDArray[Any]]


class TowerState:
    """The weights and the optimizer of both towers, and how often items come.

    It is `Weights`; in a version its names have a prefix, beside those of the ranking model.
    """

    def __init__(self, folder: AppFolder) -> None:
        app, settings = folder.app, folder.settings
        assert app.towers is not None
        self.learner = TowerLearner(app.towers, towers_of(folder), settings.trainer, settings.retrieval.rate)
        self.frequency = Frequency()
        self._fingerprint = np.array([int(app.retrieval_fingerprint, 16)], np.uint64)

    def reset(self) -> None:
        """Forget all that was learned."""
        self.learner.reset()
        self.frequency.load({})

    def dense(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return a copy of the weights by name."""
        return _prefixed(self.learner.dense())

    def optimizer_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return a copy of all else."""
        state = self.learner.optimizer_state() | self.frequency.tensors()
        return _prefixed(state | {"fingerprint": self._fingerprint})

    def load(self, dense: Tensors, state: Tensors) -> None:
        """Continue from what a version holds; that of another retrieval raises a UsageError."""
        of_towers = of_retrieval(state)
        if not np.array_equal(of_towers.get("fingerprint", np.zeros(0)), self._fingerprint):
            message = "the newest version was learned with another retrieval than the application declares"
            help = "set it back, or give the application a new name: `streamlearn migrate NEW --from APP` begins it"
            raise UsageError(message, help=help)
        self.learner.load(of_retrieval(dense), of_towers)
        self.frequency.load(of_towers)


def towers_of(folder: AppFolder) -> Towers:
    """Create the towers of an application, not yet built."""
    assert folder.app.retrieval is not None
    chosen = folder.app.retrieval.model
    if ":" in chosen:
        towers: Towers = checked_model(chosen, own_model(folder, chosen), _CALLS)
        return towers
    if chosen not in _READY_MADE:
        message = f"unknown ready-made towers {chosen!r}"
        hint = "name your own as MODULE:CLASS, in a module beside app.py"
        raise SpecError(message, help=f"the ready-made towers are {', '.join(_READY_MADE)}; {hint}")
    return _READY_MADE[chosen]()


def _prefixed(tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
    return {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}

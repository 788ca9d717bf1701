"""DenseUpdate: dense weights and their optimizer on the host, updated by NumPy, so with the same bits on any machine.

TensorFlow updates a vector of this length in several threads, which takes three times the processor time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.settings.trainer import TrainerSettings

__all__ = ["DenseUpdate"]

Float32s = npt.NDArray[np.float32]


class DenseUpdate:
    """The state of dense weights: all weights as one vector, and the optimizer's slots.

    `betas` and `epsilons` are Adam's decays, and what Adam and Adagrad add to a root.

    Attributes:
        whole: The weights; a new array after each step, as TensorFlow may still read the one before.
        slots: Vectors of their length; changed in place.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        state: Sequence[Float32s],
        *,
        betas: tuple[float, float],
        epsilons: tuple[float, float],
    ) -> None:
        self._settings, self._betas, self._epsilons = settings, betas, epsilons
        self.whole, *self.slots = (np.array(vector, np.float32) for vector in state)

    def learn(self, gradient: Float32s, share: float, rate: float) -> None:
        """Learn from the summed gradient of a step; `share` is that of one of its rows."""
        settings, whole = self._settings, self.whole
        gradient = gradient * np.float32(share)
        if settings.l2:
            gradient += np.float32(settings.l2) * whole
        if settings.clip_norm:
            # In double precision, so that the order of the sum does not show.
            norm = float(np.sqrt(np.sum(np.square(gradient, dtype=np.float64))))
            gradient *= np.float32(min(1.0, settings.clip_norm / max(norm, 1e-30)))
        if settings.optimizer == "adam":
            step = self._adam(gradient)
        elif settings.optimizer == "adagrad":
            step = self._adagrad(gradient)
        else:
            step = gradient
        step *= np.float32(rate)
        self.whole = np.subtract(whole, step, out=step)

    def _adam(self, gradient: Float32s) -> Float32s:
        first, second = self.slots
        beta1, beta2 = (np.float32(1.0 - beta) for beta in self._betas)
        change = gradient - first
        change *= beta1
        first += change
        np.multiply(gradient, gradient, out=gradient)
        gradient -= second
        gradient *= beta2
        second += gradient
        np.sqrt(second, out=gradient)
        gradient += np.float32(self._epsilons[0])
        np.divide(first, gradient, out=gradient)
        return gradient

    def _adagrad(self, gradient: Float32s) -> Float32s:
        (sums,) = self.slots
        square = gradient * gradient
        sums += square
        np.sqrt(sums, out=square)
        square += np.float32(self._epsilons[1])
        np.divide(gradient, square, out=square)
        return square

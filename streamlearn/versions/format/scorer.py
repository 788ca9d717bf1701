"""Scorer: the interface of an object that scores samples with a version. It knows no model and no table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from streamlearn.samples import SampleBatch

__all__ = ["Scorer"]


class Scorer(Protocol):
    """Scores samples as a version would, although the version is not served.

    Guaranteed to a scorer: calls come from one thread at a time, never the training thread. Required: the same version
    and samples give the same scores, whatever is learned meanwhile. The classic mistake is to read the newest rows
    instead of the version's.
    """

    def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
        """Return the logits of a sealed or committed version; their sigmoid is the probability that serving returns.

        Returns:
            float32[N, labels] for N samples, labels in the order of the application.

        Raises:
            VersionRefused: The version's rows or weights are no longer available.
        """
        ...

"""Scorer: whoever can say how a version scores samples. It knows no model and no table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from streamlearn.samples import SampleBatch

__all__ = ["Scorer"]


class Scorer(Protocol):
    """Scores samples as a version would, without that version being served.

    Guaranteed to a scorer: it is asked from one thread at a time, never the one that trains. Asked of it: the same
    version and samples give the same scores, whatever is learned meanwhile. The classic mistake is to read the newest
    rows instead of the version's.
    """

    def score(self, version: int, batch: SampleBatch) -> npt.NDArray[np.float32]:
        """The logits of a version, whose sigmoid is the chance of each label as serving answers it.

        Args:
            version: A version whose rows and dense weights are still there, sealed or committed.
            batch: Samples of N rows.

        Returns:
            float32[N, labels], labels as the application declares them.

        Raises:
            VersionRefused: The version's rows or weights are not there any more.
        """
        ...

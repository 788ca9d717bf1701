"""LaneKind: the interface of a node's lanes, which are threads or processes, and the work that they score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.models.description import Description
from streamlearn.serving.graphs.ladder import Ladder

if TYPE_CHECKING:
    from streamlearn.serving.graphs.tensors import Given

__all__ = ["LaneKind", "LanePlace", "Made", "Scorer", "Work"]


class Work(NamedTuple):
    """A TensorBatch as graphs take it: each block is a DLPack capsule or an array, padded to its bucket.

    For lane processes, a block is a `TensorSpan` of shared memory or an array.

    Attributes:
        dense: The dense weights of its version: `Dense`, or `LaneWeights` for lane processes.
        user: The user side's blocks, (users, ...) float32 in the order of `graphs.json`; empty without a user graph.
        user_index: int32[candidates]. The row in `user` of each candidate's user; 0 for padding.
        item: The item side's blocks, (candidates, ...) float32.
        note: Opaque handle for the source.
    """

    dense: Any
    user: Sequence[Given]
    user_index: Given
    item: Sequence[Given]
    note: Any = None


class LanePlace(Protocol):
    """The place of a lane: a device of this process, or a process."""

    @property
    def name(self) -> str:
        """The name in logs."""

    def entered(self) -> AbstractContextManager[object]:
        """Return the context in which the lane's thread works; entering it may wait until the place is there.

        Raises:
            StreamlearnError: The place is not available now.
        """


class Scorer(Protocol):
    """The graphs of one graph id on all lanes, such as `Executables`."""

    @property
    def described(self) -> Description:
        """The description of the graphs."""

    @property
    def places(self) -> Sequence[Any]:
        """The places where the graphs run."""

    def score(self, place: Any, work: Work) -> npt.NDArray[np.float32]:
        """See `Executables.score`."""


class Made(NamedTuple):
    """Graphs whose ladder is compiled on every lane, and the ladder."""

    scorer: Scorer
    ladder: Ladder


class LaneKind(Protocol):
    """Makes graphs, keeps weights and scores work."""

    @property
    def places(self) -> Sequence[LanePlace]:
        """The place of each lane."""

    def graph(self, name: str, folder: Path) -> Made:
        """Return the graphs with this id, ready on all lanes; those that are ready go on answering meanwhile.

        `folder` holds the exported graphs.

        Raises:
            StreamlearnError: They cannot be made, or not now.
        """

    def weights(self, scorer: Any, named: Mapping[str, npt.NDArray[Any]]) -> Any:
        """Load the dense weights of a version on all lanes and return them for `Work.dense`.

        Lanes keep them as long as anyone holds a reference to the result.

        Raises:
            StreamlearnError: They do not fit the graphs, or cannot be loaded now.
        """

    def check(self, lane: int) -> None:
        """Check a lane before it takes work, and from time to time while it waits.

        Raises:
            LaneLost: The lane has nothing to score with and must restart.
        """

    def end(self) -> None:
        """Begin to end: from now on no lane restarts or waits."""

    def close(self) -> None:
        """Free everything, after the lanes have ended or the wait for them is over."""

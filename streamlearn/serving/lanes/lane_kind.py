"""The kind of lanes that a node has, threads or processes, as whoever answers with them sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from streamlearn.models.description import Description
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes.work import Work

__all__ = ["LaneKind", "LanePlace", "Made", "Scorer"]


class LanePlace(Protocol):
    """Where a lane runs: a device of this process, or a process."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def entered(self) -> AbstractContextManager[object]:
        """What the lane's thread is in while it works; it may wait until there is such a place.

        Raises:
            StreamlearnError: There is none, now.
        """
        ...


class Scorer(Protocol):
    """The graphs of one graph id on all lanes, such as `Executables`."""

    @property
    def described(self) -> Description:
        """What is known of the graphs."""
        ...

    @property
    def places(self) -> Sequence[Any]:
        """Where they run."""
        ...

    def score(self, place: Any, work: Work) -> npt.NDArray[np.float32]:
        """See `Executables.score`."""
        ...


class Made(NamedTuple):
    """Graphs whose ladder is compiled on every lane that is there.

    Attributes:
        scorer: The graphs.
        ladder: Their shapes.
    """

    scorer: Scorer
    ladder: Ladder


class LaneKind(Protocol):
    """Where graphs are made, weights are kept, and work is scored."""

    @property
    def places(self) -> Sequence[LanePlace]:
        """That of each lane."""
        ...

    def graph(self, name: str, folder: Path) -> Made:
        """Graphs by their id, ready on all lanes; those that are there already answer meanwhile.

        Args:
            name: The id.
            folder: Where they were exported to.

        Raises:
            StreamlearnError: They cannot be made, or not now.
        """
        ...

    def weights(self, scorer: Any, named: Mapping[str, npt.NDArray[Any]]) -> Any:
        """The dense weights of a version on all lanes, as `Work.dense` has them; they are there while anybody has this.

        Args:
            scorer: The graphs they are for.
            named: The weights by name.

        Raises:
            StreamlearnError: They are not those of the graphs, or cannot be loaded now.
        """
        ...

    def check(self, lane: int) -> None:
        """Called before a lane takes work, and now and then while there is none.

        Raises:
            LaneLost: There is nothing that could score it: the lane is to begin anew.
        """
        ...

    def end(self) -> None:
        """Begin to end: no lane begins anew from now on, and nobody waits for one."""
        ...

    def close(self) -> None:
        """Let go of all, when lanes have ended or will not."""
        ...

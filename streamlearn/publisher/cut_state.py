"""CutState: the trainer's state at a step boundary, without the rows, which its shards have; and where runs resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy.typing as npt
from msgspec import structs

from streamlearn.library.items import LibraryCut
from streamlearn.versions import Chain, Cut, Request, VersionRef

__all__ = ["CutState", "Predictions", "Resumed"]


class Predictions(Protocol):
    """First predictions that no committed version holds, as of a step boundary."""

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return them as a version holds them; called by the thread that writes the version."""
        ...

    def committed(self) -> None:
        """Note that a committed version holds them."""
        ...


@dataclass(frozen=True, eq=False)
class CutState:
    """The trainer's state at a step boundary. It is written later, while training continues: arrays must be copies.

    Attributes:
        cut: Positions, watermark, skips, graph and metrics. The metrics `requests_obeyed` and `deletions_obeyed` are
            the numbers of the last request and deletion that were obeyed; if the trainer omits one, the version
            repeats its parent's.
        learned_rows: Rows learned from since `Publisher.start` or the last `Publisher.resume`; it only grows.
        dense: The dense weights, by name.
        dense_optimizer: The state of their optimizer, by name.
        marks: The marks on what was learned, by name.
        golden: Golden requests and their scores, by name.
        predictions: First predictions that no committed version holds; None without any.
        library: Items that changed since the newest committed version; None without a library.
    """

    cut: Cut = field(default_factory=Cut)
    learned_rows: int = 0
    dense: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    dense_optimizer: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    marks: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    golden: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    predictions: Predictions | None = None
    library: LibraryCut | None = None

    def obeying(self, obeyed: Mapping[str, float]) -> CutState:
        """The same state with metrics such as `requests_obeyed` raised to at least these numbers."""
        metrics = dict(self.cut.metrics)
        metrics |= {name: number for name, number in obeyed.items() if number > metrics.get(name, 0.0)}
        return replace(self, cut=structs.replace(self.cut, metrics=metrics))


@dataclass(frozen=True)
class Resumed:
    """Where training resumes.

    All shards are restored in an epoch of `run`, to the newest version's `chain`, None before the first. `requests` are
    those of operators that training has not obeyed yet, in order.
    """

    run: int
    chain: Chain | None
    requests: tuple[Request, ...]

    @property
    def ref(self) -> VersionRef | None:
        """The version to restore all shards to; None for empty tables."""
        return None if self.chain is None else self.chain.ref

"""CutState: the trainer's state at a step boundary, without the rows, which its shards have; and where runs resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy.typing as npt
from msgspec import structs

from streamlearn.versions import Chain, Cut, Request, VersionRef
from streamlearn.versions.pointer.request import OBEYED

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
        cut: Positions, watermark, skips, graph and metrics. The metric `requests_obeyed` is the number of the last
            request that was obeyed; if the trainer omits it, the version repeats its parent's.
        learned_rows: Rows learned from since `Publisher.start` or the last `Publisher.resume`; it only grows.
        dense: The dense weights, by name.
        dense_optimizer: The state of their optimizer, by name.
        marks: The marks on what was learned, by name.
        golden: Golden requests and their scores, by name.
        predictions: First predictions that no committed version holds; None without any.
    """

    cut: Cut = field(default_factory=Cut)
    learned_rows: int = 0
    dense: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    dense_optimizer: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    marks: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    golden: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    predictions: Predictions | None = None

    def obeying(self, obeyed: float) -> CutState:
        """The same state with `requests_obeyed` raised to at least this number."""
        metrics = dict(self.cut.metrics)
        if metrics.get(OBEYED, 0.0) >= obeyed:
            return self
        return replace(self, cut=structs.replace(self.cut, metrics=metrics | {OBEYED: obeyed}))


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

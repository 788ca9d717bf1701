"""Noted: what a trainer gives at a step boundary, beside the rows, which its shards have; and what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
from msgspec import structs

from streamlearn.versions import Chain, Cut, Request, VersionRef
from streamlearn.versions.pointer.request import OBEYED

__all__ = ["Noted", "Resumed"]


@dataclass(frozen=True, eq=False)
class Noted:
    """A step boundary, as the trainer noted it.

    What is given here is written later, while training goes on: arrays must be copies.

    Attributes:
        cut: Positions, watermark, skips, graph and metrics. The metric `requests_obeyed` says up to which request were
            obeyed; a version says what its parent said where the trainer says nothing.
        learned_rows: Rows learned from since `Publisher.start` or the last `Publisher.resume`; it only grows.
        dense: The dense weights, by name.
        dense_optimizer: The state of their optimizer, by name.
        marks: What has been learned, by name.
        golden: Golden requests and their scores, by name.
    """

    cut: Cut = field(default_factory=Cut)
    learned_rows: int = 0
    dense: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    dense_optimizer: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    marks: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    golden: Mapping[str, bytes | memoryview] = field(default_factory=dict)

    def obeying(self, obeyed: float) -> Noted:
        """The same, saying of no fewer requests that they were obeyed."""
        metrics = dict(self.cut.metrics)
        if metrics.get(OBEYED, 0.0) >= obeyed:
            return self
        return replace(self, cut=structs.replace(self.cut, metrics=metrics | {OBEYED: obeyed}))


@dataclass(frozen=True)
class Resumed:
    """Where training goes on.

    Attributes:
        run: The number of this run, for the epoch all shards are restored in.
        chain: The newest committed version; None before the first.
        requests: What operators have asked of training and it has not obeyed yet, in order.
    """

    run: int
    chain: Chain | None
    requests: tuple[Request, ...]

    @property
    def ref(self) -> VersionRef | None:
        """The version all shards are restored to; None for empty tables."""
        return None if self.chain is None else self.chain.ref

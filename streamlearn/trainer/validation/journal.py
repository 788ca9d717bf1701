"""Journal: the rows and corrections of one label that no committed version holds yet. It knows no score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.trainer.validation.rows import correction_type
from streamlearn.trainer.validation.runs import Run, Runs

__all__ = ["Journal", "Lot"]

Lot: TypeAlias = tuple[Runs, Runs]
"""Rows, and corrections; see `correction_type`."""


class Journal:
    """Keeps lots of rows: what came before each cut whose version is not committed, and what came after the last."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._kind = kind
        self._lots: list[Lot] = [self._empty()]

    def __len__(self) -> int:
        return sum(len(runs) for lot in self._lots for runs in lot)

    def add(self, run: Run) -> None:
        """Add rows or corrections."""
        self._lots[-1][run.rows.dtype != self._kind].append(run)

    def keep(self, is_kept: Callable[[Run], npt.NDArray[np.bool_]]) -> None:
        """Keep only the rows that `is_kept` selects."""
        for lot in self._lots:
            for runs in lot:
                runs.keep(is_kept)

    def cut(self) -> list[Lot]:
        """Return all lots with rows; what comes from now on goes into another."""
        lots = [lot for lot in self._lots if any(map(len, lot))]
        self._lots = [*lots, self._empty()]
        return lots

    def drop(self, lots: Sequence[Lot]) -> None:
        """Forget lots that a committed version holds."""
        gone = {id(lot) for lot in lots}
        self._lots = [lot for lot in self._lots if id(lot) not in gone] or [self._empty()]

    def _empty(self) -> Lot:
        return Runs(self._kind), Runs(correction_type(self._kind))

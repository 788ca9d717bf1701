"""Computed features as they are served: interactions folded into states in a store, and states read as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names

if TYPE_CHECKING:
    from streamlearn.online.fold import Fold
    from streamlearn.online.fold_loop import FoldLoop, rebuild_states
    from streamlearn.online.reader import ComputedFeatures, FeatureReader, FilledRequest
    from streamlearn.online.served_check import check_served
    from streamlearn.online.state_store import Standing, StateGroup, StateStore, open_state_store

__all__ = [
    "ComputedFeatures",
    "FeatureReader",
    "FilledRequest",
    "Fold",
    "FoldLoop",
    "Standing",
    "StateGroup",
    "StateStore",
    "check_served",
    "open_state_store",
    "rebuild_states",
]

__getattr__ = lazy_names(
    __name__,
    {
        "fold": "Fold",
        "fold_loop": "FoldLoop rebuild_states",
        "reader": "ComputedFeatures FeatureReader FilledRequest",
        "served_check": "check_served",
        "state_store": "Standing StateGroup StateStore open_state_store",
    },
)

"""Serving: versions answer requests. Names that need TensorFlow load it on first use."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names
from streamlearn.serving.graphs.ladder import Bucket

if TYPE_CHECKING:
    from streamlearn.serving.graphs.dense import Dense
    from streamlearn.serving.graphs.executables import CompileBudget
    from streamlearn.serving.lanes.device import lane_places
    from streamlearn.serving.lanes.lanes import Lanes
    from streamlearn.serving.lanes.work import Work

__all__ = ["Bucket", "CompileBudget", "Dense", "Lanes", "Work", "lane_places"]

__getattr__ = lazy_names(
    __name__,
    {
        "graphs.dense": "Dense",
        "graphs.executables": "CompileBudget",
        "lanes.device": "lane_places",
        "lanes.lanes": "Lanes",
        "lanes.work": "Work",
    },
)

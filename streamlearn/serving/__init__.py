"""Serving: versions answer requests. What needs TensorFlow is loaded when it is first asked for."""

from typing import TYPE_CHECKING

from streamlearn.lazy import lazy_names
from streamlearn.serving.ladder import Bucket, Ladder

if TYPE_CHECKING:
    from streamlearn.serving.budget import CompileBudget
    from streamlearn.serving.compile_cache import CompileCache
    from streamlearn.serving.compiler import Compiler
    from streamlearn.serving.definitions import Definitions
    from streamlearn.serving.dense import Dense
    from streamlearn.serving.device import lane_places
    from streamlearn.serving.executables import Executables
    from streamlearn.serving.golden import check_golden, score_samples
    from streamlearn.serving.lanes import Lanes, Source
    from streamlearn.serving.slab import Slab
    from streamlearn.serving.work import Work

__all__ = [
    "Bucket",
    "CompileBudget",
    "CompileCache",
    "Compiler",
    "Definitions",
    "Dense",
    "Executables",
    "Ladder",
    "Lanes",
    "Slab",
    "Source",
    "Work",
    "check_golden",
    "lane_places",
    "score_samples",
]

__getattr__ = lazy_names(
    __name__,
    {
        "budget": "CompileBudget",
        "compile_cache": "CompileCache",
        "compiler": "Compiler",
        "definitions": "Definitions",
        "dense": "Dense",
        "device": "lane_places",
        "executables": "Executables",
        "golden": "check_golden score_samples",
        "lanes": "Lanes Source",
        "slab": "Slab",
        "work": "Work",
    },
)

"""LaneThreads: lanes that are threads of the node; they score with the devices of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from streamlearn.models.tf_calls import Place
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.compiler import Compiler
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.executables import CompileBudget, load_executables
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.serving.lanes.device import lane_places
from streamlearn.serving.lanes.lane_kind import Made
from streamlearn.settings import ServingSettings

__all__ = ["LaneThreads"]

_LOG = logging.getLogger("streamlearn.serving.LaneThreads")


class LaneThreads:
    """A `LaneKind` whose graphs stay in memory as long as the process lives.

    Without a cache, frequent shapes outside the ladder are not compiled. `places` are the devices of the lanes, which
    nodes of one process share. `measured` is called with the cost of each bucket of new graphs in microseconds.
    """

    def __init__(
        self,
        settings: ServingSettings,
        cache: CompileCache | None = None,
        places: list[Place] | None = None,
        measured: Callable[[dict[Bucket, float]], object] = lambda _: None,
    ) -> None:
        self._settings, self._cache, self._measured = settings, cache, measured
        self.places = lane_places(settings) if places is None else places
        self._compiler = None if cache is None else Compiler(settings, cache)
        self._budget = CompileBudget(settings.compiles_max)
        self._made: dict[str, Made] = {}

    def graph(self, name: str, folder: Path) -> Made:
        """See `LaneKind.graph`."""
        if name in self._made:
            return self._made[name]
        compiler = self._compiler
        executables, ladder = load_executables(folder, self._settings, self.places, self._budget)
        _LOG.info("compiling %d shapes of graph %s", sum(1 for _ in ladder.buckets()), name[:12])
        if self._made and compiler is not None:
            # Compiling here would delay the lanes that answer. What the compiler fails to make is compiled below.
            compiler.compile_all(executables, folder, ladder.buckets())
        executables.compile_ladder(ladder)
        self._measured(executables.costs_us(ladder, self._settings.cost_runs))
        if self._cache is not None:
            self._cache.seal()
        if compiler is not None:
            executables.wanted = lambda bucket: compiler.ask(executables, folder, bucket)
        self._made[name] = Made(executables, ladder)
        return self._made[name]

    def weights(self, scorer: Any, named: Mapping[str, npt.NDArray[Any]]) -> Dense:
        """See `LaneKind.weights`."""
        return Dense(scorer.described, named, self.places)

    def check(self, lane: int) -> None:
        """See `LaneKind.check`: a thread is always there."""

    def end(self) -> None:
        """See `LaneKind.end`."""

    def close(self) -> None:
        """See `LaneKind.close`."""
        if self._compiler is not None:
            self._compiler.close()

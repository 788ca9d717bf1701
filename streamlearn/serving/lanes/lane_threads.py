"""LaneThreads: lanes that are threads of this process, on devices that TensorFlow has here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from streamlearn.models import load_graphs
from streamlearn.serving.graphs.compile_budget import CompileBudget
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.compiler import Compiler
from streamlearn.serving.graphs.definitions import Definitions
from streamlearn.serving.graphs.dense import Dense
from streamlearn.serving.graphs.executables import Executables
from streamlearn.serving.graphs.ladder import Bucket, Ladder
from streamlearn.serving.lanes.device import lane_places
from streamlearn.serving.lanes.lane_kind import Made
from streamlearn.serving.lanes.tf_calls import Place
from streamlearn.settings import ServingSettings

__all__ = ["LaneThreads"]

_LOG = logging.getLogger("streamlearn.serving.LaneThreads")


class LaneThreads:
    """A `LaneKind`: graphs stay as long as the process lives.

    Args:
        settings: Shapes, devices and bounds.
        cache: Where compiled code is kept; without one, shapes that come often are not compiled.
        places: The device of each lane; those of the settings by default. Nodes of one process share them.
        measured: Told what each bucket of new graphs costs in microseconds.

    Attributes:
        places: As given.
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
        found = self._made.get(name)
        if found is not None:
            return found
        settings, compiler = self._settings, self._compiler
        definitions = Definitions(load_graphs(folder), settings.users_buckets[-1])
        ladder = Ladder.of(settings, definitions.described)
        executables = Executables(definitions, self.places, self._budget, settings.compile_calls_min)
        _LOG.info("compiling %d shapes of graph %s", sum(1 for _ in ladder.buckets()), name[:12])
        if self._made and compiler is not None:
            # To compile here would hold up those that answer; what is left is loaded, or compiled, here.
            compiler.compile_all(executables, folder, ladder.buckets())
        executables.compile_ladder(ladder)
        self._measured({bucket: executables.cost_us(bucket, settings.cost_runs) for bucket in ladder.buckets()})
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

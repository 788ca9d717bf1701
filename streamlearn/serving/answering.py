"""Answering: the versions that a node can answer with, each with its graphs and weights. It knows no request."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder
from streamlearn.errors import VersionRefused
from streamlearn.models import load_graphs
from streamlearn.samples import SampleCodec, read_golden
from streamlearn.serving.budget import CompileBudget
from streamlearn.serving.definitions import Definitions
from streamlearn.serving.dense import Dense
from streamlearn.serving.executables import Executables
from streamlearn.serving.golden import check_golden, score_samples
from streamlearn.serving.ladder import Bucket, Ladder
from streamlearn.serving.tf_calls import Place
from streamlearn.table import TableSet
from streamlearn.versions import Canary, Committed, Store, VersionRef, get_graph, load_bytes, load_tensors

__all__ = ["Answer", "Answering"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Answer:
    """What scores a version.

    Attributes:
        executables: Its graphs.
        dense: Its dense weights.
    """

    executables: Executables
    dense: Dense


class Answering:
    """The hooks of a node that serves: what else a version needs beside its rows.

    A graph that was not met before is compiled, all of its ladder, before a version of it answers; those that answer
    meanwhile are not touched. A version whose golden requests are not scored as training scored them is refused.

    Args:
        folder: The application.
        store: Where versions are.
        places: Where graphs run.
        front: What is told which versions there are.
        made: Told of a graph whose executables are ready: what they are, the folder they were made of, and what each
            bucket costs in microseconds.
    """

    def __init__(
        self,
        folder: AppFolder,
        store: Store,
        places: list[Place],
        front: Any,
        made: Callable[[Executables, Path, dict[Bucket, float]], object],
    ) -> None:
        self._folder, self._store, self._places, self._front, self._made = folder, store, places, front, made
        self._budget = CompileBudget(folder.settings.serving.compiles_max)
        self._graphs: dict[str, tuple[Executables, Ladder]] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="streamlearn-graphs-")
        self._codec = SampleCodec(folder.app, folder.settings.samples)
        self._answers: dict[int, Answer] = {}
        self._handles: dict[VersionRef, list[int]] = {}

    def of(self, handle: int) -> Answer | None:
        """What scores a version of the front; None for one that was given up."""
        return self._answers.get(handle)

    def stage(self, version: Committed, tables: TableSet) -> None:
        """See `Hooks.stage`."""
        graph = version.manifest.graph
        if graph is None:
            message = f"version {version.ref.version} has no graph"
            raise VersionRefused(message, help="versions that `streamlearn train` writes have one")
        executables, ladder = self._executables(graph)
        described = executables.definitions.described
        if described.features != self._folder.app.features.fingerprint:
            message = (
                f"version {version.ref.version} was made for features {described.features}, not this application's"
            )
            raise VersionRefused(message, help="serve it with the application's folder as it was trained")
        dense = Dense(described, load_tensors(self._store, version), self._places)
        self._check(version, tables, Answer(executables, dense), ladder)
        handle = self._front.add(version.ref.version, tables.native)
        self._answers[handle] = Answer(executables, dense)
        self._handles.setdefault(version.ref, []).append(handle)

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """See `Hooks.activate`."""
        *before, handle = self._handles[version]
        self._front.activate(handle)
        self._front.set_canary(None if canary is None else (self._handles[canary.version][-1], canary.share))
        # Those were in tables that were given up.
        self._let_go(before)
        self._handles[version] = [handle]

    def retire(self, version: VersionRef) -> None:
        """See `Hooks.retire`."""
        self._let_go(self._handles.pop(version, []))

    def close(self) -> None:
        """Let go of files."""
        self._scratch.cleanup()

    def _let_go(self, handles: list[int]) -> None:
        for handle in handles:
            self._front.remove(handle)
            self._answers.pop(handle, None)

    def _executables(self, graph: str) -> tuple[Executables, Ladder]:
        found = self._graphs.get(graph)
        if found is not None:
            return found
        settings, place = self._folder.settings.serving, Path(self._scratch.name, graph)
        if not place.exists():
            get_graph(self._store, self._folder.app.name, graph, place)
        definitions = Definitions(load_graphs(place), settings.users_buckets[-1])
        ladder = Ladder.of(settings, definitions.described)
        executables = Executables(definitions, self._places, self._budget, settings.compile_calls_min)
        _LOG.info("compiling %d shapes of graph %s", sum(1 for _ in ladder.buckets()), graph[:12])
        executables.compile_ladder(ladder)
        costs_us = {bucket: executables.cost_us(bucket, settings.cost_runs) for bucket in ladder.buckets()}
        self._made(executables, place, costs_us)
        self._graphs[graph] = executables, ladder
        return executables, ladder

    def _check(self, version: Committed, tables: TableSet, answer: Answer, ladder: Ladder) -> None:
        """Hold golden requests against what training said of them; version 1 has none."""
        entries = load_bytes(self._store, version, "golden")
        if not entries:
            return
        batch, logits = read_golden(self._codec, entries)
        found = score_samples(
            answer.executables,
            ladder,
            answer.dense,
            batch,
            pack=self._folder.app.features.pack,
            tables=tables,
            at=version.ref.version,
        )
        check_golden(found, logits, self._folder.settings.serving.golden_difference_max)

"""Answering: the versions that a node can answer with, each with its graphs and weights. It knows no request."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder
from streamlearn.errors import VersionRefused
from streamlearn.features import labels_differ
from streamlearn.samples import SampleCodec, read_golden
from streamlearn.serving.graphs.golden import check_golden, score_samples
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes.lane_kind import LaneKind, Made, Scorer
from streamlearn.table import TableSet
from streamlearn.versions import Committed, Store, VersionRef, load_tensors
from streamlearn.versions.format.graphs import get_graph
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.pointer.moves import Canary

__all__ = ["Answer", "Answering"]


@dataclass(frozen=True, eq=False)
class Answer:
    """What scores a version.

    Attributes:
        executables: Its graphs.
        dense: Its dense weights.
    """

    executables: Scorer
    dense: Any


class Answering:
    """The hooks of a node that serves: what else a version needs beside its rows.

    A graph that was not met before is compiled, all of its ladder, before a version of it answers; those that answer
    meanwhile are not touched. A version whose golden requests are not scored as training scored them is refused.

    Args:
        folder: The application.
        store: Where versions are.
        lanes: Where graphs run.
        front: What is told which versions there are.
    """

    def __init__(self, folder: AppFolder, store: Store, lanes: LaneKind, front: Any) -> None:
        self._folder, self._store, self._lanes, self._front = folder, store, lanes, front
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
            raise VersionRefused(message, help="use a version that `streamlearn train` wrote: it has one")
        executables, ladder = self._made(graph)
        described = executables.described
        app, of = self._folder.app, f"version {version.ref.version} of {self._folder.app.name!r}"
        message = labels_differ(of, described.labels, app.label_names)
        if not message and described.features != app.features.fingerprint:
            message = f"{of} was made for features {described.features}, not for those of this application"
        if message:
            raise VersionRefused(message, help="serve it with the application folder it was trained with")
        dense = self._lanes.weights(executables, load_tensors(self._store, version))
        self._check(version, tables, Answer(executables, dense), ladder)
        handle = self._front.add(version.ref.version, tables.native)
        self._answers[handle] = Answer(executables, dense)
        self._handles.setdefault(version.ref, []).append(handle)

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """See `Hooks.activate`."""
        *before, handle = self._handles[version]
        self._front.activate(handle)
        tried = None if canary is None else (self._handles[canary.version][-1], canary.share)
        is_shadow = canary is not None and canary.shadow
        self._front.set_canary(None if is_shadow else tried)
        self._front.set_shadow(tried if is_shadow else None)
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

    def _made(self, graph: str) -> Made:
        place = Path(self._scratch.name, graph)
        if not place.exists():
            get_graph(self._store, self._folder.app.name, graph, place)
        return self._lanes.graph(graph, place)

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

"""Servable versions: those that a node can answer with, each with its graphs and weights. They know no request."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.apps import AppFolder
from streamlearn.errors import VersionRefused
from streamlearn.features import labels_differ
from streamlearn.features.retrieval import of_ranking
from streamlearn.samples import SampleCodec, read_golden
from streamlearn.serving.graphs.golden import check_golden, score_samples
from streamlearn.serving.graphs.ladder import Ladder
from streamlearn.serving.lanes.lane_kind import LaneKind, Scorer
from streamlearn.table import TableSet
from streamlearn.versions import Committed, Store, VersionRef, load_tensors
from streamlearn.versions.format.graphs import get_graph
from streamlearn.versions.format.loading import load_bytes
from streamlearn.versions.pointer.moves import Canary
from streamlearn.versions.replica.hooks import Hooks

if TYPE_CHECKING:
    from streamlearn.serving.node_retrieval import NodeRetrieval

__all__ = ["Answer", "Answering", "FrontVersions", "identity_of"]

# As many hexadecimal digits of a manifest's digest tell versions of one number apart, in 64 bits.
_IDENTITY_DIGITS = 16


def identity_of(version: VersionRef) -> int:
    """Return what tells versions of one number apart on native fronts."""
    return int(version.sha256[:_IDENTITY_DIGITS], 16)


@dataclass(frozen=True, eq=False)
class Answer:
    """The graphs and the dense weights that score a version."""

    executables: Scorer
    dense: Any


class FrontVersions:
    """The versions that one native front has, which selects one for each request."""

    def __init__(self, front: Any) -> None:
        self._front = front
        self._answers: dict[int, Answer] = {}
        self._handles: dict[VersionRef, list[int]] = {}

    def of(self, handle: int) -> Answer | None:
        """Return what scores the version with this handle of the front; None if the version was retired."""
        return self._answers.get(handle)

    def add(
        self, version: VersionRef, tables: TableSet, answer: Answer, items: Any = None, *, features: Any = None
    ) -> None:
        """Let a version answer requests that name it.

        `items` are those that a front finds, if it finds any; `features` describe the items of a front that scores.
        """
        handle = self._front.add(version.version, tables.native, identity_of(version), items)
        if features is not None:
            features.describe(self._front, handle)
        self._answers[handle] = answer
        self._handles.setdefault(version, []).append(handle)

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """Answer requests that name no version with this one, and a share of them with a canary."""
        *replaced, handle = self._handles[version]
        self._front.activate(handle)
        candidate = None if canary is None else (self._handles[canary.version][-1], canary.share)
        is_shadow = canary is not None and canary.shadow
        self._front.set_canary(None if is_shadow else candidate)
        self._front.set_shadow(candidate if is_shadow else None)
        # The replaced handles read from tables that the replica has dropped.
        self._remove(replaced)
        self._handles[version] = [handle]

    def retire(self, version: VersionRef) -> None:
        """Answer with a version no more."""
        self._remove(self._handles.pop(version, []))

    def _remove(self, handles: list[int]) -> None:
        for handle in handles:
            self._front.remove(handle)
            self._answers.pop(handle, None)


class Answering(Hooks):
    """The replica hooks of a serving node: they prepare what a version needs besides its rows.

    The whole ladder of a new graph is compiled before a version with it answers; versions that answer meanwhile are not
    affected. A version is refused if it does not score its golden requests as training did.

    Attributes:
        versions: Those of the front that scores candidates.
    """

    def __init__(
        self, folder: AppFolder, store: Store, lanes: LaneKind, front: Any, retrieval: NodeRetrieval | None = None
    ) -> None:
        self._folder, self._store, self._lanes, self._retrieval = folder, store, lanes, retrieval
        self.versions = FrontVersions(front)
        self._scratch = tempfile.TemporaryDirectory(prefix="streamlearn-graphs-")
        self._codec = SampleCodec(folder.app, folder.settings.samples)

    def load(self, version: Committed, parent: VersionRef | None) -> None:
        """See `Hooks.load`."""
        if self._retrieval is not None:
            self._retrieval.indexes.load(version, parent)

    def stage(self, version: Committed, tables: TableSet) -> None:
        """See `Hooks.stage`."""
        graph = version.manifest.graph
        if graph is None:
            message = f"version {version.ref.version} has no graph"
            raise VersionRefused(message, help="use a version that `streamlearn train` wrote: it has one")
        app, name = self._folder.app, f"version {version.ref.version} of {self._folder.app.name!r}"
        executables, ladder = self._lanes.graph(graph, self._graph(graph))
        described = executables.described
        message = labels_differ(name, described.labels, app.label_names)
        if not message and described.features != app.features.fingerprint:
            message = f"{name} was made for features {described.features}, not for those of this application"
        if message:
            raise VersionRefused(message, help="serve it with the application folder it was trained with")
        dense = of_ranking(load_tensors(self._store, version))
        answer = Answer(executables, self._lanes.weights(executables, dense))
        self._check(version, tables, answer, ladder)
        features = None
        if self._retrieval is not None:
            features = self._retrieval.stage(version, tables, self._graph)
        self.versions.add(version.ref, tables, answer, features=features)

    def activate(self, version: VersionRef, canary: Canary | None) -> None:
        """See `Hooks.activate`."""
        self.versions.activate(version, canary)
        if self._retrieval is not None:
            self._retrieval.activate(version, canary)

    def retire(self, version: VersionRef) -> None:
        """See `Hooks.retire`."""
        self.versions.retire(version)
        if self._retrieval is not None:
            self._retrieval.retire(version)

    def close(self) -> None:
        """Delete the downloaded graphs."""
        self._scratch.cleanup()

    def _graph(self, graph: str) -> Path:
        """Return the folder of a graph, which is downloaded once."""
        folder = Path(self._scratch.name, graph)
        if not folder.exists():
            get_graph(self._store, self._folder.app.name, graph, folder)
        return folder

    def _check(self, version: Committed, tables: TableSet, answer: Answer, ladder: Ladder) -> None:
        """Compare the scores of golden requests with those of training; version 1 has no golden requests."""
        entries = load_bytes(self._store, version, "golden")
        if not entries:
            return
        batch, logits = read_golden(self._codec, entries)
        pack, at = self._folder.app.features.pack, version.ref.version
        scores = score_samples(answer.executables, ladder, answer.dense, batch, pack=pack, tables=tables, at=at)
        units = [1.0 if label.number is None else label.number.scale for label in self._folder.app.labels]
        check_golden(scores, logits, self._folder.settings.serving.golden_difference_max, units)

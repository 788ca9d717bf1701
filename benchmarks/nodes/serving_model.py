"""ServingModel: versions of an application that serving is measured with, written as a publisher does; no TensorFlow.

Every value of every slot has a row, of numbers of a seed: requests draw the same values, and peers are given the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.nodes.serving_workload import Workload
from streamlearn.apps import AppFolder, load_app
from streamlearn.features import FeatureSpec, Slot, keys_of
from streamlearn.models.description import read_description
from streamlearn.serving.load.candidates import candidate_counts
from streamlearn.serving.load.requests import Asked
from streamlearn.serving.load.synthetic_requests import invented
from streamlearn.table import Changes, TableSet, declared_tables
from streamlearn.versions import (
    Committed,
    Cut,
    Head,
    History,
    Mover,
    PointerLog,
    Verdict,
    VersionWriter,
    open_registry,
    open_store,
    table_record,
    write_verdict,
)
from streamlearn.versions.format.graphs import put_graph
from streamlearn.versions.pointer import moves
from streamlearn.versions.pointer.mover import Moved

__all__ = ["CANDIDATES_MAX", "CANDIDATES_MEAN", "Pointing", "ServingModel"]

CANDIDATES_MEAN, CANDIDATES_MAX = 36.0, 512
_APPS = Path(__file__).parents[1]
_SCALE = 0.05
_MOVE_S_MAX = 300.0

Float32s = npt.NDArray[np.float32]


class ServingModel:
    """An application, its store, and the versions that are written there.

    Args:
        name: `serving_din` or `serving_small`.
        place: Where its store and registry are.
        graphs: Where its graphs were exported.
        values: How many values each slot takes.

    Attributes:
        folder: The application.
        registry_url: Where its nodes meet; another one takes its place.
        graphs: As given.
        values: As given.
        rows: (1 + slots * values, dim) row 0 is zeros.
        first: By slot, which row is that of its value 0.
        dense: The dense weights of the first version.
    """

    def __init__(self, name: str, place: Path, graphs: Path, values: int) -> None:
        self.registry_url = f"sqlite://{place}/{name}.db"
        where = (f"versions.store={place / name}-store", f"registry.url={self.registry_url}")
        self.folder: AppFolder = load_app(_APPS / name, where)
        self.graphs, self.values = graphs, values
        self._store = open_store(self.folder.store_url)
        (options,) = declared_tables(self.folder.app.features, self.folder.settings.tables)
        self._table = msgspec.structs.replace(options, optimizer=None, admission=None)
        own = _own(self.folder.app.features)
        self.first = {slot.name: 1 + at * values for at, slot in enumerate(own)}
        self.first |= {one.name: self.first[one.keys_of] for one in self.folder.app.features.slots if one.keys_of}
        self._keys = np.concatenate([keys_of(slot, np.arange(values)) for slot in own])
        self.rows = np.zeros((1 + len(self._keys), self._table.spec.dim), np.float32)
        self.rows[1:] = _drawn((len(self._keys), self._table.spec.dim), 0)
        self.dense = self._weights(graphs)
        self._last: Committed | None = None

    @property
    def name(self) -> str:
        """The application's."""
        return self.folder.app.name

    def asked(self, count: int, seed: int = 0) -> Asked:
        """Requests: numbers of candidates by a lognormal distribution, values by Zipf's law."""
        random = np.random.default_rng(seed)
        counts = candidate_counts(CANDIDATES_MEAN, CANDIDATES_MAX, count, random)
        return invented(self.folder.app.features, counts, self.values, random)

    def asked_of(self, candidates: int, count: int, seed: int = 0) -> Asked:
        """Requests of so many candidates each."""
        random = np.random.default_rng(seed)
        return invented(self.folder.app.features, np.full(count, candidates, np.int64), self.values, random)

    def messages(self, asked: Asked) -> list[bytes]:
        """Requests, encoded."""
        return asked.messages(self.folder.app.features, self.name)

    def workload(self, asked: Asked, expected: Sequence[Float32s]) -> Workload:
        """What a peer is to serve that is to give the same scores as the first version.

        Args:
            asked: The requests.
            expected: What a node answered to the first of them.
        """
        return Workload(
            name=self.name,
            features=self.folder.app.features,
            graphs=self.graphs,
            weights=self.dense,
            rows=self.rows,
            first=self.first,
            asked=asked,
            expected=expected,
        )

    def write(self, changed: int) -> int:
        """Write the next version and let it pass; the first is a base of all rows.

        Args:
            changed: How many rows are others than in the version before.

        Returns:
            Its number.
        """
        return self.prepare(changed)()

    def prepare(self, changed: int, graphs: Path | None = None) -> Callable[[], int]:
        """Write the files of the next version, of which nobody hears before it is committed.

        Args:
            changed: How many rows are others than in the version before.
            graphs: Its graphs; those of the application by default.

        Returns:
            What commits it, lets it pass and gives its number; nodes begin to stage it as soon as they hear of it.
        """
        last, tables = self._last, TableSet([self._table])
        number = 1 if last is None else last.manifest.version + 1
        head = Head(
            model=self.name,
            run=1,
            version=number,
            kind="base" if last is None else "delta",
            parent=None if last is None else last.ref,
            fingerprint=self.folder.app.features.fingerprint,
            windows="none",
            tables=(table_record(tables, self._table.spec.name),),
        )
        rows = self.rows[1:] if last is None else _drawn((changed, self._table.spec.dim), number)
        keys = self._keys if last is None else self._keys[:changed]
        graphs = graphs or self.graphs
        writer = VersionWriter(self._store, head)
        writer.add_rows([Changes(self._table.spec.name, keys, np.ascontiguousarray(rows))])
        writer.add_dense(self.dense if graphs == self.graphs else self._weights(graphs))
        graph = put_graph(self._store, self.name, graphs)

        def commit() -> int:
            self._last = writer.finish(Cut(graph=graph))
            write_verdict(self._store, self._last.folder, Verdict(version=self._last.ref, outcome="passed"))
            return number

        return commit

    @contextmanager
    def pointing(self) -> Iterator[Pointing]:
        """Whoever moves the pointer."""
        with open_registry(self.registry_url, self.name) as registry:
            log = PointerLog(self._store, self.name)
            yield Pointing(Mover(log, registry), History(self._store, self.name))

    def _weights(self, graphs: Path) -> dict[str, Float32s]:
        notes = read_description(graphs).weights
        shapes = {one.name: tuple(size or 0 for size in one.shape) for one in notes}
        return {name: _drawn(shape, 1_000_000 + at) for at, (name, shape) in enumerate(shapes.items())}


class Pointing:
    """Moves the pointer of a model, as its publisher and its operators do.

    Args:
        mover: What moves it.
        history: Of the model.
    """

    def __init__(self, mover: Mover, history: History) -> None:
        self._mover, self._history = mover, history
        self._known = history.read()

    def look(self) -> None:
        """Hear of versions that were written meanwhile."""
        self._known = self._history.read()

    def publish(self, version: int) -> Moved:
        """Go to a newer version, as the publisher does; returns when nodes have acted, or are too late."""
        return self._mover.move(
            lambda now: moves.publish(now, self._known, version, 1), by="bench", what="publish", wait_s=_MOVE_S_MAX
        )

    def back(self, version: int) -> Moved:
        """Go back."""
        return self._mover.move(
            lambda now: moves.rollback(now, self._known, version), by="bench", what="rollback", wait_s=_MOVE_S_MAX
        )

    def forward(self, version: int) -> Moved:
        """Go to a version that was left."""
        return self._mover.move(
            lambda now: moves.promote(now, self._known, version, accept=True),
            by="bench",
            what="promote",
            wait_s=_MOVE_S_MAX,
        )

    def release(self) -> Moved:
        """Follow again what is published."""
        return self._mover.move(
            lambda now: moves.release(now, self._known), by="bench", what="release", wait_s=_MOVE_S_MAX
        )


def _own(features: FeatureSpec) -> list[Slot]:
    return [slot for slot in features.slots if not slot.keys_of]


def _drawn(shape: tuple[int, ...], seed: int) -> Float32s:
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return np.asarray(drawn * np.float32(_SCALE), np.float32)

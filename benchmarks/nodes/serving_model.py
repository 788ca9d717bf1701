"""ServingModel: an application for the benchmark of serving, whose versions are written without TensorFlow.

Every value of every slot has a row of random numbers. Requests draw from the same values, and peers get the rows.
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
from streamlearn.load.requests import LoadRequests, candidate_counts
from streamlearn.load.synthetic_requests import invented
from streamlearn.models.description import read_description
from streamlearn.native import native
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

__all__ = ["CANDIDATES_MAX", "CANDIDATES_MEAN", "REQUESTS", "Pointing", "ServingModel"]

CANDIDATES_MEAN, CANDIDATES_MAX, REQUESTS = 36.0, 512, 2_000
_APPS = Path(__file__).parents[1]
_SCALE = 0.05
_MOVE_S_MAX = 300.0

Float32s = npt.NDArray[np.float32]


class ServingModel:
    """An application, its store and its versions.

    Args:
        name: `serving_din`, `serving_din_rich` or `serving_small`.
        place: The folder of its store and registry.
        graphs: The folder of its exported graphs.
        values: Number of values of each slot.

    Attributes:
        folder: The application.
        registry_url: The registry of its nodes; assign another to change it.
        graphs: The folder of its exported graphs.
        values: Number of values of each slot.
        rows: (1 + slots * values, dim) row 0 is zeros.
        first: By slot, the row of its value 0.
        dense: The dense weights of the first version.
    """

    def __init__(self, name: str, place: Path, graphs: Path, values: int) -> None:
        self.registry_url = f"sqlite://{place}/{name}.db"
        changes = (f"versions.store={place / name}-store", f"registry.url={self.registry_url}")
        self.folder: AppFolder = load_app(_APPS / name, changes)
        self.graphs, self.values = graphs, values
        self._store = open_store(self.folder.store_url)
        options = declared_tables(self.folder.app.tables, self.folder.settings.tables)
        # The table of the slots is the first; columns made from them have others.
        self._tables = [msgspec.structs.replace(one, optimizer=None, admission=None) for one in options]
        dim = self._tables[0].spec.dim
        own_slots = _own_slots(self.folder.app.features)
        self.first = {slot.name: 1 + at * values for at, slot in enumerate(own_slots)}
        self.first |= {slot.name: self.first[slot.keys_of] for slot in self.folder.app.features.slots if slot.keys_of}
        self._keys = np.concatenate([keys_of(slot, np.arange(values)) for slot in own_slots])
        self.rows = np.zeros((1 + len(self._keys), dim), np.float32)
        self.rows[1:] = _drawn((len(self._keys), dim), 0)
        self.dense = self._weights(graphs)
        self._last: Committed | None = None

    @property
    def name(self) -> str:
        """The name of the application."""
        return self.folder.app.name

    def requests(self, count: int, seed: int = 0) -> LoadRequests:
        """Return requests with lognormal numbers of candidates and values by Zipf's law."""
        random = np.random.default_rng(seed)
        counts = candidate_counts(CANDIDATES_MEAN, CANDIDATES_MAX, count, random)
        return invented(self.folder.app.features, counts, self.values, random)

    def requests_of_size(self, candidates: int, count: int, seed: int = 0) -> LoadRequests:
        """Return requests with this number of candidates each."""
        random = np.random.default_rng(seed)
        return invented(self.folder.app.features, np.full(count, candidates, np.int64), self.values, random)

    def messages(self, requests: LoadRequests) -> list[bytes]:
        """Return encoded requests."""
        return requests.messages(self.folder.app.features, self.name)

    def workload(self, requests: LoadRequests, expected: Sequence[Float32s]) -> Workload:
        """Return the workload with which a peer gives the scores of the first version.

        `expected` are a node's scores of the first requests.
        """
        return Workload(
            name=self.name,
            features=self.folder.app.features,
            graphs=self.graphs,
            weights=self.dense,
            rows=self.rows,
            first=self.first,
            asked=requests,
            expected=expected,
        )

    def write(self, changed: int) -> int:
        """Write and pass the next version with `changed` changed rows, and return its number.

        The first version is a base of all rows.
        """
        return self.prepare(changed)()

    def prepare(self, changed: int, graphs: Path | None = None) -> Callable[[], int]:
        """Write the files of the next version, which stays invisible until it is committed.

        Args:
            changed: Number of changed rows.
            graphs: Its graphs; by default those of the application.

        Returns:
            A function that commits and passes the version and returns its number. Nodes then begin to stage it.
        """
        last, tables = self._last, TableSet(self._tables)
        main = self._tables[0].spec
        number = 1 if last is None else last.manifest.version + 1
        head = Head(
            model=self.name,
            run=1,
            version=number,
            kind="base" if last is None else "delta",
            parent=None if last is None else last.ref,
            fingerprint=self.folder.app.features.fingerprint,
            windows="none",
            tables=tuple(table_record(tables, one.spec.name) for one in self._tables),
        )
        rows = self.rows[1:] if last is None else _drawn((changed, main.dim), number)
        keys = self._keys if last is None else self._keys[:changed]
        graphs = graphs or self.graphs
        writer = VersionWriter(self._store, head)
        writer.add_rows([Changes(main.name, keys, np.ascontiguousarray(rows)), *self._derived_rows()])
        writer.add_dense(self.dense if graphs == self.graphs else self._weights(graphs))
        graph = put_graph(self._store, self.name, graphs)

        def commit() -> int:
            self._last = writer.finish(Cut(graph=graph))
            write_verdict(self._store, self._last.folder, Verdict(version=self._last.ref, outcome="passed"))
            return number

        return commit

    @contextmanager
    def pointing(self) -> Iterator[Pointing]:
        """Return an object that moves the pointer."""
        with open_registry(self.registry_url, self.name) as registry:
            log = PointerLog(self._store, self.name)
            yield Pointing(Mover(log, registry), History(self._store, self.name))

    def _derived_rows(self) -> Iterator[Changes]:
        """Yield rows for all pairs that `requests` asks for."""
        columns = self.folder.app.features.derived_keyed
        asked = self.requests(REQUESTS if columns else 0)
        for column in columns:
            first, second = (self._item_keys(asked, name) for name in column.of)
            keys = np.unique(native.cross_keys(first, second, native.slot_salt(column.name)))
            yield Changes(column.table, keys, _drawn((len(keys), column.dim), 0))

    def _item_keys(self, asked: LoadRequests, name: str) -> npt.NDArray[np.uint64]:
        slot = self.folder.app.features.slot(name)
        if slot.side == "item":
            return keys_of(slot, asked.item[name])
        return np.repeat(keys_of(slot, asked.user[name]), asked.candidates)

    def _weights(self, graphs: Path) -> dict[str, Float32s]:
        weights = read_description(graphs).weights
        shapes = {weight.name: tuple(size or 0 for size in weight.shape) for weight in weights}
        return {name: _drawn(shape, 1_000_000 + at) for at, (name, shape) in enumerate(shapes.items())}


class Pointing:
    """Moves the pointer of a model, as its publisher and operators do."""

    def __init__(self, mover: Mover, history: History) -> None:
        self._mover, self._history = mover, history
        self._known = history.read()

    def look(self) -> None:
        """Read the history again."""
        self._known = self._history.read()

    def publish(self, version: int) -> Moved:
        """Move to a newer version, as the publisher does; return when nodes have acted, or are too late."""
        return self._mover.move(
            lambda now: moves.publish(now, self._known, version, 1), by="bench", what="publish", wait_s=_MOVE_S_MAX
        )

    def back(self, version: int) -> Moved:
        """Roll back to a version."""
        return self._mover.move(
            lambda now: moves.rollback(now, self._known, version), by="bench", what="rollback", wait_s=_MOVE_S_MAX
        )

    def forward(self, version: int) -> Moved:
        """Promote a tainted version."""
        return self._mover.move(
            lambda now: moves.promote(now, self._known, version, accept=True),
            by="bench",
            what="promote",
            wait_s=_MOVE_S_MAX,
        )

    def release(self) -> Moved:
        """Release the hold."""
        return self._mover.move(
            lambda now: moves.release(now, self._known), by="bench", what="release", wait_s=_MOVE_S_MAX
        )


def _own_slots(features: FeatureSpec) -> list[Slot]:
    return [slot for slot in features.slots if not slot.keys_of]


def _drawn(shape: tuple[int, ...], seed: int) -> Float32s:
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return np.asarray(drawn * np.float32(_SCALE), np.float32)

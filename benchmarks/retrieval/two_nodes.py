"""A million items on two nodes: how soon both answer with a new version, how soon they go back, lists of who acted.

The versions have the files that a publisher writes; their vectors are drawn by chance.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import structs

from benchmarks.nodes.nearline_figures import action_to_list, nearline_run, nearline_users
from benchmarks.nodes.serving_life import Asker
from benchmarks.nodes.serving_model import Pointing
from benchmarks.nodes.serving_nodes import ServingNode
from benchmarks.result import Result
from benchmarks.retrieval.vectors import DIM, encoded, none
from benchmarks.streams.library_items import shown_items
from streamlearn.apps import AppFolder, load_app
from streamlearn.features.keys import keys_of
from streamlearn.features.retrieval import TOWERS
from streamlearn.library.library import Library
from streamlearn.load.load_run import Load
from streamlearn.models.chosen import model_of
from streamlearn.serving.infer import InferRequest, numbers_tensor
from streamlearn.table import Changes, declared_tables
from streamlearn.trainer.evaluation import own_tables
from streamlearn.trainer.learner import Learner
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.towers.tower_steps import TowerMaker
from streamlearn.trainer.trainer_setup import put_graphs, put_user_graph
from streamlearn.versions import (
    Committed,
    Cut,
    Head,
    History,
    PointerLog,
    Verdict,
    VersionWriter,
    open_registry,
    open_store,
    record_of,
    write_verdict,
)  # fmt: skip
from streamlearn.versions.pointer.mover import Mover

__all__ = ["measure"]

Note = Callable[[str], None]
Keys = npt.NDArray[np.uint64]
# Lists are made of interactions, which are written where a column is computed.
_APP = """
from dataclasses import replace

from benchmarks.streams.library_items import retrieving_app
from streamlearn.features import Dense, Since

app = retrieving_app()
idle = Dense("idle", "user", computed=Since(app.label_names[0]), default=-1)
app = replace(app, features=replace(app.features, dense=(*app.features.dense, idle)), model="deepfm")
"""
_ITEMS, _QUICK_ITEMS, _CHANGED_SHARE = 1_000_000, 20_000, 10
_ROUNDS, _QUICK_ROUNDS, _K = 7, 3, 100
_USERS, _PIECE, _NOW_MS = 1_000, 1 << 14, 1_700_000_000_000
_LIST, _RANKED, _RANKED_USERS = 500, 2_000, 200
_BOUND = f"retrieval.k_max={_RANKED}"
_SETTINGS = ("replica.beat_s=0.25", "front.deadline_ms=30000", _BOUND)


def measure(note: Note, result: Result, *, quick: bool) -> None:
    """Measure all; times are of the wall, and for a version also the processor's in a node, with what it answers."""
    items, rounds = (_QUICK_ITEMS, _QUICK_ROUNDS) if quick else (_ITEMS, _ROUNDS)
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as place, ExitStack() as ends:
        note(f"a version of {items:,} items")
        model = _Model(Path(place), items)
        model.commit(model.prepare())
        pointing = ends.enter_context(model.pointing())
        pointing.publish(1)
        nodes = [ends.enter_context(ServingNode(model, name, Path(place), _SETTINGS)) for name in ("node-1", "node-2")]
        askers = [Asker(Load(node.grpc, [model.message], connections=1)) for node in nodes]
        asking = ends.enter_context(ExitStack())
        for asker in askers:
            asking.callback(asker.close)
        before = [node.anonymous_bytes() for node in nodes]
        note("versions with a tenth of the vectors")
        taken_s, used_s, back_ms = list[float](), list[float](), list[float]()
        for _ in range(rounds):
            writer, at_first_s = model.prepare(), [node.cpu_s() for node in nodes]
            begin_s = time.perf_counter()
            version = model.commit(writer)
            pointing.look()
            pointing.publish(version)
            taken_s.append(max(asker.first(version, begin_s) for asker in askers) - begin_s)
            used_s += [node.cpu_s() - first_s for node, first_s in zip(nodes, at_first_s, strict=True)]
        for _ in range(rounds):
            begin_s = time.perf_counter()
            pointing.back(version - 1)
            back_ms.append(1e3 * (max(asker.first(version - 1, begin_s) for asker in askers) - begin_s))
            begin_s = time.perf_counter()
            pointing.forward(version)
            for asker in askers:
                asker.first(version, begin_s)
        asking.close()
        grown = [node.anonymous_bytes() / at_first for node, at_first in zip(nodes, before, strict=True)]
        note("lists of users who act")
        users = [{"user_id": number} for number in range(_USERS)]
        item = {"video_id": 1, "author_id": 1, "tags": [1]}
        with nearline_run(model.folder, nodes[0].grpc, users, item, k=_LIST) as run:
            result.figures |= nearline_users(run)
            result.figures |= action_to_list(run, per_s=20.0, seconds=5.0 if quick else 20.0)
        note("lists that are ranked")
        with nearline_run(model.folder, nodes[0].grpc, users[:_RANKED_USERS], item, is_ranked=True) as run:
            ranked = nearline_users(run)
        result.figures["cascade_users_per_s"] = ranked["nearline_users_per_s"]
    result.figures["committed_to_retrievable_s"] = statistics.median(taken_s)
    result.figures["committed_to_retrievable_max_s"] = max(taken_s)
    result.figures["committed_to_retrievable_cpu_s"] = statistics.median(used_s)
    result.figures["rollback_to_list_ms"] = statistics.median(back_ms)
    result.figures["rollback_to_list_max_ms"] = max(back_ms)
    result.ratios["node_memory_after_to_before"] = statistics.median(grown)


class _Model:
    """Versions of an application that retrieves; the first is a base, and later ones change a tenth of the vectors."""

    def __init__(self, place: Path, items: int) -> None:
        folder = place / "app"
        folder.mkdir()
        (folder / "app.py").write_text(_APP)
        self.registry_url = f"sqlite://{place}/registry.db"
        self.folder: AppFolder = load_app(
            folder, [f"versions.store={place}/store", f"registry.url={self.registry_url}", _BOUND]
        )
        self._app, self._store = self.folder.app, open_store(self.folder.store_url)
        self._rng = np.random.default_rng(4)
        self._last: Committed | None = None
        self._library = Library(self._app)
        for begin in range(0, items, _PIECE):
            ids = np.arange(begin, min(begin + _PIECE, items))
            self._library.apply(shown_items(self._app, ids, _NOW_MS + begin, 0))
        with own_tables(self.folder) as client:
            learner = Learner(self._app, model_of(self.folder), self.folder.settings.trainer)
            steps = TowerMaker(self.folder, client, self._library)(learner, Rows(self._app, client, 1_024))
            self._dense = steps.dense()
        self._graph = put_graphs(self.folder, model_of(self.folder), self._store)
        self._record = put_user_graph(self.folder, self._store)
        inputs = (numbers_tensor("user_id", np.array([7])), numbers_tensor("k", np.array([_K])))
        self.message = InferRequest(f"{self._app.name}.retrieve", inputs).encode()

    @contextmanager
    def pointing(self) -> Iterator[Pointing]:
        """Return an object that moves the pointer."""
        with open_registry(self.registry_url, self._app.name) as registry:
            mover = Mover(PointerLog(self._store, self._app.name), registry)
            yield Pointing(mover, History(self._store, self._app.name))

    def prepare(self) -> VersionWriter:
        """Write the files of the next version."""
        last = self._last
        options = declared_tables(self._app.tables, self.folder.settings.tables)
        head = Head(
            model=self._app.name,
            run=1,
            version=1 if last is None else last.manifest.version + 1,
            kind="base" if last is None else "delta",
            parent=None if last is None else last.ref,
            fingerprint=self._app.model_fingerprint,
            windows=self._app.window_settings,
            labels=self._app.label_names,
            tables=tuple(record_of(structs.replace(one, optimizer=None, admission=None)) for one in options),
        )
        keys = self._library.view().keys
        if last is not None:
            keys = np.sort(self._rng.choice(keys, len(keys) // _CHANGED_SHARE, replace=False))
        values, scales = encoded(self._drawn(len(keys)))
        users = keys_of(self._app.features.slot("user_id"), np.arange(_USERS))
        cut, writer = self._library.cut(), VersionWriter(self._store, head)
        writer.add_rows([*self._ranking_rows(keys, last is None), Changes(TOWERS, users, self._drawn(_USERS))])
        writer.add_vectors({"key": keys, "row": values, "scale": scales, "gone": none()})
        writer.add_dense(self._dense)
        writer.add_library(cut.tensors)
        cut.committed()
        return writer

    def commit(self, writer: VersionWriter) -> int:
        """Commit a version, and return its number."""
        version = 1 if self._last is None else self._last.manifest.version + 1
        cut = Cut(graph=self._graph, retrieval=self._record, watermark_ms=_NOW_MS + version)
        self._last = last = writer.finish(cut)
        write_verdict(self._store, last.folder, Verdict(version=last.ref, outcome="passed"))
        return version

    def _ranking_rows(self, items: Keys, is_first: bool) -> Iterator[Changes]:
        """Yield rows of the ranking model for all items, which only the first version has."""
        for table in self._app.features.tables if is_first else ():
            rows = self._rng.standard_normal((len(items), table.dim), np.float32) / 10
            yield Changes(table.name, items, rows)

    def _drawn(self, rows: int) -> npt.NDArray[np.float32]:
        return self._rng.standard_normal((rows, DIM), np.float32)

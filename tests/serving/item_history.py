"""ItemHistory: versions of an application that retrieves, with vectors and ids of items, and what must be found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App, AppFolder
from streamlearn.features import FeatureSpec, Label, LabelGroup, Retrieval, Slot
from streamlearn.features.keys import keys_of
from streamlearn.features.retrieval import TOWERS
from streamlearn.native import native
from streamlearn.settings import Settings
from streamlearn.table import Changes, TableOptions
from streamlearn.testing import ManualClock
from streamlearn.versions import (
    Committed,
    Cut,
    Head,
    History,
    PointerLog,
    Store,
    Verdict,
    VersionWriter,
    record_of,
    write_verdict,
)  # fmt: skip
from streamlearn.versions.format.library_files import NEVER_MS
from streamlearn.versions.format.manifest import RetrievalRecord
from streamlearn.versions.pointer.moves import publish

__all__ = ["DIM", "ItemHistory", "Vectors", "finding_app", "nearest"]

DIM = 8
_NO_KEYS = np.zeros(0, np.uint64)
Vectors = dict[Any, npt.NDArray[np.float32]]  # by the item's id, as int8 values and their factor say


def finding_app(*, is_text: bool = False) -> App:
    """An application that retrieves: of a user it reads an id and a country, of an item the id alone."""
    ids = Slot("video_id", "item", value="str" if is_text else "int")
    slots = (Slot("user_id", "user"), Slot("country", "user", value="str", default=""), ids)
    groups = (LabelGroup("fast", wait_s=60, window_s=600),)
    retrieval = Retrieval("click", ("user_id", "country"), ("video_id",), dim=DIM)
    return App(
        "shop", FeatureSpec(slots=slots, item_id="video_id"), groups, (Label("click", "click", "fast"),),
        model="logistic", retrieval=retrieval,
    )  # fmt: skip


def nearest(vectors: Vectors, user: npt.NDArray[np.float32], k: int, exclude: Iterable[Any] = ()) -> list[Any]:
    """The k items with the highest product, found by computing all of them."""
    out = set(exclude)
    left = [item for item in vectors if item not in out]
    scores = np.array([vectors[item] for item in left], np.float64).reshape(-1, DIM) @ user.astype(np.float64)
    return [left[at] for at in np.argsort(-scores, kind="stable")[:k].tolist()]


@dataclass
class ItemHistory:
    """Writes versions one after the other, promoted if `is_promoted`.

    Attributes:
        graphs: The ids of the graph that scores, and of that of the towers.
        dense: The dense weights, by name.
        users: The rows of the table `towers`, by key.
        rows: Those of other tables, in each version.
        truth: The vectors of each version.
    """

    store: Store
    app: App
    graphs: tuple[str | None, str] = (None, "0" * 64)
    dense: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    users: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    rows: tuple[Changes, ...] = ()
    is_promoted: bool = True
    last: Committed | None = None
    truth: dict[int, Vectors] = field(default_factory=dict)

    def cut(self, version: int, changed: Vectors, gone: Iterable[Any] = (), *, kind: str = "") -> Committed:
        """Write a version: a base with all items, or a delta with those that are changed and gone."""
        kind = kind or ("delta" if self.last else "base")
        before = self.truth[self.last.manifest.version] if self.last else {}
        now = {item: vector for item, vector in (before | changed).items() if item not in set(gone)}
        written = changed if kind == "delta" else now
        keys = self.keys([*written])
        rows = np.array([*written.values()], np.float32).reshape(-1, DIM)
        values, scales = native.encode_vectors(rows)
        self.truth[version] = before | dict(zip(written, values * scales[:, None], strict=True))
        self.truth[version] = {item: self.truth[version][item] for item in now}
        left = self.keys([*gone]) if kind == "delta" else _NO_KEYS
        head = self.head(version, kind)
        writer = VersionWriter(self.store, head)
        users = np.array([*self.users.values()], np.float32).reshape(-1, DIM)
        writer.add_rows([*self.rows, Changes(TOWERS, np.array([*self.users], np.uint64), users)])
        writer.add_vectors({"key": keys, "row": values, "scale": scales, "gone": left})
        writer.add_dense(self.dense)
        writer.add_library(self.library([*(now if kind != "delta" else written)], left))
        record = RetrievalRecord(
            graph=self.graphs[1], fingerprint=self.app.retrieval_fingerprint, label="click", dim=DIM
        )
        cut = Cut(graph=self.graphs[0], retrieval=record, watermark_ms=1_000 + version)
        self.last = writer.finish(cut, clock=ManualClock())
        write_verdict(self.store, self.last.folder, Verdict(version=self.last.ref, outcome="passed"))
        if self.is_promoted:
            known = History(self.store, self.app.name).read()
            PointerLog(self.store, self.app.name).move(partial(publish, known=known, version=version, run=1), by="test")
        return self.last

    def head(self, version: int, kind: Any) -> Head:
        """The head of a version."""
        records = [record_of(TableOptions(spec, rows_max=100)) for spec in self.app.tables]
        return Head(
            model=self.app.name, run=1, version=version, kind=kind, parent=self.last.ref if self.last else None,
            fingerprint=self.app.model_fingerprint, windows=self.app.window_settings, labels=self.app.label_names,
            tables=tuple(records),
        )  # fmt: skip

    def keys(self, items: list[Any]) -> npt.NDArray[np.uint64]:
        """The keys of items."""
        return keys_of(self.app.features.slot("video_id"), items) if items else _NO_KEYS

    def library(self, items: list[Any], gone: npt.NDArray[np.uint64]) -> dict[str, npt.NDArray[Any]]:
        """Items as the library of a version has them; of their features only ids count here."""
        none, never, keys = np.zeros(len(items), np.int64), np.full(len(items), NEVER_MS), self.keys(items)
        columns = {
            "key": keys,
            "event_ms": none,
            "origin": none.astype(np.uint64),
            "written_ms": none,
            "removed_ms": never,
        }
        if self.app.features.slot("video_id").value == "str":
            raw = [item.encode() for item in items]
            ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
            return columns | {"id": np.frombuffer(b"".join(raw), np.uint8), "id$": ends, "gone": gone}
        return columns | {"id": np.array(items, np.int64), "gone": gone}


def folder_of(path: Path, app: App, settings: Settings | None = None) -> AppFolder:
    """The application as if it were loaded from a folder."""
    return AppFolder(app, path, settings or Settings())

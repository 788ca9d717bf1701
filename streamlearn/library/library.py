"""Library: all items of an application in memory, with the newest features of each. It reads no topic and no file.

The state of an item is a join of three maxima: its newest features, by event time and origin; and the newest times at
which the topic of items wrote it and removed it. So neither the order of statements nor their repetition makes a
difference.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events import take_rows
from streamlearn.features import keys_of
from streamlearn.library.columns import Columns, GrowingColumns, features_in, id_columns, no_features, rows_differ
from streamlearn.library.items import WRITTEN, ItemUpdates, LibraryCut, LibraryItems, LibraryView
from streamlearn.library.key_index import KeyIndex
from streamlearn.samples.item_ids import ItemIds
from streamlearn.versions import Chain
from streamlearn.versions.format.library_files import GONE, NEVER_MS, STATE, library_in
from streamlearn.versions.store.defect import defective

__all__ = ["ITEMS_MAX", "Library"]

ITEMS_MAX = 10_000_000
"""Most items of a library; later ones are refused and counted."""
# How often items are checked for expiry, as a share of their time; and at the shortest.
_EXPIRY_SHARE, _EXPIRY_STEP_MS = 64, 60_000
_SPARE_ROWS = 4_096  # rows without an item that are not worth a copy of all
_DRAWS_MIN = 64
_IDS = ("id", "id$")
_LOG = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


class Library:
    """The items of an application that declares retrieval. Safe to use from many threads.

    Guaranteed: the same statements make the same items, in any order; `sample` depends on the items alone, not on how
    they came. An item that was removed comes back only by a later statement of the topic of items. Not guaranteed:
    that an item stays after `expire_s` without a statement about it.

    Attributes:
        refused: Items that found no room since the start.
    """

    def __init__(self, app: App, *, items_max: int = ITEMS_MAX) -> None:
        assert app.retrieval is not None
        self._spec, self._items_max, self.refused = app.features, items_max, 0
        seconds = app.retrieval.library.expire_s
        self._expire_ms = None if seconds is None else 1_000 * seconds
        self._step_ms = max(_EXPIRY_STEP_MS, (self._expire_ms or 0) // _EXPIRY_SHARE)
        self._has_texts = app.features.slot(app.features.item_id).value == "str"
        self._lock, self._horizon_ms = threading.RLock(), NEVER_MS
        self._clear()

    def __len__(self) -> int:
        return self._present

    def apply(self, updates: ItemUpdates) -> None:
        """Take statements on items; those from before the horizon of expiry are left out."""
        with self._lock:
            if (is_late := updates.event_ms < self._horizon_ms).any():
                updates = updates.take(np.flatnonzero(~is_late))
            rows = self._rows_for(updates.key, updates.ids)
            if (rows < 0).any():
                updates, rows = updates.take(np.flatnonzero(rows >= 0)), rows[rows >= 0]
            self._merge(updates, rows)
            self._tidy()

    def expire(self, clock_ms: int) -> None:
        """Remove the items without a statement for `expire_s` of event time."""
        if self._expire_ms is None:
            return
        horizon_ms = clock_ms // self._step_ms * self._step_ms - self._expire_ms
        with self._lock:
            if horizon_ms <= self._horizon_ms:
                return
            self._horizon_ms, items = horizon_ms, self._items.view()
            heard_ms = np.maximum(items["event_ms"], items["removed_ms"])[self._index.rows]
            self._drop(heard_ms < horizon_ms)
            self._tidy()

    def find(self, keys: Uint64s) -> tuple[LibraryItems, Bools]:
        """Return the items of those keys that are in the library, in their order, and which keys these are."""
        with self._lock:
            rows = self._index.find(keys)
            is_there = rows >= 0
            is_there[is_there] = self._are_present(rows[is_there])
            return self._items_at(rows[is_there]), is_there

    def sample(self, count: int, seed: int) -> LibraryItems:
        """Return items drawn uniformly, each once, by key; fewer than `count` if some were drawn twice."""
        rng = np.random.default_rng(seed)
        with self._lock:
            if self._present * 4 < len(self._index):
                rows = self._index.rows[self._are_present(self._index.rows)]
                rows = rows[np.unique(rng.integers(0, len(rows), count))] if len(rows) else rows
                return self._items_at(rows)
            ranks = np.zeros(0, np.int64)
            while len(ranks) < count and self._present:
                more = rng.integers(0, len(self._index), max(_DRAWS_MIN, 2 * (count - len(ranks))))
                ranks = np.concatenate((ranks, more[self._are_present(self._index.at(more))]))[:count]
            return self._items_at(self._index.at(np.unique(ranks)))

    def slices(self, size: int) -> Iterator[LibraryItems]:
        """Yield all items as they are now, at most `size` at once."""
        view = self.view()
        for begin in range(0, len(view), size):
            yield view.items(slice(begin, begin + size))

    def view(self) -> LibraryView:
        """Return all items as they are now, without a copy of their features."""
        with self._lock:
            is_there, items = self._are_present(self._index.rows), self._items.view()
            numbers = self._index.rows[is_there]
            ids = {name: column for name, column in items.items() if name in _IDS}
            rows = items["at"][numbers]
            return LibraryView(self._spec, self._index.keys[is_there], rows, numbers, self._features.view(), ids)

    def state(self, key: int) -> dict[str, Any] | None:
        """Return an item with its state, also if it is removed; None if nothing is known of it."""
        with self._lock:
            row = self._index.find(np.array([key], np.uint64))
            if row[0] < 0:
                return None
            found = {name: column[0].item() for name, column in self._columns_at(row).items() if name in STATE}
            return found | {"features": self._items_at(row).features, "is_present": bool(self._are_present(row)[0])}

    def counts(self) -> dict[str, int]:
        """Return how many items there are, by where their features came from; and how many are remembered as removed.

        `newest_ms` is the newest time of all statements, if there is any.
        """
        with self._lock:
            items = take_rows({name: self._items.view()[name] for name in STATE}, self._index.rows)
            is_written = self._are_present(self._index.rows) & (items["origin"] >= WRITTEN)
            newest_ms = np.maximum(items["event_ms"], items["removed_ms"]).max(initial=NEVER_MS)
            written = int(is_written.sum())
            found = {"items": self._present, "shown": self._present - written, "written": written}
            found["removed"] = len(self._index) - self._present
            return found | ({"newest_ms": int(newest_ms)} if len(self._index) else {})

    @property
    def has_changes(self) -> bool:
        """Whether a cut would have something."""
        with self._lock:
            return bool(self._gone) or bool((self._items.view()["changed"] > self._committed).any())

    def cut(self) -> LibraryCut:
        """Return what changed since the newest committed version. It copies only that."""
        with self._lock:
            items, epoch = self._items.view(), self._epoch
            self._epoch += 1
            rows = np.flatnonzero(items["changed"] > self._committed)
            rows = rows[self._index.find(items["key"][rows]) == rows]
            rows = rows[np.argsort(items["key"][rows])]
            gone = np.sort(np.fromiter(self._gone, np.uint64, len(self._gone)))
            is_there, is_revised = self._are_present(rows), items["revised"][rows] > self._committed
            cut = LibraryCut(
                tensors=self._columns_at(rows) | {GONE: gone},
                upserted=items["key"][rows[is_there & is_revised]],
                size=self._present,
                committed=partial(self._commit, epoch),
            )
            if not cut:
                cut.committed()
            return cut

    def restore(self, chain: Chain | None) -> None:
        """Take the items of a version instead of all that are there; None and a version without a library have none.

        Raises:
            VersionDefect: They are damaged, or have other features than the application.
        """
        tensors = None if chain is None else library_in(chain.store, chain.links)
        with self._lock:
            self._clear()
            if tensors is not None and chain is not None:
                self.follow(tensors, chain.head.folder)

    def follow(self, tensors: Columns, path: str) -> None:
        """Take over the items of a version's files, with their state; `path` is for errors.

        Raises:
            VersionDefect: They have other features than the application.
        """
        with self._lock:
            self._check_columns(tensors, path)
            if len(tensors[GONE]):
                self._drop(np.isin(self._index.keys, tensors[GONE]))
            ends = tensors["id$"].astype(np.int32) if self._has_texts else None
            rows = self._rows_for(tensors["key"], ItemIds(tensors["id"], ends))
            kept = np.flatnonzero(rows >= 0)
            columns, rows = take_rows({name: tensors[name] for name in tensors if name != GONE}, kept), rows[kept]
            items, was = self._items.view(), self._are_present(rows)
            for name in STATE:
                items[name][rows] = columns[name]
            self._put_features(rows, {name: columns[name] for name in self._features.view()})
            items["at"][rows[columns["event_ms"] == NEVER_MS]] = 0
            for name in ("changed", "revised"):
                items[name][rows] = self._committed
            self._present += int(self._are_present(rows).sum()) - int(was.sum())
            self._tidy()

    @property
    def size_bytes(self) -> int:
        """The memory that the items take."""
        return self._items.size_bytes + self._features.size_bytes + self._index.size_bytes

    def _clear(self) -> None:
        ids = (
            ItemIds(np.zeros(0, np.uint8), np.zeros(1, np.int32)) if self._has_texts else ItemIds(np.zeros(0, np.int64))
        )
        state = {name: np.zeros(0, dtype) for name, dtype in STATE.items()}
        notes = {"at": np.zeros(0, np.int64), "changed": np.zeros(0, np.int32), "revised": np.zeros(0, np.int32)}
        self._items = GrowingColumns(state | id_columns(ids) | notes)
        # Row 0 is of items of which no features are known.
        self._features = GrowingColumns(no_features(self._spec), 1)
        self._index = KeyIndex()
        self._gone: dict[int, int] = {}
        self._present, self._epoch, self._committed, self._horizon_ms = 0, 1, 0, NEVER_MS

    def _are_present(self, rows: Int64s) -> Bools:
        items = self._items.view()
        removed_ms, written_ms = items["removed_ms"][rows], items["written_ms"][rows]
        are: Bools = (items["at"][rows] > 0) & ((removed_ms == NEVER_MS) | (written_ms > removed_ms))
        return are

    def _rows_for(self, keys: Uint64s, ids: ItemIds) -> Int64s:
        """Return the row of each key, with new rows for new keys; -1 where there is no room."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        rows = self._index.find(distinct)
        new = np.flatnonzero(rows < 0)
        if len(self._index) + len(new) > self._items_max:
            new, room = new[: self._items_max - len(self._index)], len(new)
            if not self.refused:
                _LOG.warning("the library is full: it has %d items, and refuses others", self._items_max)
            self.refused += room - len(new)
        if len(new):
            added, base = distinct[new], self._items.rows
            rows[new] = np.arange(base, base + len(new))
            never, zeros = np.full(len(new), NEVER_MS), np.zeros(len(new), np.int64)
            times = dict.fromkeys(("event_ms", "written_ms", "removed_ms"), never)
            notes = {"origin": zeros.astype(np.uint64), "at": zeros, "changed": zeros, "revised": zeros}
            self._items.append({"key": added} | id_columns(ids.take(first[new])) | times | notes, len(new))
            self._index.add(added, rows[new])
            if self._gone:
                for key in added.tolist():
                    self._gone.pop(key, None)
        return rows[inverse]

    def _merge(self, updates: ItemUpdates, rows: Int64s) -> None:
        """Join statements with the items in these rows."""
        items, touched = self._items.view(), np.unique(rows)
        before = {name: items[name][touched] for name in STATE}
        was = self._are_present(touched)
        is_written = ~updates.is_removal & (updates.origin >= WRITTEN)
        for name, are in (("removed_ms", updates.is_removal), ("written_ms", is_written)):
            np.maximum.at(items[name], rows[are], updates.event_ms[are])
        written = np.flatnonzero(~updates.is_removal)
        self._write(updates.take(written) if len(written) < len(updates) else updates, rows[written])
        are = self._are_present(touched)
        is_changed = np.logical_or.reduce([items[name][touched] != column for name, column in before.items()])
        items["changed"][touched[is_changed]] = self._epoch
        items["revised"][touched[was != are]] = self._epoch
        self._present += int(are.sum()) - int(was.sum())

    def _write(self, updates: ItemUpdates, rows: Int64s) -> None:
        """Give each row the newest of its features."""
        items = self._items.view()
        order = np.lexsort((updates.origin, updates.event_ms, rows))
        order = order[np.append(np.diff(rows[order]) != 0, True)] if len(order) else order
        event_ms, origin, rows = updates.event_ms[order], updates.origin[order], rows[order]
        known_ms = items["event_ms"][rows]
        newer = np.flatnonzero((event_ms > known_ms) | ((event_ms == known_ms) & (origin > items["origin"][rows])))
        rows = rows[newer]
        items["event_ms"][rows], items["origin"][rows] = event_ms[newer], origin[newer]
        features = take_rows(updates.features, order[newer])
        known = take_rows(self._features.view(), items["at"][rows])
        differ = np.flatnonzero(rows_differ(known, features, len(rows)) | (items["at"][rows] == 0))
        self._put_features(rows[differ], take_rows(features, differ))
        items["revised"][rows[differ]] = self._epoch

    def _put_features(self, rows: Int64s, features: Columns) -> None:
        base = self._features.rows
        self._features.append(features, len(rows))
        self._items.view()["at"][rows] = np.arange(base, base + len(rows))

    def _items_at(self, rows: Int64s) -> LibraryItems:
        items = self._items.view()
        keys = items["key"][rows]
        return LibraryItems(keys, features_in(self._spec, take_rows(self._features.view(), items["at"][rows]), keys))

    def _columns_at(self, rows: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Return items with their state, as versions hold them."""
        items = self._items.view()
        stored = {name: column for name, column in items.items() if name in (*STATE, *_IDS)}
        return take_rows(stored, rows) | take_rows(self._features.view(), items["at"][rows])

    def _drop(self, is_gone: Bools) -> None:
        """Forget items, by their places in the order."""
        if not is_gone.any():
            return
        self._present -= int(self._are_present(self._index.rows[is_gone]).sum())
        self._gone |= dict.fromkeys(self._index.keys[is_gone].tolist(), self._epoch)
        self._index.keep(~is_gone)

    def _commit(self, epoch: int) -> None:
        with self._lock:
            self._committed = max(self._committed, epoch)
            self._gone = {key: noted for key, noted in self._gone.items() if noted > epoch}

    def _tidy(self) -> None:
        """Free the rows that no item needs, once there are more of them than others."""
        rows_max = 2 * len(self._index) + _SPARE_ROWS
        if self._items.rows <= rows_max and self._features.rows <= rows_max:
            return
        items = take_rows(self._items.view(), self._index.rows)
        is_known = items["at"] > 0
        rows = np.concatenate((np.zeros(1, np.int64), items["at"][is_known]))
        items["at"] = np.where(is_known, np.cumsum(is_known), 0)
        self._features = GrowingColumns(take_rows(self._features.view(), rows), len(rows))
        self._items, self._index = GrowingColumns(items, len(self._index)), KeyIndex(self._index.keys)

    def unfit(self, tensors: Columns) -> list[str]:
        """Return the columns of a version's library that are not those of the application; none if it fits."""
        expected = self._columns_at(np.zeros(0, np.int64)) | {GONE: np.zeros(0, np.uint64)}
        kinds = [
            {name: (column.dtype.str, column.shape[1:]) for name, column in columns.items()}
            for columns in (tensors, expected)
        ]
        return sorted(name for name in {*tensors, *expected} if kinds[0].get(name) != kinds[1].get(name))

    def _check_columns(self, tensors: Columns, path: str) -> None:
        if differ := self.unfit(tensors):
            what = f"the library of items has other columns than the application: {', '.join(differ)}"
            raise defective(path, "incompatible", what[:2_000])
        keys = keys_of(self._spec.slot(self._spec.item_id), tensors["id"], offsets=tensors.get("id$"))
        if not np.array_equal(keys, tensors["key"]):
            raise defective(path, "corrupted", "the library of items has ids that are not those of its keys")

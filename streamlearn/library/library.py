"""Library: all items of an application in memory, with the newest features of each. It reads no topic and no file.

An item is a join of four maxima: its newest features, by event time and origin; the newest time at which the topic of
items told them; the newest time at which it removed the item; and the key. So neither the order nor the number of times
in which statements come makes a difference.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events import take_rows
from streamlearn.features import keys_of
from streamlearn.library.columns import Columns, GrowingColumns, features_in, id_columns, no_features, rows_differ
from streamlearn.library.items import TOLD, ItemUpdates, LibraryCut, LibraryItems, LibraryView
from streamlearn.samples.item_ids import ItemIds
from streamlearn.versions import Chain
from streamlearn.versions.format.library_files import GONE, STATE, library_in
from streamlearn.versions.store.defect import defective

__all__ = ["ITEMS_MAX", "Library"]

ITEMS_MAX = 10_000_000
"""Most items of a library; later ones are refused and counted."""
NEVER_MS = -(1 << 62)
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
    that an item of which nothing was heard for `expire_s` stays.

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
        """Let items go of which nothing was heard for `expire_s` of event time."""
        if self._expire_ms is None:
            return
        horizon_ms = clock_ms // self._step_ms * self._step_ms - self._expire_ms
        with self._lock:
            if horizon_ms <= self._horizon_ms:
                return
            self._horizon_ms, items = horizon_ms, self._items.view()
            heard_ms = np.maximum(items["event_ms"], items["removed_ms"])[self._rows]
            self._drop(heard_ms < horizon_ms)
            self._tidy()

    def find(self, keys: Uint64s) -> tuple[LibraryItems, Bools]:
        """Return the items of those keys that are in the library, in their order, and which keys these are."""
        with self._lock:
            at, is_known = self._places(keys)
            rows = self._rows[at[is_known]]
            is_known[is_known] = is_there = self._are_present(rows)
            return self._items_at(rows[is_there]), is_known

    def sample(self, count: int, seed: int) -> LibraryItems:
        """Return items by chance, each as likely as any other, perhaps repeatedly; fewer only if there are none."""
        rng = np.random.default_rng(seed)
        with self._lock:
            drawn = np.zeros(0, np.int64)
            if self._present * 4 < len(self._rows):
                rows = self._rows[self._are_present(self._rows)]
                drawn = rows[rng.integers(0, len(rows), count)] if len(rows) else drawn
            while len(drawn) < count and self._present:
                rows = self._rows[rng.integers(0, len(self._rows), max(_DRAWS_MIN, 2 * (count - len(drawn))))]
                drawn = np.concatenate((drawn, rows[self._are_present(rows)]))[:count]
            return self._items_at(drawn)

    def view(self) -> LibraryView:
        """Return all items as they are now, without a copy of their features."""
        with self._lock:
            is_there, items = self._are_present(self._rows), self._items.view()
            numbers = self._rows[is_there]
            ids = {name: column for name, column in items.items() if name in _IDS}
            rows = items["at"][numbers]
            return LibraryView(self._spec, self._keys[is_there], rows, numbers, self._features.view(), ids)

    def state(self, key: int) -> dict[str, Any] | None:
        """Return an item with its state, also if it is removed; None if nothing is known of it."""
        with self._lock:
            at, is_known = self._places(np.array([key], np.uint64))
            if not is_known[0]:
                return None
            row = self._rows[at]
            found = {name: column[0].item() for name, column in self._columns_at(row).items() if name in STATE}
            return found | {"features": self._items_at(row).features, "is_present": bool(self._are_present(row)[0])}

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
            at, is_known = self._places(items["key"][rows])
            rows = rows[is_known & (self._rows[at] == rows)] if len(self._rows) else rows[:0]
            rows = rows[np.argsort(items["key"][rows])]
            gone = np.sort(np.fromiter(self._gone, np.uint64, len(self._gone)))
            is_there, is_revised = self._are_present(rows), items["revised"][rows] > self._committed
            keys = items["key"][rows]
            return LibraryCut(
                tensors=self._columns_at(rows) | {GONE: gone},
                upserted=keys[is_there & is_revised],
                removed=np.union1d(keys[~is_there & is_revised], gone),
                committed=partial(self._commit, epoch),
            )

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
                at, is_known = self._places(tensors[GONE])
                is_gone = np.zeros(len(self._keys), np.bool_)
                is_gone[at[is_known]] = True
                self._drop(is_gone)
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
        return self._items.size_bytes + self._features.size_bytes + self._keys.nbytes + self._rows.nbytes

    def _clear(self) -> None:
        ids = (
            ItemIds(np.zeros(0, np.uint8), np.zeros(1, np.int32)) if self._has_texts else ItemIds(np.zeros(0, np.int64))
        )
        state = {name: np.zeros(0, dtype) for name, dtype in STATE.items()}
        notes = {"at": np.zeros(0, np.int64), "changed": np.zeros(0, np.int32), "revised": np.zeros(0, np.int32)}
        self._items = GrowingColumns(state | id_columns(ids) | notes)
        # Row 0 is of items of which no features are known.
        self._features = GrowingColumns(no_features(self._spec), 1)
        # The keys in their order, and the row of each among the items.
        self._keys, self._rows = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._gone: dict[int, int] = {}
        self._present, self._epoch, self._committed, self._horizon_ms = 0, 1, 0, NEVER_MS

    def _places(self, keys: Uint64s) -> tuple[Int64s, Bools]:
        """Return the place of each key in the order, and whether it is there."""
        if not len(self._keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        order = np.argsort(keys)  # a sorted search stays in the cache
        at = np.empty(len(keys), np.int64)
        at[order] = np.searchsorted(self._keys, keys[order])
        at = np.minimum(at, len(self._keys) - 1)
        return at, self._keys[at] == keys

    def _are_present(self, rows: Int64s) -> Bools:
        items = self._items.view()
        removed_ms, told_ms = items["removed_ms"][rows], items["told_ms"][rows]
        are: Bools = (items["at"][rows] > 0) & ((removed_ms == NEVER_MS) | (told_ms > removed_ms))
        return are

    def _rows_for(self, keys: Uint64s, ids: ItemIds) -> Int64s:
        """Return the row of each key, with new rows for new keys; -1 where there is no room."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        at, is_known = self._places(distinct)
        rows = np.full(len(distinct), -1, np.int64)
        rows[is_known] = self._rows[at[is_known]]
        new = np.flatnonzero(~is_known)
        if len(self._keys) + len(new) > self._items_max:
            new, room = new[: self._items_max - len(self._keys)], len(new)
            self.refused += room - len(new)
            _LOG.warning("the library is full: it has %d items, and refuses others", self._items_max)
        if len(new):
            added, base = distinct[new], self._items.rows
            rows[new] = np.arange(base, base + len(new))
            never, zeros = np.full(len(new), NEVER_MS), np.zeros(len(new), np.int64)
            times = dict.fromkeys(("event_ms", "told_ms", "removed_ms"), never)
            notes = {"origin": zeros.astype(np.uint64), "at": zeros, "changed": zeros, "revised": zeros}
            self._items.append({"key": added} | id_columns(ids.take(first[new])) | times | notes, len(new))
            places = np.searchsorted(self._keys, added)
            self._keys, self._rows = np.insert(self._keys, places, added), np.insert(self._rows, places, rows[new])
            if self._gone:
                for key in added.tolist():
                    self._gone.pop(key, None)
        return rows[inverse]

    def _merge(self, updates: ItemUpdates, rows: Int64s) -> None:
        """Join statements with the items in these rows."""
        items, touched = self._items.view(), np.unique(rows)
        before = {name: items[name][touched] for name in STATE}
        was = self._are_present(touched)
        is_told = ~updates.is_removal & (updates.origin >= TOLD)
        for name, are in (("removed_ms", updates.is_removal), ("told_ms", is_told)):
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
        self._present -= int(self._are_present(self._rows[is_gone]).sum())
        self._gone |= dict.fromkeys(self._keys[is_gone].tolist(), self._epoch)
        self._keys, self._rows = self._keys[~is_gone], self._rows[~is_gone]

    def _commit(self, epoch: int) -> None:
        with self._lock:
            self._committed = max(self._committed, epoch)
            self._gone = {key: noted for key, noted in self._gone.items() if noted > epoch}

    def _tidy(self) -> None:
        """Free the rows that no item needs, once there are more of them than others."""
        rows_max = 2 * len(self._keys) + _SPARE_ROWS
        if self._items.rows <= rows_max and self._features.rows <= rows_max:
            return
        items = take_rows(self._items.view(), self._rows)
        is_known = items["at"] > 0
        rows = np.concatenate((np.zeros(1, np.int64), items["at"][is_known]))
        items["at"] = np.where(is_known, np.cumsum(is_known), 0)
        self._features = GrowingColumns(take_rows(self._features.view(), rows), len(rows))
        self._items, self._rows = GrowingColumns(items, len(self._keys)), np.arange(len(self._keys))

    def _check_columns(self, tensors: Columns, path: str) -> None:
        expected = self._columns_at(np.zeros(0, np.int64)) | {GONE: np.zeros(0, np.uint64)}
        kinds = [
            {name: (column.dtype.str, column.shape[1:]) for name, column in columns.items()}
            for columns in (tensors, expected)
        ]
        if kinds[0] != kinds[1]:
            differ = sorted(name for name in {*tensors, *expected} if kinds[0].get(name) != kinds[1].get(name))
            what = f"the library of items has other columns than the application: {', '.join(differ)}"
            raise defective(path, "incompatible", what[:2_000])
        keys = keys_of(self._spec.slot(self._spec.item_id), tensors["id"], offsets=tensors.get("id$"))
        if not np.array_equal(keys, tensors["key"]):
            raise defective(path, "corrupted", "the library of items has ids that are not those of its keys")

"""TowerRows: finds the positives of a step and the items that compete, packs their rows, and pushes gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from streamlearn.apps import AppFolder
from streamlearn.features.retrieval import TOWERS
from streamlearn.library.library import Library
from streamlearn.ps import PsClient
from streamlearn.samples import FeatureColumns
from streamlearn.table import Packing, Scatter
from streamlearn.table.pin import At
from streamlearn.trainer.columns import StepColumns, join_features
from streamlearn.trainer.thresholds import Thresholds
from streamlearn.trainer.towers.positives import Positives, are_held_out
from streamlearn.trainer.towers.tower_learner import PackedTowers

__all__ = ["TowerRows"]

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
_KEYS_MAX = 1 << 26
_BUCKET_MIN = 32
_POSITIVES_MAX = 4_096


class TowerRows:
    """Packs steps for the towers, and pushes the gradients of packed steps. `pack` and `push` may run at once.

    Positives that are held out are not packed.
    A step with more than `_POSITIVES_MAX` positives is learned by as many of them, spread evenly over it. With
    `is_padded` the numbers of users, items and positives are powers of two.
    """

    def __init__(self, folder: AppFolder, client: PsClient, items: Library, *, is_padded: bool = False) -> None:
        app, settings = folder.app, folder.settings
        assert app.towers is not None
        assert app.retrieval is not None
        self._client, self.items = client, items
        self._negatives, self._seed = settings.retrieval.negatives, settings.trainer.seed
        self._user, self._item = (Packing(side, client) for side in (app.towers.pack.user, app.towers.pack.item))
        self._scatter, self._is_padded = Scatter(client, keys_max=_KEYS_MAX), is_padded
        self._names, self._item_id = {*app.retrieval.user, *app.retrieval.item}, app.features.item_id
        self._label = app.label_names.index(app.retrieval.label)
        counts = {name: count for name, count in settings.tables.admission_counts.items() if name in self._names}
        self._thresholds = Thresholds(app.towers, structs.replace(settings.tables, admission_counts=counts))

    def pack(self, columns: StepColumns) -> PackedTowers | None:
        """Pull the rows of a step's positives and of drawn items; None without positives. Raises as `PsClient.pull`."""
        rows = self.positive_rows(columns)
        rows = rows[~are_held_out(columns.identity[rows])]
        if not len(rows):
            return None
        if len(rows) > _POSITIVES_MAX:  # logits are as many as users times items
            rows = rows[np.linspace(0, len(rows) - 1, _POSITIVES_MAX).astype(np.int64)]
        positives, of_items = self.positives(columns, rows), _columns_for(columns.item, self._names)
        own, first, item_index = np.unique(positives.keys, return_index=True, return_inverse=True)
        # From what is learned alone, so that a run that learns it again draws the same.
        seed = [self._seed, int(columns.identity[rows[0]])]
        keys, drawn = self.items.sample(self._negatives, int(np.random.SeedSequence(seed).generate_state(1)[0]))
        others = np.flatnonzero(~np.isin(keys, own))
        users, requests = positives.users, positives.requests
        items = join_features([of_items.take(rows[first]), drawn.take(others)])
        count, known = len(own) + len(others), len(self.items)
        user_flat, user_sequence = self._packed(self._user, users, requests)
        item_flat, _ = self._packed(self._item, items, count)
        return PackedTowers(
            requests=requests, users=users, items=items, keys=np.concatenate([own, keys[others]]), own=len(own),
            drawn=1.0 - (1.0 - 1.0 / known) ** self._negatives if known else 0.0,
            event_time_ms=columns.event_time_ms[rows], user_flat=user_flat, user_sequence=user_sequence,
            item_flat=item_flat, user_index=self._padded(positives.user_index, np.int32),
            item_index=self._padded(item_index, np.int32),
            weight=self._padded(columns.weights[rows, self._label], np.float32),
        )  # fmt: skip

    def positive_rows(self, columns: StepColumns) -> Int64s:
        """Return the rows of a step whose label has become positive."""
        bit = np.uint32(1 << self._label)
        # A correction says that a row which was learned as negative is positive.
        return np.flatnonzero(((columns.learn | columns.correct) & columns.positive & bit) != 0)

    def positives(self, columns: StepColumns, rows: Int64s) -> Positives:
        """Return some rows of a step as positives."""
        requests, user_index = np.unique(columns.request_index[rows], return_inverse=True)
        users = _columns_for(columns.user, self._names).take(requests.astype(np.int64))
        return Positives(users, len(requests), user_index, columns.item.slots[self._item_id].keys[rows])

    def pack_users(self, users: FeatureColumns, count: int, *, at: At) -> tuple[Float32s, Float32s]:
        """Pull the rows of users and pack them: those of each, and their histories."""
        return self._user.flat(users, count, at=at), self._user.sequences(users, count, at=at)

    def pack_items(self, items: FeatureColumns, count: int, *, at: At = "newest") -> Float32s:
        """Pull the rows of items and pack them."""
        return self._item.flat(items, count, at=at)

    def push(self, packed: PackedTowers, gradients: tuple[Float32s, ...], now_ms: int, rate_scale: float) -> int:
        """Push the gradients of a packed step and return the number of distinct keys; raises as `PsClient.push`."""
        user_flat, user_sequence, item_flat = gradients
        scatter = self._scatter
        scatter.clear()
        scatter.flat(self._user, packed.users, packed.requests, user_flat)
        scatter.sequences(self._user, packed.users, packed.requests, user_sequence)
        scatter.flat(self._item, packed.items, len(packed.keys), item_flat)
        keys, sums, counts = scatter.gradients(TOWERS)
        admit = self._thresholds.runs(TOWERS, keys, {"user": packed.users, "item": packed.items})
        self._client.push(TOWERS, keys, sums, now_ms=now_ms, counts=counts, admit=admit, rate_scale=rate_scale)
        return len(keys)

    def _packed(self, packing: Packing, features: FeatureColumns, rows: int) -> tuple[Float32s, Float32s]:
        side, padded = packing.side, self._size(rows)
        flat = np.empty((padded, side.flat_width), np.float32)
        sequence = np.empty((padded, side.sequence_length, side.sequence_width), np.float32)
        return packing.flat(features, rows, out=flat), packing.sequences(features, rows, out=sequence)

    def _padded(self, values: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
        padded = np.zeros(self._size(len(values)), kind)
        padded[: len(values)] = values
        return padded

    def _size(self, count: int) -> int:
        return max(_BUCKET_MIN, 1 << (count - 1).bit_length()) if self._is_padded else count


def _columns_for(features: FeatureColumns, names: set[str]) -> FeatureColumns:
    """Return some columns of a side's features."""
    slots = {name: slot for name, slot in features.slots.items() if name in names}
    return FeatureColumns(slots, {name: numbers for name, numbers in features.dense.items() if name in names})

"""Rows: pulls a step's rows from the parameter server and pushes their gradients. It knows no graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.ps import PsClient
from streamlearn.settings.tables import TableSettings
from streamlearn.table import Packing, Scatter
from streamlearn.table.derivation import with_derived
from streamlearn.table.pin import At
from streamlearn.table.users_ladder import UsersLadder
from streamlearn.trainer.columns import StepColumns
from streamlearn.trainer.learner import Packed
from streamlearn.trainer.thresholds import Thresholds

__all__ = ["Rows"]

Float32s = npt.NDArray[np.float32]
_KEYS_MAX = 1 << 26


class Rows:
    """Packs steps from rows, and pushes the gradients of packed steps to the rows.

    Every step is padded to `step_rows` rows, so that all have one shape. `tables` sets how often a key must occur
    before it gets a row; the default is once. `pack` and `push` may run in two threads at once, one step each.
    """

    def __init__(self, app: App, client: PsClient, step_rows: int, tables: TableSettings | None = None) -> None:
        self._client, self._step_rows = client, step_rows
        self._thresholds = Thresholds(app.features, tables or TableSettings())
        self._plan = app.features.pack
        self._user, self._item = (Packing(side, client) for side in (app.features.pack.user, app.features.pack.item))
        self._scatter = Scatter(client, keys_max=_KEYS_MAX)
        self._ladder = UsersLadder(step_rows)
        self._loss_weights = [float(label.loss_weight) for label in app.labels]
        self._outputs = app.outputs

    def pack(self, columns: StepColumns, *, at: At = "newest") -> Packed:
        """Pull the rows of a step and pack them; raises as `PsClient.pull` does."""
        rows, requests = len(columns), columns.requests
        padded, users = self._step_rows, self._ladder.holds(requests)
        user, item = self._user.side, self._item.side
        user_flat = np.empty((users, user.flat_width), np.float32)
        user_sequence = np.empty((users, user.sequence_length, user.sequence_width), np.float32)
        item_flat = np.empty((padded, item.flat_width), np.float32)
        item_sequence = np.empty((padded, item.sequence_length, item.sequence_width), np.float32)
        of_users, of_items = with_derived(self._plan, columns.user, columns.item, columns.request_index)
        self._user.flat(of_users, requests, at=at, out=user_flat)
        self._user.sequences(of_users, requests, at=at, out=user_sequence)
        self._item.flat(of_items, rows, at=at, out=item_flat)
        self._item.sequences(of_items, rows, at=at, out=item_sequence)
        user_index = np.zeros(padded, np.int32)
        user_index[:rows] = columns.request_index
        targets = self._targets(columns, padded)
        return Packed(user_flat, user_sequence, item_flat, item_sequence, user_index, targets, rows)

    def push(self, columns: StepColumns, gradients: tuple[Float32s, ...], now_ms: int, rate_scale: float) -> int:
        """Push the gradients of `Packed.sides` and return the number of distinct keys; raises as `PsClient.push` does.

        `now_ms` is table time; `rate_scale` multiplies the rows' learning rate.
        """
        scatter, (user_flat, user_sequence, item_flat, item_sequence) = self._scatter, gradients
        scatter.clear()
        user, item = with_derived(self._plan, columns.user, columns.item, columns.request_index)
        scatter.flat(self._user, user, columns.requests, user_flat)
        scatter.sequences(self._user, user, columns.requests, user_sequence)
        scatter.flat(self._item, item, len(columns), item_flat)
        scatter.sequences(self._item, item, len(columns), item_sequence)
        pushed = 0
        for table in self._client.dims:
            keys, sums, counts = scatter.gradients(table)
            if len(keys):
                admit = self._thresholds.runs(table, keys, {"user": user, "item": item})
                self._client.push(table, keys, sums, now_ms=now_ms, counts=counts, admit=admit, rate_scale=rate_scale)
                pushed += len(keys)
        return pushed

    def _targets(self, columns: StepColumns, padded: int) -> Float32s:
        """Return the targets described by `TARGETS`; padding rows are zero, which adds no loss."""
        rows = len(columns)
        targets = np.zeros((padded, len(self._loss_weights), 4), np.float32)
        for label, loss_weight in enumerate(self._loss_weights):
            bit, channels = np.uint32(1 << label), targets[:rows, label]
            weight = columns.weights[:, label] * np.float32(loss_weight)
            output = self._outputs[label]
            if output.followed is not None:
                # Its output is a probability after the other label: only rows where that one is positive count.
                weight = np.where((columns.known >> np.uint32(output.followed) & 1) != 0, weight, 0.0)
            if output.number is not None and columns.numbers is not None:
                channels[:, 0] = columns.numbers[:, label]
            else:
                channels[:, 0] = (columns.positive & bit) != 0
            channels[:, 1] = np.where((columns.learn & bit) != 0, weight, 0.0)
            channels[:, 2] = np.where((columns.correct & bit) != 0, weight, 0.0)
            channels[:, 3] = np.log(columns.rates[:, label])
            if output.number is not None and columns.before is not None:
                channels[:, 3] = columns.before[:, label]
        return targets

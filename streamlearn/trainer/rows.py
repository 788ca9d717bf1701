"""Rows: pulls a step's rows from the parameter server and pushes their gradients. It knows no graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.ps import PsClient
from streamlearn.ps.slice_part import SlicePart
from streamlearn.settings.tables import TableSettings
from streamlearn.table import Packing, Scatter
from streamlearn.table.derivation import with_derived
from streamlearn.table.pin import At
from streamlearn.table.users_ladder import UsersLadder
from streamlearn.trainer.columns import Inputs, StepColumns
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

    def inputs(self, columns: StepColumns) -> Inputs:
        """Return the inputs of a step's columns."""
        return Inputs(columns.requests, columns.user, columns.item, columns.request_index, self._targets(columns))

    def pack(self, columns: StepColumns, *, at: At = "newest") -> Packed:
        """Pull the rows of a step and pack them; raises as `PsClient.pull` does."""
        return self.pack_inputs(self.inputs(columns), at=at)

    def pack_inputs(self, inputs: Inputs, *, at: At = "newest") -> Packed:
        """Pull the rows of inputs and pack them; raises as `PsClient.pull` does."""
        rows, requests = len(inputs), inputs.requests
        padded, users = self._step_rows, self._ladder.holds(requests)
        user, item = self._user.side, self._item.side
        user_flat = np.empty((users, user.flat_width), np.float32)
        user_sequence = np.empty((users, user.sequence_length, user.sequence_width), np.float32)
        item_flat = np.empty((padded, item.flat_width), np.float32)
        item_sequence = np.empty((padded, item.sequence_length, item.sequence_width), np.float32)
        of_users, of_items = with_derived(self._plan, inputs.user, inputs.item, inputs.request_index)
        self._user.flat(of_users, requests, at=at, out=user_flat)
        self._user.sequences(of_users, requests, at=at, out=user_sequence)
        self._item.flat(of_items, rows, at=at, out=item_flat)
        self._item.sequences(of_items, rows, at=at, out=item_sequence)
        user_index = np.zeros(padded, np.int32)
        user_index[:rows] = inputs.request_index
        # Padding rows have targets of zero, which add no loss.
        targets = np.zeros((padded, *inputs.targets.shape[1:]), np.float32)
        targets[:rows] = inputs.targets
        return Packed(user_flat, user_sequence, item_flat, item_sequence, user_index, targets, rows)

    def push(
        self,
        inputs: StepColumns | Inputs,
        gradients: tuple[Float32s, ...],
        now_ms: int,
        rate_scale: float,
        *,
        part: SlicePart | None = None,
    ) -> int:
        """Push the gradients of `Packed.sides` and return the number of distinct keys; raises as `PsClient.push` does.

        `now_ms` is table time; `rate_scale` multiplies the rows' learning rate. With `part` they belong to a slice.
        """
        scatter, (user_flat, user_sequence, item_flat, item_sequence) = self._scatter, gradients
        scatter.clear()
        user, item = with_derived(self._plan, inputs.user, inputs.item, inputs.request_index)
        scatter.flat(self._user, user, inputs.requests, user_flat)
        scatter.sequences(self._user, user, inputs.requests, user_sequence)
        scatter.flat(self._item, item, len(inputs), item_flat)
        scatter.sequences(self._item, item, len(inputs), item_sequence)
        pushed, client = 0, self._client
        for table in client.dims:
            keys, sums, counts = scatter.gradients(table)
            admit = self._thresholds.runs(table, keys, {"user": user, "item": item})
            if part is not None:
                client.push_part(
                    part, table, keys, sums, now_ms=now_ms, counts=counts, admit=admit, rate_scale=rate_scale
                )
            elif len(keys):
                client.push(table, keys, sums, now_ms=now_ms, counts=counts, admit=admit, rate_scale=rate_scale)
            pushed += len(keys)
        return pushed

    def push_none(self, part: SlicePart, now_ms: int, rate_scale: float, *, is_finite: bool) -> None:
        """Tell the shards that a slice has no gradients; unless they are finite, its step is not applied."""
        for table, dim in self._client.dims.items():
            keys, gradients = np.zeros(0, np.uint64), np.zeros((0, dim), np.float32)
            self._client.push_part(
                part, table, keys, gradients, now_ms=now_ms, rate_scale=rate_scale, is_finite=is_finite
            )

    def _targets(self, columns: StepColumns) -> Float32s:
        """Return the targets described by `TARGETS`."""
        targets = np.zeros((len(columns), len(self._loss_weights), 4), np.float32)
        for label, loss_weight in enumerate(self._loss_weights):
            bit, channels = np.uint32(1 << label), targets[:, label]
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

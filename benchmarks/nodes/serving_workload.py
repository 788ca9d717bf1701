"""Workload: the model and requests that our node and its peers serve: graphs, weights, rows and expected scores.

Peers get row numbers, while our node looks keys up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.serving_folder import GRAPHS, ROWS, WEIGHTS
from streamlearn.features import FeatureSpec
from streamlearn.load.requests import LoadRequests

__all__ = ["Workload"]


@dataclass(frozen=True)
class Workload:
    """A model and requests for it.

    Attributes:
        name: The application's name.
        features: Its features: slots of integers, all of one dim, and at most one history.
        graphs: The folder that `export_graphs` wrote.
        weights: Its dense weights by name.
        rows: (R, dim) the rows of all tables. Row 0 is zeros, for padding of histories.
        first: By slot, the row of its value 0; value v is v rows further. Slots that share keys share rows.
        asked: The requests.
        expected: The probabilities of the candidates of the first requests; at least one request.
    """

    name: str
    features: FeatureSpec
    graphs: Path
    weights: Mapping[str, npt.NDArray[np.float32]]
    rows: npt.NDArray[np.float32]
    first: Mapping[str, int]
    asked: LoadRequests
    expected: Sequence[npt.NDArray[np.float32]]

    def write(self, folder: Path) -> None:
        """Write a peer's files into a folder."""
        (folder / GRAPHS).symlink_to(self.graphs.resolve())
        np.save(folder / ROWS, self.rows)
        np.savez(folder / WEIGHTS, **dict[str, Any](self.weights))

    @cached_property
    def requests(self) -> list[npt.NDArray[np.int32]]:
        """Each request as row numbers: of user slots, of the padded history, of each candidate's slots."""
        user = [slot for slot in self.features.slots if slot.side == "user" and slot.pooling != "sequence"]
        sequence = [slot for slot in self.features.slots if slot.pooling == "sequence"]
        item = [slot for slot in self.features.slots if slot.side == "item"]
        heads = [self._numbers(self.asked.user[slot.name], slot.name)[:, None] for slot in user]
        for slot in sequence:
            numbers = self._numbers(self.asked.user[slot.name], slot.name)
            heads.append(_padded(numbers, self.asked.user[f"{slot.name}[]"], slot.length))
        head = np.concatenate(heads, axis=1)
        items = np.stack([self._numbers(self.asked.item[slot.name], slot.name) for slot in item], axis=1)
        ends = self.asked.offsets
        return [np.concatenate([head[at], items[ends[at] : ends[at + 1]].reshape(-1)]) for at in range(len(self.asked))]

    def _numbers(self, values: npt.NDArray[np.int64], slot: str) -> npt.NDArray[np.int32]:
        numbers: npt.NDArray[np.int32] = (values + self.first[slot]).astype(np.int32)
        assert not len(numbers) or 0 < numbers.min() <= numbers.max() < len(self.rows), (
            f"{slot} has rows for its values"
        )
        return numbers


def _padded(numbers: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int32]:
    """Pad histories with 0 to one length."""
    lengths = np.diff(offsets)
    block = np.zeros((len(lengths), length), np.int32)
    block[np.arange(length) < lengths[:, None]] = numbers
    return block

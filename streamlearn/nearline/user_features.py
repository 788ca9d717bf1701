"""UserFeatures: what is known of users without their interactions: the user side of their newest impressions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamlearn.events.event import Columns, text_at
from streamlearn.features import FeatureSpec, keys_of
from streamlearn.load.requests import LoadRequests
from streamlearn.serving.infer import Tensor

__all__ = ["UserFeatures"]

# A user who is known costs this beside the columns, and an array this.
_USER_BYTES, _ARRAY_BYTES = 250, 120


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some impressions: the columns that a model reads, and who the users are."""

    requests: LoadRequests
    ids: Columns
    keys: list[int]
    bytes: int


class UserFeatures:
    """The newest features of users that a model reads, by the key of the user, without computed columns.

    They take at most `bytes_max` of memory: the users of the oldest impressions are forgotten first.
    """

    def __init__(self, features: FeatureSpec, read: FeatureSpec, bytes_max: int) -> None:
        """Start without users; `features` are those of the application, and `read` those of the model."""
        self._spec, self._name, self._bytes_max = read, features.user_slot, bytes_max
        self._slot = features.slot(self._name)
        computed = {column.name for entity in features.entities for column in entity.columns}
        names = {column.name for column in read.slots_of("user")}
        self._names = (names | {column.name for column in read.dense_of("user")}) - computed
        self._chunks: deque[_Chunk] = deque()
        self._places: dict[int, tuple[_Chunk, int]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, impressions: Columns) -> None:
        """Note the users of impressions, the newest last."""
        # Copies: decoded columns are parts of larger buffers.
        columns = {
            name.removeprefix("user."): np.array(column)
            for name, column in impressions.items()
            if name.startswith("user.") and self._column(name) in {*self._names, self._name}
        }
        ids = {name: column for name, column in columns.items() if name.rstrip("$?") == self._name}
        keys = keys_of(self._slot, ids[self._name], offsets=ids.get(f"{self._name}$")).tolist()
        own = {name: column for name, column in columns.items() if self._column(f"user.{name}") in self._names}
        size = sum(column.nbytes + _ARRAY_BYTES for column in columns.values()) + _USER_BYTES * len(keys)
        chunk = _Chunk(LoadRequests(own, {}, np.zeros(len(keys) + 1, np.int64)), ids, keys, size)
        self._places.update((key, (chunk, row)) for row, key in enumerate(keys))
        self._chunks.append(chunk)
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._chunks) > 1:
            self._forget(self._chunks.popleft())

    def of(self, key: int) -> tuple[Any, tuple[Tensor, ...]] | None:
        """Return the id of a user and the inputs of its features; None if nothing is known of it."""
        place = self._places.get(key)
        if place is None:
            return None
        chunk, row = place
        is_text = self._slot.value == "str"
        user = text_at(chunk.ids, self._name, row) if is_text else int(chunk.ids[self._name][row])
        return user, tuple(chunk.requests.inputs(self._spec, row))

    def _column(self, path: str) -> str:
        """Return the column that an array of impressions belongs to."""
        name = path.removeprefix("user.").rstrip("[]$?")
        return name.removesuffix("_weights") if name not in self._names else name

    def _forget(self, chunk: _Chunk) -> None:
        self.bytes -= chunk.bytes
        for key in chunk.keys:
            if self._places.get(key, (None,))[0] is chunk:
                del self._places[key]

"""Board: the served scores of each shown row, and the users' later actions on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.publisher.logit_scores import auc_of

__all__ = ["Board", "Rows"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rows:
    """Shown rows, each once.

    Attributes:
        event_ms: int64[n]. Event time.
        version: int64[n]. The version that scored the row; 0 for none.
        served: float32[n, labels]. Its scores; NaN for none.
        kept: float32[n, kept, labels]. The scores of each kept version; NaN for none.
        done: bool[n, labels]. The users' actions so far.
    """

    event_ms: npt.NDArray[np.int64]
    version: npt.NDArray[np.int64]
    served: Floats
    kept: Floats
    done: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.event_ms)

    def where(self, chosen: npt.NDArray[np.bool_] | slice) -> Rows:
        """Return the chosen rows."""
        return Rows(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def joined(self, other: Rows) -> Rows:
        """Return these rows followed by others."""
        names = self.__dataclass_fields__
        return Rows(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    @property
    def compared(self) -> Rows:
        """The rows that all versions scored."""
        return self.where(~np.isnan(self.served[:, 0]) & ~np.isnan(self.kept[:, :, 0]).any(axis=1))

    def auc(self, label: int, kept: int | None = None) -> float | None:
        """Return the AUC of a label; None unless there are rows with and without the action.

        Args:
            label: Index of the label.
            kept: Index of the kept version whose scores count; None for the served scores.
        """
        scores, done = self.served[:, label] if kept is None else self.kept[:, kept, label], self.done[:, label]
        is_scored = ~np.isnan(scores)
        scores, done = scores[is_scored], done[is_scored]
        if not len(done) or done.all() or not done.any():
            return None
        return auc_of(scores.astype(np.float64), done, np.ones(len(done)))


class Board:
    """Collects scores and actions of an application, from several threads; `kept` versions are compared."""

    def __init__(self, app: App, kept: int = 1) -> None:
        self._kept = kept
        self._of_action: dict[str, list[int]] = {}
        for at, label in enumerate(app.labels):
            self._of_action.setdefault(label.action, []).append(at)
        self._count, self._lock = len(app.labels), threading.Lock()
        self._row_of: dict[tuple[str, Any], int] = {}
        self._done = [bytearray() for _ in app.labels]
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []

    def __len__(self) -> int:
        return len(self._row_of)

    def shown(
        self,
        keys: Sequence[tuple[str, Any]],
        event_ms: npt.NDArray[np.int64],
        version: npt.NDArray[np.int64],
        served: Floats,
        kept: Floats,
    ) -> None:
        """Add shown rows by request and item; a row that was shown before stays unchanged. Arrays are as in `Rows`."""
        with self._lock:
            new = []
            for at, key in enumerate(keys):
                if key not in self._row_of:
                    self._row_of[key] = len(self._row_of)
                    new.append(at)
            for done in self._done:
                done.extend(bytes(len(new)))
            self._parts.append((event_ms[new], version[new], served[new], kept[new]))

    def did(self, actions: Columns) -> None:
        """Add users' actions."""
        requests, items, kinds = (ids_of(actions, name) for name in ("request_id", "item_id", "action"))
        with self._lock:
            for request, item, action in zip(requests, items, kinds, strict=True):
                row = self._row_of.get((request, item))
                for label in self._of_action.get(action, ()) if row is not None else ():
                    self._done[label][row or 0] = 1

    def keys(self) -> list[tuple[str, Any]]:
        """Return the request and the item of each row, in the order they were shown."""
        with self._lock:
            return list(self._row_of)

    def rows(self, begin: int = 0) -> Rows:
        """Return all rows from `begin` on, in the order they were shown."""
        with self._lock:
            if not self._parts:
                none, served = np.zeros(0, np.int64), np.zeros((0, self._count), np.float32)
                kept = np.zeros((0, self._kept, self._count), np.float32)
                return Rows(none, none, served, kept, np.zeros((0, self._count), np.bool_))
            joined = tuple(np.concatenate([part[at] for part in self._parts]) for at in range(4))
            self._parts = [joined]
            done = np.array([np.frombuffer(bytes(flags), np.uint8) for flags in self._done]).T
        event_ms, version, served, kept = (column[begin:] for column in joined)
        return Rows(event_ms, version, served, kept, done[begin:].astype(np.bool_))

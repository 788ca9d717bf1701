"""ServedLabels: what nodes scored in a replay, and which labels became positive. It computes no figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.load.node_scores import NodeScores

__all__ = ["ServedLabels"]


class ServedLabels:
    """Shown items by request, each once, with the scores of nodes; all are kept in memory.

    An action counts within its label's window. Labels that are numbers are left out. `pin` is a version that nodes have
    ready; empty for the served one.
    """

    def __init__(self, app: App, nodes: NodeScores, pin: str = "") -> None:
        windows_ms = {group.name: group.window_s * 1_000 for group in app.groups}
        self._nodes, self._pin, self._count = nodes, pin, len(app.labels)
        self._labels = [(at, label) for at, label in enumerate(app.labels) if label.number is None]
        self._windows_ms = {at: windows_ms[label.group] for at, label in self._labels}
        self._item, self._latest_ms = f"items.{app.features.item_id}", 0
        self._row_of: dict[tuple[str, Any], int] = {}
        self._shown_ms: list[int] = []
        self._scores: list[npt.NDArray[np.float32]] = []
        self._done: dict[int, set[int]] = {at: set() for at, _ in self._labels}

    def score(self, impressions: Columns, _: int) -> Columns:
        """Return impressions with the scores of nodes; an item that its request had shown before is not noted again."""
        answers = self._nodes.ask(self._nodes.encoded(impressions), self._pin)
        requests, items = ids_of(impressions, "request_id"), ids_of(impressions, self._item)
        of_row = np.repeat(np.arange(len(requests)), answers.candidates).tolist()
        times_ms = impressions["event_time_ms"].tolist()
        new = []
        for at, (row, item) in enumerate(zip(of_row, items, strict=True)):
            if self._row_of.setdefault((requests[row], item), len(self._shown_ms)) == len(self._shown_ms):
                self._shown_ms.append(times_ms[row])
                new.append(at)
        self._scores.append(answers.scores[new])
        self._latest_ms = max(self._latest_ms, *times_ms)
        return self._nodes.scored(impressions, answers)

    def did(self, actions: Columns) -> None:
        """Add actions."""
        names = [ids_of(actions, name) for name in ("request_id", "item_id", "action")]
        times_ms = actions["event_time_ms"].tolist()
        self._latest_ms = max(self._latest_ms, *times_ms)
        for request, item, action, time_ms in zip(*names, times_ms, strict=True):
            row = self._row_of.get((request, item))
            for at, label in self._labels if row is not None else ():
                if label.action == action and 0 <= time_ms - self._shown_ms[row or 0] <= self._windows_ms[at]:
                    self._done[at].add(row or 0)

    def rows(self) -> Iterator[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.bool_]]]:
        """Yield each label, the scores of rows that have one and whose window is over, and which became positive."""
        scores = np.concatenate([np.zeros((0, self._count), np.float32), *self._scores]).astype(np.float64)
        shown_ms = np.array(self._shown_ms, np.int64)
        for at, label in self._labels:
            is_done = np.zeros(len(scores), np.bool_)
            is_done[list(self._done[at])] = True
            counts = ~np.isnan(scores[:, at]) & (shown_ms + self._windows_ms[at] < self._latest_ms)
            yield label.name, scores[counts, at], is_done[counts]

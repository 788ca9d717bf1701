"""ServedLabels: the scores that nodes gave to shown items, and which labels became positive. It computes no figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.events.columns import ids_of
from streamlearn.events.event import Columns
from streamlearn.load.node_scores import NodeAnswers, NodeScores
from streamlearn.replay import History, HistoryBlock

__all__ = ["ServedHistory", "ServedLabels"]


class ServedLabels:
    """Shown items by request, each once; an action counts within its label's window. Numbers are left out."""

    def __init__(self, app: App) -> None:
        windows_ms = {group.name: group.window_s * 1_000 for group in app.groups}
        self._labels = [(at, label) for at, label in enumerate(app.labels) if label.number is None]
        self._windows_ms = {at: windows_ms[label.group] for at, label in self._labels}
        self._count, self._item = len(app.labels), f"items.{app.features.item_id}"
        self._row_of: dict[tuple[str, Any], int] = {}
        self._shown_ms: list[int] = []
        self._scores: list[npt.NDArray[np.float32]] = []
        self._done: dict[int, set[int]] = {at: set() for at, _ in self._labels}

    def shown(self, impressions: Columns, answers: NodeAnswers) -> None:
        """Add impressions with the answers to their requests; an item that its request had shown before is left out."""
        requests, items = ids_of(impressions, "request_id"), ids_of(impressions, self._item)
        of_row = np.repeat(np.arange(len(requests)), answers.candidates).tolist()
        times_ms = impressions["event_time_ms"].tolist()
        new = []
        for at, (row, item) in enumerate(zip(of_row, items, strict=True)):
            if self._row_of.setdefault((requests[row], item), len(self._shown_ms)) == len(self._shown_ms):
                self._shown_ms.append(times_ms[row])
                new.append(at)
        self._scores.append(answers.scores[new])

    def did(self, actions: Columns) -> None:
        """Add actions."""
        names = [ids_of(actions, name) for name in ("request_id", "item_id", "action")]
        for request, item, action, time_ms in zip(*names, actions["event_time_ms"].tolist(), strict=True):
            row = self._row_of.get((request, item))
            for at, label in self._labels if row is not None else ():
                if label.action == action and 0 <= time_ms - self._shown_ms[row or 0] <= self._windows_ms[at]:
                    self._done[at].add(row or 0)

    def rows(self) -> Iterator[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.bool_]]]:
        """Yield, for each label, its name, the scores of all rows that have one, and which of them became positive."""
        scores = np.concatenate([np.zeros((0, self._count), np.float32), *self._scores]).astype(np.float64)
        for at, label in self._labels:
            is_done = np.zeros(len(scores), np.bool_)
            is_done[list(self._done[at])] = True
            is_scored = ~np.isnan(scores[:, at])
            yield label.name, scores[is_scored, at], is_done[is_scored]


class ServedHistory:
    """A history whose requests nodes score before they are written; `score` is for the replayer.

    Attributes:
        labels: What was shown and done so far.
    """

    def __init__(self, app: App, history: History, nodes: NodeScores, pin: str = "") -> None:
        self._history, self._nodes, self._pin = history, nodes, pin
        self.labels = ServedLabels(app)

    @property
    def events_count(self) -> int | None:
        """The approximate number of events."""
        return self._history.events_count

    @property
    def begin_ms(self) -> int:
        """The event time at which events may begin."""
        return self._history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield the history's blocks."""
        for block in self._history.blocks(span_ms):
            yield block
            if block.actions_rows:
                self.labels.did(block.actions)

    def score(self, impressions: Columns, _: int) -> Columns:
        """Return impressions with the scores of the nodes."""
        answers = self._nodes.ask(self._nodes.encoded(impressions), self._pin)
        self.labels.shown(impressions, answers)
        return self._nodes.scored(impressions, answers)

"""SizeMeters: the metrics of padding; the sizes themselves are at a node's `/sizes`."""

from __future__ import annotations

from typing import Any

from streamlearn.telemetry import counter

__all__ = ["SizeMeters"]


class SizeMeters:
    """Rows that graphs were run with.

    Args:
        front: The native front.
    """

    def __init__(self, front: Any) -> None:
        self._front = front
        self.run = counter("serving", "rows", "Rows in the runs of a graph, padding included", ["graph"])
        self.padding = counter("serving", "padding_rows", "Rows of padding in the runs of a graph", ["graph"])
        self._before = ((0, 0), (0, 0))

    def measure(self) -> None:
        """Count what was run since they were last measured."""
        rows = self._front.rows()
        for graph, (run, padding), before in zip(("user", "score"), rows, self._before, strict=True):
            self.run.labels(graph).inc(run - before[0])
            self.padding.labels(graph).inc(padding - before[1])
        self._before = rows

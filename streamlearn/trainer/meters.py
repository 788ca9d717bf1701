"""Meters: the Prometheus metrics of a trainer. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlearn.telemetry import AGES_S, counter, gauge, histogram
from streamlearn.trainer.step import Piece

__all__ = ["Meters"]


class Meters:
    """The trainer metrics of this process; totals count from its start."""

    def __init__(self) -> None:
        self._rows = counter("trainer", "rows", "Rows by outcome", labels=["outcome"])
        self._steps = counter("trainer", "steps", "Steps by outcome", labels=["outcome"])
        self._seconds = counter("trainer", "stage_seconds", "Seconds each stage was busy", labels=["stage"])
        self._restored = counter("trainer", "recoveries", "Recoveries: times all shards were restored after a failure")
        self._rewound = counter("trainer", "rewinds", "Rewinds: times training went back, as a request asked")
        self.requests_refused = counter("trainer", "requests_refused", "Requests that training could not obey")
        self._behind = gauge("trainer", "behind", "records", "Unread messages in the samples topic", ["partition"])
        self._marks = gauge("trainer", "marks", "ratio", "Share of marks.bytes_max in use")
        self._clock = gauge("trainer", "clock", "seconds", "Event time that training has reached, since 1970")
        self._loss = gauge("trainer", "loss", "nats", "Recent mean loss of a row, over all labels")
        help = "Time from when a row was due until it was learned, for the oldest row of each step"
        self._freshness = histogram("trainer", "freshness", "seconds", help, AGES_S)
        self._known: dict[tuple[str, str], float] = {}

    def totals(self, *, rows: Mapping[str, int], steps: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """Set the total rows and steps by outcome, and the busy time of each stage since the stages last started."""
        families = (("rows", self._rows, rows), ("steps", self._steps, steps), ("seconds", self._seconds, seconds))
        for kind, metric, totals in families:
            for name, total in totals.items():
                metric.labels(name).inc(self._since(kind, name, total))

    def learned(self, pieces: Sequence[Piece], wall_ms: int) -> None:
        """Observe how old the rows of a step were when they were learned."""
        if pieces:
            due_ms = min(int(piece.batch.settle_time_ms[piece.rows].min()) for piece in pieces)
            self._freshness.observe((wall_ms - due_ms) / 1_000)

    def state(
        self, *, behind: Mapping[int, int], marks_ratio: float, clock_ms: int | None, recoveries: int, rewinds: int
    ) -> None:
        """Set the gauges of the trainer's state."""
        for partition, count in behind.items():
            self._behind.labels(str(partition)).set(count)
        self._marks.set(marks_ratio)
        if clock_ms is not None:
            self._clock.set(clock_ms / 1e3)
        self._restored.inc(self._since("recoveries", "", recoveries))
        self._rewound.inc(self._since("rewinds", "", rewinds))

    def loss(self, loss: float, rows: int) -> None:
        """Set the mean loss from the running sum of losses and its number of rows."""
        rows_since, loss_since = self._since("loss", "rows", rows), self._since("loss", "sum", loss)
        if rows_since:
            self._loss.set(loss_since / rows_since)

    def _since(self, kind: str, name: str, now: float) -> float:
        """Return the increase since the last call; a total that restarted counts from 0."""
        before = self._known.get((kind, name), 0.0)
        self._known[kind, name] = now
        return now - before if now >= before else now

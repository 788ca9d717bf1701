"""Meters: what a trainer says of itself to prometheus. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlearn.telemetry import AGES_S, counter, gauge, histogram
from streamlearn.trainer.step import Piece

__all__ = ["Meters"]


class Meters:
    """The metrics of the trainer of this process; totals are since it began."""

    def __init__(self) -> None:
        self._rows = counter("trainer", "rows", "Rows by outcome", labels=["outcome"])
        self._steps = counter("trainer", "steps", "Steps by outcome", labels=["outcome"])
        self._seconds = counter("trainer", "stage_seconds", "Seconds each stage was busy", labels=["stage"])
        self._restored = counter("trainer", "recoveries", "Recoveries: times all shards were restored after a failure")
        self._rewound = counter("trainer", "rewinds", "Rewinds: times training went back, as a request asked")
        self.requests_refused = counter("trainer", "requests_refused", "Requests that training could not obey")
        self._behind = gauge("trainer", "behind", "records", "Unread messages in the samples topic")
        self._marks = gauge("trainer", "marks", "ratio", "Share of marks.bytes_max in use")
        self._clock = gauge("trainer", "clock", "seconds", "Event time that training has reached, since 1970")
        self._loss = gauge("trainer", "loss", "nats", "Recent mean loss of a row, over all labels")
        self._freshness = histogram(
            "trainer",
            "freshness",
            "seconds",
            "Time from when a row was due until it was learned, for the oldest row of each step",
            AGES_S,
        )
        self._known: dict[tuple[str, str], float] = {}

    def rows(self, outcomes: Mapping[str, int]) -> None:
        """How many rows there were by now, by outcome."""
        for name, count in outcomes.items():
            self._rows.labels(name).inc(self._since("rows", name, count))

    def learned(self, pieces: Sequence[Piece], wall_ms: int) -> None:
        """A step's rows, and when they were learned."""
        if pieces:
            due_ms = min(int(one.batch.settle_time_ms[one.rows].min()) for one in pieces)
            self._freshness.observe((wall_ms - due_ms) / 1_000)

    def steps(self, outcomes: Mapping[str, int]) -> None:
        """How many steps there were by now, by outcome."""
        for name, count in outcomes.items():
            self._steps.labels(name).inc(self._since("steps", name, count))

    def seconds(self, stages: Mapping[str, float]) -> None:
        """How long each stage was busy by now, of this life of the stages."""
        for name, seconds in stages.items():
            self._seconds.labels(name).inc(self._since("seconds", name, seconds))

    def state(self, *, behind: int, marks_ratio: float, clock_ms: int | None, recoveries: int, rewinds: int) -> None:
        """How it stands."""
        self._behind.set(behind)
        self._marks.set(marks_ratio)
        if clock_ms is not None:
            self._clock.set(clock_ms / 1e3)
        self._restored.inc(self._since("recoveries", "", recoveries))
        self._rewound.inc(self._since("rewinds", "", rewinds))

    def loss(self, loss: float, rows: int) -> None:
        """The sum of all losses and how many rows that is of, by now."""
        rows_since, loss_since = self._since("loss", "rows", rows), self._since("loss", "sum", loss)
        if rows_since:
            self._loss.set(loss_since / rows_since)

    def _since(self, kind: str, name: str, now: float) -> float:
        """What came since this was last asked; counts that began anew count from there."""
        before = self._known.get((kind, name), 0.0)
        self._known[kind, name] = now
        return now - before if now >= before else now

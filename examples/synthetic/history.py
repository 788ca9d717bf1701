"""The history: the generated traffic in blocks, with the true probabilities. `traffic` generates it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamlearn.events import rows_of
from streamlearn.replay import HistoryBlock

from .app import app
from .arrival import Arrival
from .options import Options, options_of
from .pending_rows import Arrived
from .traffic import Traffic
from .world import Arrays

__all__ = ["SyntheticHistory", "Truth", "bayes_log_loss", "history"]

_IMPRESSIONS, _ACTIONS = 200, 300
_TRUTH = ("items.true_click", "items.true_long_view", "items.poisoned")


def history(options: Mapping[str, str]) -> SyntheticHistory:
    """Return generated traffic; see `options.Options`.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return SyntheticHistory(options_of(options))


class Truth(NamedTuple):
    """The truth, which models do not see. Like `items.*` columns, arrays have a value per shown item, with duplicates.

    Attributes:
        click: float32. The probability of a click without poison.
        long_view: float32. The probability of a long view without poison.
        poisoned: bool. Whether the labels are poisoned.
    """

    click: npt.NDArray[np.float32]
    long_view: npt.NDArray[np.float32]
    poisoned: npt.NDArray[np.bool_]


class SyntheticHistory:
    """Traffic with a known truth. It is always the same, however it is cut into blocks."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @property
    def events_count(self) -> int:
        """Approximate number of events."""
        return self._options.events

    @property
    def begin_ms(self) -> int:
        """Event time of the start."""
        return self._options.start_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        """Yield all blocks. A block spans at most `span_ms`, and at most one chunk of the traffic."""
        for block, _ in self.blocks_with_truth(span_ms):
            yield block

    def blocks_with_truth(self, span_ms: int) -> Iterator[tuple[HistoryBlock, Truth]]:
        """Yield the blocks, each with the truth of its impressions."""
        impressions = Arrival(self._options, _IMPRESSIONS, in_order=True)
        actions = Arrival(self._options, _ACTIONS, in_order=False)
        begin_ms = end_ms = self.begin_ms
        for chunk in Traffic(self._options, app.groups[0]).chunks():
            begin_ms, end_ms = chunk.begin_ms, chunk.end_ms
            shown = impressions.give(chunk.impressions, end_ms)
            done = actions.give(chunk.actions, end_ms)
            yield from self._cut(shown, done, (begin_ms, end_ms), span_ms)
        last_ms = [arrival.last_ms for arrival in (impressions, actions) if arrival.last_ms is not None]
        if last_ms:
            yield from self._cut(impressions.rest(), actions.rest(), (end_ms, max(last_ms) + 1), span_ms)

    def _cut(
        self, shown: Arrived | None, done: Arrived | None, period: tuple[int, int], span_ms: int
    ) -> Iterator[tuple[HistoryBlock, Truth]]:
        """Yield the blocks of a period of arrival. Each ends at a multiple of the span, or with the period."""
        begin_ms, end_ms = period
        first = (begin_ms - self.begin_ms) // span_ms + 1
        inner = np.arange(self.begin_ms + first * span_ms, end_ms, span_ms)
        bounds = [begin_ms, *inner.tolist(), end_ms]
        shown_at, done_at = (_bounds(arrived, bounds) for arrived in (shown, done))
        for at, until_ms in enumerate(bounds[1:]):
            impressions = _rows(shown, shown_at[at], shown_at[at + 1])
            truth = Truth(*(impressions.pop(name, np.zeros(0, np.float32)) for name in _TRUTH))
            block = HistoryBlock(
                impressions,
                shown_at[at + 1] - shown_at[at],
                _rows(done, done_at[at], done_at[at + 1]),
                done_at[at + 1] - done_at[at],
                watermark_ms=until_ms - self._options.disorder_ms,
                until_ms=until_ms,
            )
            yield block, truth


def bayes_log_loss(probability: npt.NDArray[np.floating]) -> float:
    """Return the mean log loss of predictions that equal the truth, which is the optimum."""
    sure = np.clip(probability.astype(np.float64), 1e-12, 1 - 1e-12)
    return float(-(sure * np.log(sure) + (1 - sure) * np.log1p(-sure)).mean())


def _bounds(arrived: Arrived | None, bounds: list[int]) -> list[int]:
    if arrived is None:
        return [0] * len(bounds)
    rows: list[int] = np.searchsorted(arrived[1], bounds).tolist()
    return rows


def _rows(arrived: Arrived | None, begin: int, end: int) -> Arrays:
    if arrived is None or begin == end:
        return {}
    columns, arrive_ms = arrived
    return dict(columns) if end - begin == len(arrive_ms) else rows_of(columns, begin, end)

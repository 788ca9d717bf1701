"""The synthetic history as samples in memory, with their true probabilities; the labels are drawn from these.

They are like the samples that ingest would make, but without topics, jobs and waits: labels are known at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from examples.synthetic.history import SyntheticHistory, Truth
from examples.synthetic.options import options_of
from streamlearn.apps import App
from streamlearn.replay import HistoryBlock, computed_history
from streamlearn.samples import LabelColumns, RequestColumns, SampleBatch, SampleHeader
from streamlearn.samples.event_features import features_of
from streamlearn.samples.item_ids import ItemIds

__all__ = ["drawn_batch", "truths"]

# Events per sample, with a margin, because histories end with actions.
_EVENTS_BY_SAMPLE = 0.85
_SPAN_MS, _SEED = 10_000, 7
Truths = npt.NDArray[np.float32]


def truths(app: App, samples: int, options: Mapping[str, str] | None = None) -> Iterator[tuple[SampleBatch, Truths]]:
    """Yield at least `samples` samples in the order of time, with the true probabilities of labels, float32[n, labels].

    `app` must have the events of the synthetic application. Columns that it computes come from the clicks, and not from
    the history. `options` are more options of the history.
    """
    chance = np.random.default_rng(_SEED)
    events = {"events": str(int(samples * _EVENTS_BY_SAMPLE) + 1_000)}
    history = SyntheticHistory(options_of({**(options or {}), **events}))
    made, known = 0, _WithoutComputed(history, app)
    for block in computed_history(known, app).blocks(_SPAN_MS):
        truth = known.truths.popleft()
        if made < samples and block.impressions_rows:
            batch = drawn_batch(app, block, truth, chance)
            made += len(batch)
            yield batch, np.stack([truth.click, truth.long_view], axis=1)


class _WithoutComputed:
    """The history without the columns that an application computes, and the truth of each block that it gave."""

    def __init__(self, history: SyntheticHistory, app: App) -> None:
        computed = [column for entity in app.features.entities for column in entity.columns]
        self._names = {f"{'items' if one.side == 'item' else 'user'}.{one.name}" for one in computed}
        self._history, self.truths = history, deque[Truth]()
        self.events_count, self.begin_ms = history.events_count, history.begin_ms

    def blocks(self, span_ms: int) -> Iterator[HistoryBlock]:
        for block, truth in self._history.blocks_with_truth(span_ms):
            self.truths.append(truth)
            shown = block.impressions.items()
            kept = {name: column for name, column in shown if name.removesuffix("[]") not in self._names}
            yield block._replace(impressions=kept)


def drawn_batch(app: App, block: HistoryBlock, truth: Truth, chance: np.random.Generator) -> SampleBatch:
    """Return the samples of a block, with labels that are drawn from the truth."""
    shown, requests = block.impressions, block.impressions_rows
    counts = np.diff(shown["items[]"])
    request_index = np.repeat(np.arange(requests, dtype=np.int32), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    shown_ms = np.asarray(shown["event_time_ms"], np.int64)
    return SampleBatch(
        header=SampleHeader(app.samples_fingerprint, app.window_settings, "truth", 0, 1, 1, int(shown_ms[-1])),
        requests=RequestColumns(
            partition=np.zeros(requests, np.int32),
            offset=np.arange(requests, dtype=np.int64),
            event_time_ms=shown_ms,
            shown_wall_ms=shown_ms,
            served_version=np.full(requests, -1, np.int64),
        ),
        user=features_of(app.features, "user", shown),
        request_index=request_index,
        item_index=(np.arange(len(request_index)) - begins).astype(np.int32),
        settle_time_ms=shown_ms[request_index],
        item=features_of(app.features, "item", shown),
        labels=_labels(app, truth, chance),
        segments=(),
        item_ids=ItemIds(np.asarray(shown[f"items.{app.features.item_id}"])) if app.retrieval else None,
    )


def _labels(app: App, truth: Truth, chance: np.random.Generator) -> tuple[LabelColumns, ...]:
    """Draw the labels: one number decides both, so that every long view is also a click."""
    drawn, rows = chance.random(len(truth.click)), len(truth.click)
    ones, known = np.ones(rows, np.float32), np.ones(rows, np.uint8)
    values = (drawn < truth.click, drawn < truth.long_view)
    return tuple(
        LabelColumns(label.name, value.astype(np.uint8), known, ones, ones, np.full(rows, np.nan, np.float32))
        for label, value in zip(app.labels, values, strict=True)
    )

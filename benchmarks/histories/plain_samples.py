"""Plain samples: rows of a request each, whose slots have one value and are known by their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App
from streamlearn.features import keys_of
from streamlearn.samples import FeatureColumns, LabelColumns, RequestColumns, SampleBatch, SampleHeader, SlotColumns

__all__ = ["plain_samples"]


def plain_samples(
    app: App, values: Mapping[str, npt.NDArray[Any]], labels: tuple[LabelColumns, ...], begin: int
) -> SampleBatch:
    """Return samples of rows with the values of each slot and the labels; `begin` is the number of the first row."""
    count = len(labels[0].value)
    number = begin + np.arange(count, dtype=np.int64)

    def side(name: Any) -> FeatureColumns:
        slots = app.features.slots_of(name)
        return FeatureColumns({slot.name: SlotColumns(keys_of(slot, values[slot.name].tolist())) for slot in slots}, {})

    return SampleBatch(
        header=SampleHeader(app.samples_fingerprint, app.window_settings, app.name, 0, 1, 1, begin),
        requests=RequestColumns(np.zeros(count, np.int32), number, number, number, np.full(count, -1)),
        user=side("user"),
        request_index=np.arange(count, dtype=np.int32),
        item_index=np.zeros(count, np.int32),
        settle_time_ms=number,
        item=side("item"),
        labels=labels,
        segments=(),
    )

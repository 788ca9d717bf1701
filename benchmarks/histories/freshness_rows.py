"""KuaiRand's week as samples in memory: each impression once, with its final labels, in the order of time.

They are the samples that ingest makes from the replayed week, without topics and jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.replay import computed_history, load_history
from streamlearn.samples import LabelColumns, RequestColumns, SampleBatch, SampleHeader
from streamlearn.samples.event_features import features_of
from streamlearn.samples.item_ids import ItemIds

__all__ = ["Week", "read_week"]

_FOREVER_MS = 10 * 366 * 86_400_000
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Week:
    """All samples.

    Attributes:
        batch: The samples in the order of impressions.
        shown_ms: int64[n], increasing.
        settled_ms: int64[n]. Times at which the labels were known.
        shown: Columns of impressions as the history has them.
        places: int64[requests]. The impression of each request.
    """

    batch: SampleBatch
    shown_ms: Int64s
    settled_ms: Int64s
    shown: Mapping[str, npt.NDArray[Any]]
    places: Int64s


def read_week(folder: AppFolder, *, lag_ms: int | None = None) -> Week:
    """Return the week of an application with a history, without repeated requests; `lag_ms` as `computed_history`."""
    history = computed_history(load_history(folder.folder, {}), folder.app, lag_ms=lag_ms)
    (block,) = history.blocks(_FOREVER_MS)
    shown, done = block.impressions, block.actions
    request = _texts(shown, "request_id")
    first = np.unique(request, return_index=True)[1]
    first = first[np.lexsort((first, shown["event_time_ms"][first]))]
    lengths = np.diff(shown["items[]"])
    counts = lengths[first]
    request_index = np.repeat(np.arange(len(first), dtype=np.int32), counts)
    place = np.arange(len(request_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.repeat(shown["items[]"][:-1][first], counts) + place
    shown_ms = np.asarray(shown["event_time_ms"], np.int64)[first]
    settled_ms = shown_ms[request_index] + 1_000 * folder.app.groups[0].wait_s
    features = folder.app.features
    batch = SampleBatch(
        header=SampleHeader(
            folder.app.samples_fingerprint, folder.app.window_settings, "week", 0, 1, 1, int(settled_ms[-1])
        ),
        requests=RequestColumns(
            partition=np.zeros(len(first), np.int32),
            offset=np.arange(len(first), dtype=np.int64),
            event_time_ms=shown_ms,
            shown_wall_ms=shown_ms,
            served_version=np.full(len(first), -1, np.int64),
        ),
        user=features_of(features, "user", shown).take(first),
        request_index=request_index,
        item_index=place.astype(np.int32),
        settle_time_ms=settled_ms,
        item=features_of(features, "item", shown).take(rows),
        labels=_labels(folder, (request[first][request_index], rows), shown, done),
        segments=(),
        item_ids=ItemIds(np.asarray(shown[f"items.{features.item_id}"])[rows]) if folder.app.retrieval else None,
    )
    return Week(batch, shown_ms[request_index], settled_ms, shown, first)


def _labels(folder: AppFolder, of: tuple[Any, Int64s], shown: Any, done: Any) -> tuple[LabelColumns, ...]:
    """Return the labels: whether the log has the label's action for the item of the request."""
    requests, rows = of
    item = folder.app.features.item_id
    pairs = _pairs(requests, np.asarray(shown[f"items.{item}"])[rows])
    actions, of_actions = _texts(done, "action"), _pairs(_texts(done, "request_id"), np.asarray(done["item_id"]))
    count = len(pairs)
    columns = []
    for label in folder.app.labels:
        value = np.isin(pairs, of_actions[actions == label.action.encode()])
        ones = np.ones(count, np.float32)
        columns.append(
            LabelColumns(
                label.name, value.astype(np.uint8), np.ones(count, np.uint8), ones, ones, np.full(count, np.nan, "f4")
            )
        )
    return tuple(columns)


def _pairs(requests: Any, items: Any) -> Any:
    return np.char.add(np.char.add(requests, b"/"), items.astype("S"))


def _texts(columns: Any, name: str) -> Any:
    """Return a column of texts as an array of bytes."""
    data, at = bytes(np.asarray(columns[name])), columns[f"{name}$"].tolist()
    return np.array([data[begin:end] for begin, end in pairwise(at)])

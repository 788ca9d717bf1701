"""The library of items in memory: a million items, steps that show some of them, and what a version takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.result import Result
from benchmarks.timer import Timer
from streamlearn.apps import App, AppFolder
from streamlearn.events.encoder import EventEncoder
from streamlearn.features import FeatureSpec, Label, LabelGroup, Retrieval, Slot, keys_of
from streamlearn.library.columns import columns_of
from streamlearn.library.item_decoder import ItemDecoder
from streamlearn.library.items import ItemUpdates
from streamlearn.library.library import Library
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.samples.item_ids import ItemIds
from streamlearn.settings import Settings
from streamlearn.topics import Records

__all__ = ["retrieving_app", "run", "shown_items"]

ITEMS, ITEMS_QUICK = 1_000_000, 100_000
STEP_ROWS, NEW, FOUND, RECORDS, PIECE = 1_024, 20, 4_096, 4_096, 16_384
T_MS = 1_700_000_000_000
Int64s = npt.NDArray[np.int64]


def run(quick: bool, note: Callable[[str], None]) -> Result:
    """Measure everything, on one core."""
    items, timer, result = ITEMS_QUICK if quick else ITEMS, Timer(seconds=0.5 if quick else 3.0), Result("library")
    app, chance = retrieving_app(), np.random.default_rng(1)
    library, clock = Library(app), [T_MS]

    def shown(ids: Int64s, author: int = 0) -> ItemUpdates:
        clock[0] += 1_000
        return shown_items(app, ids, clock[0], author)

    def some(count: int) -> Int64s:
        return (items * chance.random(count) ** 3).astype(np.int64)

    def with_new() -> Int64s:
        return np.concatenate((some(STEP_ROWS - NEW), chance.integers(items, 1 << 40, NEW)))

    def measured(name: str, work: Callable[[], object]) -> None:
        result.figures[f"{name}_ms"] = 1e3 / timer.rate(work, 1)

    note(f"{items} items")
    for begin in range(0, items, PIECE):
        library.apply(shown(np.arange(begin, min(begin + PIECE, items))))
    whole = library.cut()
    result.figures["bytes_per_item"] = library.size_bytes / items
    result.figures["bytes_per_item_in_files"] = sum(column.nbytes for column in whole.tensors.values()) / items
    whole.committed()
    keys = library.view().keys[chance.integers(0, items, FOUND)]
    measured("find", lambda: library.find(keys))
    measured("sample", lambda: library.sample(STEP_ROWS, clock[0]))
    measured("view", library.view)
    steps: dict[str, Callable[[], ItemUpdates]] = {
        "step_same": lambda: shown(some(STEP_ROWS)),
        "step_new": lambda: shown(with_new()),
        "step_changed": lambda: shown(some(STEP_ROWS), clock[0]),
    }
    for name, make in steps.items():
        note(name)
        both_s, making_s = timer.duration(partial(_apply, library, make)), timer.duration(make)
        result.figures[f"{name}_ms"] = 1e3 * (both_s - making_s)
    library.cut().committed()
    library.apply(shown(chance.choice(items, items // 10, replace=False).astype(np.int64)))
    measured("cut", library.cut)
    note("records")
    folder = AppFolder(app, Path("/nowhere"), Settings())
    records, decoder = _records(folder), ItemDecoder(folder)
    result.figures["decode_per_s"] = timer.rate(lambda: decoder.decode(records), RECORDS)
    return result


def _apply(library: Library, make: Callable[[], ItemUpdates]) -> None:
    library.apply(make())


def retrieving_app() -> App:
    """Return an application of items with an author and up to three tags."""
    slots = (
        Slot("user_id", "user"),
        Slot("video_id", "item"),
        Slot("author_id", "item"),
        Slot("tags", "item", multi=True),
    )
    retrieval = Retrieval("click", ("user_id",), ("video_id", "author_id", "tags"))
    spec, group = FeatureSpec(slots=slots, item_id="video_id"), LabelGroup("fast", 60, 600)
    return App("library", spec, (group,), (Label("click", "click", "fast"),), retrieval=retrieval)


def shown_items(app: App, ids: Int64s, now_ms: int, author: int) -> ItemUpdates:
    """Return items as a step shows them."""
    keys, counts = keys_of(app.features.slot("video_id"), ids), ids % 4
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    tags = SlotColumns((np.repeat(ids, counts) % 1_000).astype(np.uint64), offsets)
    authors = SlotColumns((ids // 7 + author).astype(np.uint64))
    features = FeatureColumns({"video_id": SlotColumns(keys), "author_id": authors, "tags": tags}, {})
    times, removals = np.full(len(ids), now_ms), np.zeros(len(ids), np.bool_)
    return ItemUpdates(keys, ItemIds(ids), times, keys >> np.uint64(1), removals, columns_of(app.features, features))


def _records(folder: AppFolder) -> Records:
    encoder, numbers = EventEncoder(folder.app, folder.settings.events), np.arange(RECORDS, dtype=np.int64)
    described = ({"author_id": item // 7, "tags": [item % 1_000] * (item % 4)} for item in numbers.tolist())
    given = [
        encoder.item({"item_id": item, "event_time_ms": T_MS + item, "features": one})
        for item, one in zip(numbers.tolist(), described, strict=True)
    ]
    keys, values = zip(*given, strict=True)
    return Records(0, numbers, T_MS + numbers, list(keys), list(values), RECORDS)

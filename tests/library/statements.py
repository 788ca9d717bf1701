"""Statements on items, one by one, and the library that a dict of registers makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streamlearn.apps import App
from streamlearn.features import keys_of
from streamlearn.library.columns import columns_of
from streamlearn.library.items import TOLD, ItemUpdates, LibraryView
from streamlearn.library.library import Library
from streamlearn.samples import FeatureColumns, SlotColumns
from streamlearn.samples.item_ids import ItemIds
from tests.library.place import T_MS

SECOND_MS = 1_000


@dataclass(frozen=True)
class Said:
    """A statement: of which item, at which second, what it says (None: it is removed), and where it stands."""

    item: int
    second: int
    seed: int | None
    place: int
    is_told: bool

    @property
    def origin(self) -> int:
        return self.place | (int(TOLD) if self.is_told else 0)


def statements(items: int = 6, seconds: int = 5, count: int = 24) -> st.SearchStrategy[list[Said]]:
    """Some statements with places of their own, so that equal ones say the same."""
    one = st.tuples(st.integers(0, items - 1), st.integers(0, seconds), st.integers(0, 3), st.sampled_from("stt-"))

    def made(drawn: list[tuple[int, int, int, str]]) -> list[Said]:
        return [
            Said(item, second, None if kind == "-" else seed, place, kind != "s")
            for place, (item, second, seed, kind) in enumerate(drawn)
        ]

    return st.lists(one, max_size=count).map(made)


def ids_for(app: App, items: Sequence[int]) -> ItemIds:
    """The ids of items of the tests."""
    is_text = app.features.slot("video_id").value == "str"
    return ItemIds.of_texts([f"item {item}" for item in items]) if is_text else ItemIds(np.array(items, np.int64))


def keys_for(app: App, items: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Their keys."""
    ids = ids_for(app, items)
    return keys_of(app.features.slot("video_id"), ids.values, offsets=ids.offsets)


def described(seeds: Sequence[int]) -> FeatureColumns:
    """Features of the item side of the small application; each seed has its own."""
    tags = [seed % 3 for seed in seeds]
    offsets = np.concatenate(([0], np.cumsum(tags))).astype(np.int32)
    keys = np.array(
        [100 * seed + at for seed, count in zip(seeds, tags, strict=True) for at in range(count)], np.uint64
    )
    vector = np.repeat(np.array(seeds, np.float32), 3).reshape(-1, 3)
    weighted = SlotColumns(keys + np.uint64(7), offsets, (keys % np.uint64(5)).astype(np.float32))
    return FeatureColumns({"tags": SlotColumns(keys, offsets), "topics": weighted}, {"vector": vector})


def updates_of(app: App, said: Sequence[Said]) -> ItemUpdates:
    """Statements as a library takes them."""
    items = [one.item for one in said]
    return ItemUpdates(
        key=keys_for(app, items),
        ids=ids_for(app, items),
        event_ms=np.array([T_MS + SECOND_MS * one.second for one in said], np.int64),
        origin=np.array([one.origin for one in said], np.uint64),
        is_removal=np.array([one.seed is None for one in said], np.bool_),
        features=columns_of(app.features, described([one.seed or 0 for one in said])),
    )


def registers(said: Sequence[Said]) -> dict[int, int]:
    """The seed of each item's features, of the items that are in the library."""
    written: dict[int, tuple[int, int, int]] = {}
    told: dict[int, int] = {}
    removed: dict[int, int] = {}
    for one in said:
        if one.seed is None:
            removed[one.item] = max(removed.get(one.item, -1), one.second)
            continue
        written[one.item] = max(written.get(one.item, (-1, -1, -1)), (one.second, one.origin, one.seed))
        if one.is_told:
            told[one.item] = max(told.get(one.item, -1), one.second)
    return {
        item: seed
        for item, (_, _, seed) in written.items()
        if item not in removed or told.get(item, -1) > removed[item]
    }


def content(view: LibraryView) -> dict[Any, bytes]:
    """The items of a library by id, with all bytes of their features."""
    found = {}
    for at, item in enumerate(view.ids_of().listed()):
        one = view.items(np.array([at])).features
        parts: list[Any] = [one.dense["vector"]]
        for slot in one.slots.values():
            parts += [slot.keys, slot.offsets, slot.weights]
        found[item] = b"|".join(b"-" if part is None else part.tobytes() for part in parts)
    return found


def library_of(app: App, said: Sequence[Said], cuts: Sequence[int] = ()) -> Library:
    """A library of statements, given in pieces."""
    library = Library(app)
    ends = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    for begin, end in pairwise(ends):
        library.apply(updates_of(app, said[begin:end]))
    return library

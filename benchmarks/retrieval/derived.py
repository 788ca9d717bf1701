"""Vectors that a publish derives from the rows of a sealed version, with all items in memory.

The tables are in the trainer's process. From shards, the rows also travel over TCP, which the trainer waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.result import Result
from benchmarks.retrieval.changes import median_s
from benchmarks.retrieval.vectors import DIM, none
from benchmarks.streams.library_items import retrieving_app, shown_items
from streamlearn.apps import AppFolder
from streamlearn.features.retrieval import TOWERS
from streamlearn.library.library import Library
from streamlearn.settings import Settings
from streamlearn.trainer.evaluation import own_tables
from streamlearn.trainer.towers.item_vectors import ItemVectors
from streamlearn.trainer.towers.tower_steps import TowerMaker

__all__ = ["measure"]

Note = Callable[[str], None]
Keys = npt.NDArray[np.uint64]
_ITEMS, _QUICK_ITEMS, _CHANGED_SHARE, _REPEATS = 1_000_000, 20_000, 10, 3
_PIECE, _NOW_MS = 1 << 14, 1_700_000_000_000


def measure(note: Note, result: Result, *, quick: bool) -> None:
    """Measure the vectors that a publish derives, when the rows of a tenth of the items changed, and all rows."""
    items = _QUICK_ITEMS if quick else _ITEMS
    note("vectors at a publish")
    folder = AppFolder(retrieving_app(), Path("/nowhere"), Settings())
    library = Library(folder.app)
    for begin in range(0, items, _PIECE):
        ids = np.arange(begin, min(begin + _PIECE, items))
        library.apply(shown_items(folder.app, ids, _NOW_MS + begin, 0))
    view, rng = library.view(), np.random.default_rng(3)
    slots = view.items().features.slots
    every = np.unique(np.concatenate([slot.keys for slot in slots.values()]))
    with own_tables(folder) as client:
        for begin in range(0, len(every), _PIECE):
            keys = every[begin : begin + _PIECE]
            client.push(TOWERS, keys, rng.standard_normal((len(keys), DIM), np.float32), now_ms=_NOW_MS)
        result.figures["bytes_per_tower_row_learned"] = client.stats()[0].tables[TOWERS].bytes / len(every)
        client.seal(1)
        tower, newest = TowerMaker(folder, client, library), ItemVectors(DIM)

        def derived(changed: Keys) -> int:
            cut = newest.note(tower, view, none())
            written = cut.tensors(1, changed)
            cut.committed()
            return len(written["key"])

        if derived(none()) != items:
            raise AssertionError(items)
        some = rng.choice(slots["video_id"].keys, items // _CHANGED_SHARE, replace=False)
        for name, changed in (("derive_1e5_s", np.sort(some)), ("derive_1e6_s", every)):
            result.figures[name] = median_s(partial(derived, changed), _REPEATS, clock=time.process_time)

"""The part of the benchmark of serving that needs TensorFlow, in its own process.

`export FOLDER [NAME...]` writes graphs. `bare FOLDER CACHE SETTING...` runs executables alone: for each line with
seconds and numbers of candidates on stdin, it prints a line with the microseconds of each execution.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving_din.app import LENGTH
from streamlearn.apps import load_app
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.ladder import Ladder

__all__ = ["OTHERS", "main"]

OTHERS = {f"serving_din_{width}": width for width in (240, 224, 208, 192)}
"""Other graphs of the same features, like those of a changed model, and the width of their first layer."""

_APPS = Path(__file__).parents[1]


def main(words: list[str]) -> None:
    """Run `export` or `bare`."""
    if words[0] == "export":
        _export(Path(words[1]), words[2:] or ("serving_din", "serving_din_rich", "serving_small"))
    else:
        _bare(Path(words[1]), words[2], words[3:])


def _export(folder: Path, names: Sequence[str]) -> None:
    from streamlearn.models import Din, export_graphs, model_of

    for name in names:
        opened = load_app(_APPS / name, ())
        features, labels = opened.app.features, [label.name for label in opened.app.labels]
        export_graphs(model_of(opened), features, labels, folder / name, outputs=opened.app.outputs)
        if name == "serving_din":
            for other, width in OTHERS.items():
                export_graphs(Din(hidden=(width, 120)), features, labels, folder / other)


def _bare(folder: Path, cache_folder: str, more: Sequence[str]) -> None:
    settings = load_app(_APPS / "serving_din", (f"serving.cache_folder={cache_folder}", *more)).settings.serving
    cache = CompileCache.open(settings)
    from streamlearn.models import load_graphs
    from streamlearn.serving.graphs.definitions import Definitions
    from streamlearn.serving.graphs.executables import CompileBudget, Executables
    from streamlearn.serving.lanes.device import lane_places

    places = lane_places(settings)
    loaded = load_graphs(folder / "serving_din")
    ladder = Ladder.of(settings, loaded.described)
    executables = Executables(Definitions(loaded, ladder.users_max), places, CompileBudget(settings.compiles_max), 1)
    executables.compile_ladder(ladder)
    cache.seal()
    works = {rows: _work(executables, ladder, rows) for rows in ladder.candidates}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        seconds, *counts = json.loads(line)
        until_s, taken = time.monotonic() + seconds, []
        for count in cycle(counts):
            whole, rest = divmod(count, ladder.candidates[-1])
            buckets = [ladder.candidates[-1]] * whole + ([ladder.candidates_bucket(rest)] if rest else [])
            begin_ns = time.perf_counter_ns()
            for rows in buckets:
                executables.score(places[0], works[rows])
            taken.append((time.perf_counter_ns() - begin_ns) / 1e3)
            if time.monotonic() > until_s:
                break
        print(json.dumps(taken), flush=True)


def _work(executables: Any, ladder: Ladder, candidates: int) -> Any:
    from streamlearn.serving.graphs.dense import Dense
    from streamlearn.serving.graphs.executables import item_example, user_example
    from streamlearn.serving.lanes.lane_kind import Work

    described, rng = executables.definitions.described, np.random.default_rng(0)
    named = {weight.name: rng.normal(0, 0.05, weight.shape).astype(np.float32) for weight in described.weights}
    index, *item = item_example(described, candidates)
    user = user_example(described, ladder.users[0], LENGTH)
    for block in (*user, *item):
        block[...] = rng.normal(0, 1, block.shape)
    user[1][..., -1] = 1
    return Work(Dense(described, named, executables.places), user, index, item)


if __name__ == "__main__":
    main(sys.argv[1:])

"""A process that serves: `python -m tests.serving.served TASK ORDER`, with JSON for the order and the answer.

What one process can do only once is done here: TensorFlow's flags, threads and devices.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.settings import ServingSettings
from streamlearn.testing import wait_until

__all__ = ["start_cold", "start_warm"]

COMPILE_S_MAX = 400  # on a busy machine, compiling gets little of the processors
# The compile process, but one that waits for idle processors only for a second: on a busy machine there are none.
IMPATIENT = "import streamlearn.serving.graphs.compile_process as this; this._PATIENCE_S = 1.0; this.main()"


def start_cold(settings: ServingSettings, graphs: Path) -> dict[str, Any]:
    """Start with an empty cache; then have shapes compiled that come often, by a process that is killed in between."""
    cache = CompileCache.open(settings)
    from streamlearn.serving.graphs.compiler import Compiler
    from streamlearn.serving.graphs.ladder import Bucket
    from streamlearn.serving.lanes.device import lane_places
    from tests.models.packed import packed, scores_of
    from tests.serving.made import make, work_of

    made = make("din", graphs, calls_min=2, settings=settings, places=lane_places(settings))
    started = _started(made, cache)
    command = (sys.executable, "-c", IMPATIENT, msgspec.json.encode(settings).decode())
    compiler = Compiler(settings, cache, command=command)
    made.executables.wanted = lambda bucket: compiler.ask(made.executables, graphs / "din", bucket)
    arrays, dense = made.dense()
    processes, worst = [], 0.0
    for candidates in (7, 9):
        inputs = packed(made.spec, 3, candidates)
        work, wanted = work_of(dense, inputs, 4, candidates, 5), scores_of(made.graphs, arrays, inputs)

        def is_compiled(work: Any = work, wanted: Any = wanted, rows: int = candidates) -> bool:
            nonlocal worst
            worst = max(worst, float(abs(made.executables.score(made.place, work) - wanted).max()))
            return made.executables.has(Bucket("score", rows, 5))

        wait_until(is_compiled, "an executable", COMPILE_S_MAX)
        is_compiled()
        assert compiler._process is not None
        process = compiler._process
        processes.append((process.pid, os.getpriority(os.PRIO_PROCESS, process.pid)))
        process.kill()
        process.wait()
    compiler.close()
    later = {"compiles": made.executables.compiles, "processes": processes, "files": _files(cache), "worst": worst}
    return {"started": started, "later": later}


def start_warm(settings: ServingSettings, graphs: Path) -> dict[str, Any]:
    """Start with what another left in the cache, after other things were made; then score with many versions."""
    cache = CompileCache.open(settings)
    import tensorflow as tf

    from streamlearn.serving.lanes.device import lane_places
    from streamlearn.serving.lanes.lanes import Lanes
    from tests.serving.made import make
    from tests.serving.test_lanes import END_S_MAX, Queued, works_of

    places = lane_places(settings)
    for size in range(9):
        tf.function(lambda one: one + 1).get_concrete_function(tf.TensorSpec([size]))
    made = make("din", graphs, settings=settings, places=places)
    started = _started(made, cache)
    works, wanted = works_of(made, 30)
    source = Queued(works)
    assert Lanes(source, made.executables.score, places, 0).join(END_S_MAX)
    worst = max(float(abs(source.given[at][: len(one)] - one).max()) for at, one in enumerate(wanted))
    scored = {"compiles": made.executables.compiles, "files": _files(cache), "worst": worst}
    return {"started": started, "scored": scored, "places": sorted({place.name for place in places})}


def _started(made: Any, cache: CompileCache) -> dict[str, Any]:
    before, begin_s = _files(cache), time.process_time()
    made.executables.compile_ladder(made.ladder)
    compile_s = time.process_time() - begin_s
    cache.seal()
    compiles = made.executables.compiles
    return {"files_before": before, "files": _files(cache), "compiles": compiles, "compile_s": compile_s}


def _files(cache: CompileCache) -> int:
    return len(list(cache.folder.glob("*.pb")))


if __name__ == "__main__":
    order = json.loads(sys.argv[2])
    given = msgspec.convert(order["settings"], ServingSettings)
    task = {"cold": start_cold, "warm": start_warm}[sys.argv[1]]
    print(json.dumps(task(given, Path(order["graphs"]))))

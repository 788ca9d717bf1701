"""A lane process of `run_lanes`: loads both graphs of a single request, and scores for as long as it is told.

Its arguments are the kit, the platform, the folder of serialized executables, and the number of lanes on the device.
Each line of stdin has a number of threads and of seconds; each line of stdout is an answer as JSON, after "ready".
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

_MEMORY_SHARE = 0.8


def main(words: list[str]) -> None:
    """Run a lane until stdin ends."""
    folder, platform, out, lanes = words
    # JAX reads these when it is loaded. A lane is one core of a CPU, and a share of a GPU's memory.
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(_MEMORY_SHARE / int(lanes))
    if platform == "cpu":
        flags = "--xla_cpu_multi_thread_eigen=false"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    from tools.gpu.kit import Kit
    from tools.gpu.pjrt import Pjrt
    from tools.gpu.scoring import Request

    kit, pjrt = Kit.read(Path(folder)), Pjrt(platform)
    request = Request(kit, pjrt, 1)
    pair = []
    for graph in (request.user, request.score):
        file = Path(out) / f"{graph.name}.executable"
        pair.append(pjrt.deserialized(file.read_bytes()) if file.exists() else pjrt.compile(kit, graph))
    arguments = pjrt.put([*kit.weights(request.score), *kit.inputs(request.score)])
    difference = kit.difference(request.score, pjrt.get(pair[1](arguments)))
    request.run(*pair)
    print("ready", flush=True)
    for line in sys.stdin:
        threads, seconds = line.split()
        answer = _score(lambda: request.run(*pair), int(threads), float(seconds))
        print(json.dumps(answer | {"graph": request.score.name, "difference": difference}), flush=True)


def _score(run: Any, threads: int, seconds: float) -> dict[str, float]:
    """Score in some threads, and return the rate and the p99."""
    taken_s: list[float] = []
    until_s = time.perf_counter() + seconds

    def work() -> None:
        while (begin_s := time.perf_counter()) < until_s or not taken_s:
            run()
            taken_s.append(time.perf_counter() - begin_s)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return {"per_s": len(taken_s) / seconds, "p99_ms": sorted(taken_s)[int(len(taken_s) * 0.99)] * 1e3}


if __name__ == "__main__":
    main(sys.argv[1:])

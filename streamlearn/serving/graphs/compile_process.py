"""The compile process: compiles shapes of graphs into the cache, with CPU time that others leave.

`Compiler` starts it. Each line of stdin is a request, each line of stdout an answer, both as JSON. It ends when its
stdin does, also during a compilation.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.niceness import BEHIND_LANES, Courtesy, give_way
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.settings import ServingSettings
from streamlearn.struct_decoder import from_json

if TYPE_CHECKING:
    from streamlearn.serving.graphs.executables import Executables

__all__ = ["CompileAnswer", "CompileRequest", "main"]

# A shape takes the CPU time that lanes leave, and after this time a tenth of a processor: new graphs wait for it.
_PATIENCE_S, _LOOK_S = 30.0, 1.0


class CompileRequest(Struct, frozen=True):
    """A shape to compile, of graphs in the folder `graphs`."""

    graphs: str
    bucket: Bucket


class CompileAnswer(Struct, frozen=True):
    """The result of a request; `error` is empty if it succeeded."""

    error: str = ""


def main() -> None:
    """Answer the requests on stdin; the first argument is the settings as JSON."""
    # Libraries print to stderr; stdout is for answers alone.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    settings = from_json(sys.argv[1], ServingSettings)
    nice = settings.lane_nice + BEHIND_LANES
    give_way(nice)
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()
    courtesy = Courtesy(nice, _PATIENCE_S, SYSTEM_CLOCK)
    threading.Thread(target=_look, args=(courtesy,), daemon=True).start()
    with courtesy.given():
        load_tensorflow()
        executables = _executables(settings)
    answers.write(msgspec.json.encode(CompileAnswer()) + b"\n")
    while True:
        request = from_json(lines.get(), CompileRequest)
        with courtesy.given():
            error = _compile(executables, request)
        answers.write(msgspec.json.encode(CompileAnswer(error)) + b"\n")


def _look(courtesy: Courtesy) -> None:
    while True:
        time.sleep(_LOOK_S)
        courtesy.look()


def _read(stdin: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    for line in stdin:
        lines.put(line)
    os._exit(0)


def _executables(settings: ServingSettings) -> Callable[[str], Executables]:
    """Return a function that loads graphs from a folder, once."""
    from streamlearn.serving.graphs.executables import CompileBudget, load_executables
    from streamlearn.serving.lanes.device import lane_places

    places, budget = lane_places(msgspec.structs.replace(settings, lanes=1)), CompileBudget(settings.compiles_max)

    @cache
    def load(folder: str) -> Executables:
        return load_executables(Path(folder), settings, places, budget)[0]

    return load


def _compile(executables: Callable[[str], Executables], request: CompileRequest) -> str:
    """Compile the shape of a request, and return why that failed; an empty text if it did not."""
    try:
        is_done = executables(request.graphs).compile(request.bucket)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if is_done else "the process has already made serving.compiles_max executables"


if __name__ == "__main__":
    main()

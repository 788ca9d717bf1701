"""The compile process: compiles shapes of graphs, with what processors others leave, so that the cache has them.

`Compiler` starts it, with a request of JSON a line on its stdin and an answer a line on its stdout. It ends when its
stdin does, in the midst of a compilation too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
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

# A shape takes what lanes leave, and after so long a tenth of a processor: a graph that is new waits for this.
_PATIENCE_S, _LOOK_S = 30.0, 1.0


class CompileRequest(Struct, frozen=True):
    """A shape that is wanted.

    Attributes:
        graphs: The folder of exported graphs.
        users_max: As their definitions have it.
        bucket: The shape.
    """

    graphs: str
    users_max: int
    bucket: Bucket


class CompileAnswer(Struct, frozen=True):
    """What became of it.

    Attributes:
        error: Why it failed; empty otherwise.
    """

    error: str = ""


def main() -> None:
    """Do what the lines of stdin ask for; the first argument is the settings as JSON."""
    # What libraries print goes to stderr, answers alone to stdout.
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
        compiles = _Compiles(settings)
    answers.write(msgspec.json.encode(CompileAnswer()) + b"\n")
    while True:
        asked = from_json(lines.get(), CompileRequest)
        with courtesy.given():
            answer = compiles.answer(asked)
        answers.write(msgspec.json.encode(answer) + b"\n")


def _look(courtesy: Courtesy) -> None:
    while True:
        time.sleep(_LOOK_S)
        courtesy.look()


def _read(stdin: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    for line in stdin:
        lines.put(line)
    os._exit(0)


class _Compiles:
    """What is kept from one request to the next."""

    def __init__(self, settings: ServingSettings) -> None:
        from streamlearn.serving.graphs.compile_budget import CompileBudget
        from streamlearn.serving.lanes.device import lane_places

        self._places = lane_places(msgspec.structs.replace(settings, lanes=1))
        self._budget = CompileBudget(settings.compiles_max)
        self._known: dict[tuple[str, int], Executables] = {}

    def answer(self, asked: CompileRequest) -> CompileAnswer:
        """Compile what is asked for."""
        try:
            is_done = self._executables(asked).compile(asked.bucket)
        except Exception as error:
            return CompileAnswer(f"{type(error).__name__}: {error}")
        return CompileAnswer("" if is_done else "the process has already made serving.compiles_max executables")

    def _executables(self, asked: CompileRequest) -> Executables:
        from streamlearn.models import load_graphs
        from streamlearn.serving.graphs.definitions import Definitions
        from streamlearn.serving.graphs.executables import Executables

        which = asked.graphs, asked.users_max
        if which not in self._known:
            definitions = Definitions(load_graphs(Path(asked.graphs)), asked.users_max)
            self._known[which] = Executables(definitions, self._places, self._budget)
        return self._known[which]


if __name__ == "__main__":
    main()

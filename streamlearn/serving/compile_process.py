"""The compile process: compiles shapes of graphs so that the cache has them, at the lowest priority, as it is told to.

`Compiler` starts it, with a request of JSON a line on its stdin and an answer a line on its stdout. It ends when its
stdin does, in the midst of a compilation too.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import msgspec
from msgspec import Struct

from streamlearn.decoding import from_json
from streamlearn.serving.ladder import Bucket
from streamlearn.settings import ServingSettings

__all__ = ["Answer", "CompileRequest", "main"]

# Not SCHED_IDLE: on a busy machine that would wait for ever.
_NICE = 19
# A tenth of the processors where others want them: a graph that is new waits for this.
_SESSION_NICE = 10


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


class Answer(Struct, frozen=True):
    """What became of it.

    Attributes:
        error: Why it failed; empty otherwise.
    """

    error: str = ""


def main() -> None:
    """Do what the lines of stdin ask for; the first argument is the settings as JSON."""
    _give_way()
    # What libraries print goes to stderr, answers alone to stdout.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    settings = from_json(sys.argv[1], ServingSettings)
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()
    _work(settings, lines, answers)


def _give_way() -> None:
    os.nice(_NICE)
    if os.getsid(0) == os.getpid():
        # Linux may share processors out among sessions first, and this is one of its own: niceness within it says
        # nothing then.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_SESSION_NICE))


def _read(stdin: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    for line in stdin:
        lines.put(line)
    os._exit(0)


def _work(settings: ServingSettings, lines: SimpleQueue[bytes], answers: IO[bytes]) -> None:
    from streamlearn.models import load_graphs
    from streamlearn.serving.budget import CompileBudget
    from streamlearn.serving.definitions import Definitions
    from streamlearn.serving.device import lane_places
    from streamlearn.serving.executables import Executables

    places = lane_places(msgspec.structs.replace(settings, lanes=1))
    budget = CompileBudget(settings.compiles_max)
    known: dict[tuple[str, int], Executables] = {}
    answers.write(msgspec.json.encode(Answer()) + b"\n")
    while True:
        asked = from_json(lines.get(), CompileRequest)
        try:
            which = asked.graphs, asked.users_max
            if which not in known:
                definitions = Definitions(load_graphs(Path(asked.graphs)), asked.users_max)
                known[which] = Executables(definitions, places, budget)
            is_done = known[which].compile(asked.bucket)
            answer = Answer("" if is_done else "the process has made serving.compiles_max executables")
        except Exception as error:
            answer = Answer(f"{type(error).__name__}: {error}")
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()

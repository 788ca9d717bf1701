"""Processes that race for numbers, moves and announcements.

Run as a program: `python -m tests.versions.racers WHAT ARGUMENTS`, with WHAT the name of a function below and its
arguments as JSON. It prints `ready`, waits for a line, and prints what it got as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamlearn.settings.versions import RegistrySettings
from streamlearn.versions import Pointer, PointerLog, Store, VersionRef, open_registry, open_store
from streamlearn.versions.pointer.fence import Fence

__all__ = ["announce", "fences", "hear", "moves", "race", "ref"]

_ROOT = Path(__file__).parent.parent.parent


def ref(version: int, run: int = 1) -> VersionRef:
    """The name of a version that no store has."""
    return VersionRef(version=version, run=run, sha256=f"{version:064x}")


def announce(url: str, model: str, seqs: Sequence[int]) -> list[int]:
    """Announce moves; gives those that were newer."""
    with open_registry(url, model, RegistrySettings(reach_s=60)) as registry:
        return [seq for seq in seqs if registry.announce(Pointer(seq=seq, active=ref(seq)))]


def hear(url: str, model: str, upto: int) -> list[tuple[int, float]]:
    """Every move that was heard of, and how long after it was made, in ms; made at `wall_ms` microseconds."""
    heard: list[tuple[int, float]] = []
    seq = 0
    with open_registry(url, model, RegistrySettings(reach_s=60)) as registry:
        while seq < upto:
            found = registry.wait(seq, 240)
            assert found is not None
            seq = found.seq
            heard.append((seq, time.time_ns() / 1e6 - found.wall_ms / 1e3))
    return heard


def fences(store: Store, model: str, count: int) -> list[int]:
    """Take numbers of runs."""
    fence = Fence(store, model)
    return [fence.take("racer") for _ in range(count)]


def moves(store: Store, model: str, by: str, count: int) -> list[int]:
    """Move the pointer; each move counts one on."""
    log = PointerLog(store, model)

    def decide(now: Pointer) -> Pointer:
        version = 0 if now.active is None else now.active.version
        return Pointer(active=ref(version + 1), floor=version)

    return [log.move(decide, by=by).seq for _ in range(count)]


def race(calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Let processes make calls at the same time; gives what each got."""
    command = [sys.executable, "-m", "tests.versions.racers"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": _ROOT}
    racers = [subprocess.Popen([*command, json.dumps(call)], **pipes) for call in calls]  # type: ignore[call-overload]
    try:
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return [json.loads(racer.communicate(timeout=300)[0].splitlines()[-1]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def _main(call: dict[str, Any]) -> None:
    calls: dict[str, Callable[..., object]] = {"announce": announce, "hear": hear, "fences": fences, "moves": moves}
    what = calls[call.pop("what")]
    if "store" in call:
        call["store"] = open_store(call["store"], options=call.pop("options", None))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(what(**call)), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

"""Versions: the cost to publish and to follow one, to start from a base, to compact, and to roll back."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.result import Result
from streamlearn.errors import ServiceError
from streamlearn.versions import Mover, PointerLog, open_registry, open_store
from tools.services import Redis

__all__ = ["run"]

Note = Callable[[str], None]

_ROWS, _CHANGED, _VERSIONS = 10_000_000, 1_000_000, 5
_QUICK_ROWS, _QUICK_CHANGED = 1_000_000, 100_000
_PART_S_MAX = 900
_NODES, _ROLLBACKS = 3, 21
_WAIT_S = 30.0


def run(quick: bool, note: Note) -> Result:
    """Measure everything, on local folders."""
    result = Result("versions")
    rows, changed = (_QUICK_ROWS, _QUICK_CHANGED) if quick else (_ROWS, _CHANGED)
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        store = f"{folder}/store"
        for part in ("publish", "apply", "bootstrap", "compact"):
            note(f"{part}: a model of {rows:,} rows, {changed:,} changed rows a version")
            result.figures |= _part(part, store, str(rows), str(changed), str(_VERSIONS))
    note(f"rollback: {_NODES} nodes, on SQLite")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder:
        result.figures |= _rollbacks(folder, f"sqlite://{folder}/registry.db", "sqlite")
    note(f"rollback: {_NODES} nodes, on Redis")
    with tempfile.TemporaryDirectory(prefix="streamlearn-bench-") as folder, _redis(folder) as url:
        result.figures |= _rollbacks(folder, url, "redis")
    return result


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.ours.streamlearn_versions", *words]


def _part(*words: str) -> dict[str, float]:
    """Measure a part in a separate process and return its figures."""
    done = subprocess.run(_command(*words), stdout=subprocess.PIPE, text=True, timeout=_PART_S_MAX, check=False)
    if done.returncode:
        message = f"{words[0]} ended with status {done.returncode}"
        raise ServiceError(message, help="see its output above")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextmanager
def _redis(folder: str) -> Iterator[str]:
    with Redis.start(Path(folder) / "redis") as service:
        yield service.url


@contextmanager
def _nodes(store: str, registry: str) -> Iterator[None]:
    """Start serving nodes as processes; yield when all are ready."""
    nodes = [
        subprocess.Popen(_command("node", store, registry, f"node-{number}"), stdout=subprocess.PIPE, text=True)
        for number in range(_NODES)
    ]
    try:
        for node in nodes:
            assert node.stdout is not None
            if node.stdout.readline().strip() != "ready":
                message = "a node did not start"
                raise ServiceError(message, help="see its output above")
        yield
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            with suppress(subprocess.TimeoutExpired):
                node.wait(20)
            node.kill()


def _rollbacks(folder: str, registry: str, name: str) -> dict[str, float]:
    """Measure rollbacks, from the write of the pointer to the last node's ack, and the whole command."""
    store = f"{folder}/store"
    _part("small", store, registry)
    from streamlearn.versions.pointer import moves

    with _nodes(store, registry), open_registry(registry, "bench") as opened:
        from streamlearn.versions import History

        known = History(open_store(store), "bench").read()
        mover = Mover(PointerLog(open_store(store), "bench"), opened)
        newest, older = known[-1].version, known[-2].version
        last_ms: list[float] = []
        for _ in range(_ROLLBACKS):
            moved = mover.move(
                lambda now: moves.rollback(now, known, older), by="bench", what="rollback", wait_s=_WAIT_S
            )
            if len(moved.acted) != _NODES:
                message = f"{len(moved.acted)} of {_NODES} nodes followed; silent: {moved.silent}; {moved.said}"
                raise ServiceError(message, help="see the nodes' output above")
            last_ms.append(max(ack.ms for ack in moved.acted))
            mover.move(
                lambda now: moves.promote(now, known, newest, accept=True), by="bench", what="promote", wait_s=_WAIT_S
            )
        command_ms = [_command_ms(store, registry, older, newest) for _ in range(5)]
    return {
        f"rollback_{name}_ms": statistics.median(last_ms),
        f"rollback_{name}_max_ms": max(last_ms),
        f"rollback_{name}_command_ms": statistics.median(command_ms),
    }


def _command_ms(store: str, registry: str, older: int, newest: int) -> float:
    """Return the duration of `streamlearn rollback`."""
    where = ["--store", store, "--registry", registry]
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "streamlearn", "rollback", "bench", "--to", str(older), *where],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    taken_s = time.perf_counter() - begin
    subprocess.run(
        [sys.executable, "-m", "streamlearn", "promote", "bench", str(newest), "--accept", *where],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return taken_s * 1e3

"""A peer: which script measures it, in which environment, and how it is asked from here.

One call measures one or more groups of figures in a process of its own, so that a caller can take turns. It does not
know what the figures mean.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.keys import BATCH_KEYS
from benchmarks.peers.answer import Order
from benchmarks.peers.environment import Environment
from streamlearn.errors import ServiceError, UsageError
from tools.services.cache import Cache
from tools.services.process import log_tail

__all__ = ["PEERS", "Peer", "ask", "ready_peers", "run_peer"]

Note = Callable[[str], None]

_ROOT = Path(__file__).parent.parent.parent
_END_WAIT_S_MAX = 10.0
_ANSWER_BYTES_MAX = 1 << 16
# No peer may look for an accelerator: all of this is about the CPU.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Peer:
    """What our table or our trainer is held against.

    Attributes:
        module: The script, as a module that runs in the peer's environment.
        environment: Where it runs.
        figures: The groups it can measure.
    """

    module: str
    environment: Environment
    figures: tuple[str, ...]


_TENSORFLOW = Environment("tensorflow")
PEERS: dict[str, Peer] = {
    "tfra": Peer("benchmarks.peers.tfra", Environment("tfra"), ("fill", "train", "latency")),
    "dense_hash_table": Peer("benchmarks.peers.tensorflow_tables", _TENSORFLOW, ("fill", "latency")),
    "mutable_hash_table": Peer("benchmarks.peers.tensorflow_tables", _TENSORFLOW, ("fill", "latency")),
    "tensorflow_ps": Peer("benchmarks.peers.tensorflow_ps", _TENSORFLOW, ("remote",)),
    "keras_static": Peer("benchmarks.peers.keras_static", _TENSORFLOW, ("learn", "stock")),
    "keras_plain": Peer("benchmarks.peers.keras_plain", _TENSORFLOW, ("learn",)),
    "tfra_dynamic": Peer("benchmarks.peers.tfra_dynamic", Environment("tfra"), ("learn", "grow")),
    "torch_static": Peer("benchmarks.peers.torch_static", Environment("torch"), ("fill", "train")),
}


def ready_peers(names: Collection[str], note: Note) -> list[str]:
    """Those of the peers whose environments are there or could be built; the others are noted by name.

    Args:
        names: Of `PEERS`.
        note: Told what is being built, and what could not be and why.
    """
    ready, cache = [], Cache()
    for name in names:
        environment = PEERS[name].environment
        try:
            if environment.find(cache) is None:
                note(f"peer {name}: building its environment")
            environment.build(cache)
        except ServiceError as error:
            note(f"peer {name} cannot be had, so there are no ratios to it: {error}")
        else:
            ready.append(name)
    return ready


def run_peer(
    name: str,
    *,
    keys_count: int,
    cores: int,
    figures: Sequence[str],
    note: Note,
    seed: int = 1,
    latency_s: float = 6.0,
    window_steps: int = 30,
    wait_s_max: float = 900.0,
) -> dict[str, float]:
    """Figures of a peer, measured now in a process of its own.

    Args:
        name: Of `PEERS`.
        keys_count: How many keys the table is filled with; whole batches of them.
        cores: How many cores the process may run on: the first of those this one may.
        figures: Which groups: of `fill` and `train`, or `latency` alone.
        note: Told what is being measured.
        seed: Of the keys and of what is asked for.
        latency_s: How long each reader is timed.
        window_steps: How many steps of a trainer are timed together.
        wait_s_max: The bound; after it the process is ended.

    Raises:
        UsageError: The peer does not have that group, or the sizes are impossible.
        ServiceError: Its environment cannot be built, or it failed, gave a wrong row, hung or answered rubbish.
    """
    peer = PEERS[name]
    _check(name, peer, keys_count, cores, figures)
    python = peer.environment.build(Cache())
    order = Order(name, keys_count, tuple(figures), seed, latency_s, window_steps, wait_s_max)
    note(f"peer {name}: {', '.join(figures)} of {keys_count:,} keys on {cores} {'core' if cores == 1 else 'cores'}")
    return ask([str(python), "-m", peer.module], order, cores)


def ask(command: Sequence[str], order: Order, cores: int) -> dict[str, float]:
    """Run a command with an order as its last argument, and take its answer.

    Args:
        command: Program and arguments.
        order: What is asked; its bound is this call's too.
        cores: How many cores the process may run on.

    Raises:
        ServiceError: It failed, did not end in time, or the last line of its stdout is no JSON of finite figures.
    """
    with tempfile.TemporaryDirectory(prefix="streamlearn-peer-") as folder:
        log = Path(folder) / "stderr"
        with log.open("wb") as stderr, _pinned(cores):
            process = subprocess.Popen(
                [*command, order.text()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=_ROOT,
                env=_environment(),
                start_new_session=True,
            )
        try:
            stdout, _ = process.communicate(timeout=order.wait_s_max)
        except subprocess.TimeoutExpired:
            raise _failure(order, f"took longer than {order.wait_s_max:g} s", log) from None
        finally:
            _end(process)
        if process.returncode != 0:
            raise _failure(order, f"ended with status {process.returncode}", log)
        found = _parsed(stdout)
        if found is None:
            raise _failure(order, f"answered {stdout[-200:]!r} instead of a line of figures", log)
    return found


def _check(name: str, peer: Peer, keys_count: int, cores: int, figures: Sequence[str]) -> None:
    unknown = [figure for figure in figures if figure not in peer.figures]
    if unknown or not figures:
        message = f"peer {name} does not measure {', '.join(unknown) or 'nothing'}"
        raise UsageError(message, help=f"choose from {', '.join(peer.figures)}")
    if keys_count <= 0 or keys_count % BATCH_KEYS:
        message = f"{keys_count} keys are not whole batches"
        raise UsageError(message, help=f"give a multiple of {BATCH_KEYS}")
    if "latency" in figures and len(figures) > 1:
        message = f"latency was asked for together with {len(figures) - 1} other figures"
        raise UsageError(message, help="ask for it alone: there each read and write has one core")
    least, most = 2 if "latency" in figures else 1, len(os.sched_getaffinity(0))
    if not least <= cores <= most:
        message = f"{cores} cores were asked for, and this needs {least} and may have {most}"
        raise UsageError(message, help="a reader and a writer need a core each")


@contextmanager
def _pinned(cores: int) -> Iterator[None]:
    """A process started in here begins with its cores, before any library counts them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _environment() -> dict[str, str]:
    """This process's variables without those that would let packages of its own in."""
    foreign = ("PYTHON", "VIRTUAL_ENV", "OMP_", "MKL_", "OPENBLAS_", "TF_", "KERAS_", "TORCH_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | _QUIET | {"PYTHONNOUSERSITE": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started; it leads a group of its own, which nobody else is in."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END_WAIT_S_MAX)
    if process.stdout is not None:
        process.stdout.close()


def _parsed(stdout: bytes) -> dict[str, float] | None:
    """The figures, or None when this is no answer."""
    lines = stdout[-_ANSWER_BYTES_MAX:].splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(found, dict) or not found:
        return None
    good = all(type(value) in (int, float) and math.isfinite(value) for value in found.values())
    return {name: float(value) for name, value in found.items()} if good else None


def _failure(order: Order, what: str, log: Path) -> ServiceError:
    message = f"peer {order.peer} {what}; its stderr ends with\n{log_tail(log)}"
    return ServiceError(message, help="its figures are left out; run it alone with `python -m benchmarks.peers run`")

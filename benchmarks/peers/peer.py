"""Peer: its script and environment, and the call that measures it.

One call measures one or more groups of figures in a separate process, so that a caller can alternate between peers.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.keys import BATCH_KEYS
from benchmarks.peers.answer import Order
from benchmarks.peers.environment import Environment, ready_environments
from streamlearn.errors import ServiceError, UsageError
from tools.services.cache import Cache
from tools.services.process import log_tail

__all__ = ["PEERS", "Peer", "PeerProcess", "ask", "command_of", "peer_variables", "ready_peers", "run_peer"]

Note = Callable[[str], None]

_ROOT = Path(__file__).parent.parent.parent
_END_WAIT_S_MAX = 10.0
_ANSWER_BYTES_MAX = 1 << 16
# Peers must not use an accelerator: they are measured on the CPU.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Peer:
    """A peer of our table, trainer or parameter server.

    Attributes:
        module: The module that runs in the peer's environment.
        environment: The environment.
        figures: The groups of figures that it can measure.
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
    "keras_static_stream": Peer("benchmarks.peers.keras_static", _TENSORFLOW, ("learn",)),
    "keras_plain": Peer("benchmarks.peers.keras_plain", _TENSORFLOW, ("learn",)),
    "tfra_dynamic": Peer("benchmarks.peers.tfra_dynamic", Environment("tfra"), ("learn", "grow")),
    "tfra_stream": Peer("benchmarks.peers.tfra_dynamic", Environment("tfra"), ("learn",)),
    "torch_static": Peer("benchmarks.peers.torch_static", Environment("torch"), ("fill", "train")),
}


def ready_peers(names: Collection[str], note: Note) -> list[str]:
    """Build missing environments of peers, and return the peers that have one. `note` gets failures and progress."""
    return ready_environments({name: PEERS[name].environment for name in names}, note)


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
    """Measure a peer in a separate process, and return its figures.

    Args:
        name: A key of `PEERS`.
        keys_count: Number of keys; a multiple of `BATCH_KEYS`.
        cores: Number of cores of the process: the first ones of this process.
        figures: The groups of figures; `latency` must be alone.
        note: Called with lines of progress.
        seed: Seed of keys and requests.
        latency_s: Duration of each reader.
        window_steps: Number of steps in a window of a trainer.
        wait_s_max: The process is killed after this time.

    Raises:
        UsageError: The peer does not have a group, or the sizes are invalid.
        ServiceError: The environment cannot be built, or the peer failed, returned wrong rows or no figures, or hung.
    """
    order = Order(name, keys_count, tuple(figures), seed, latency_s, window_steps, wait_s_max=wait_s_max)
    note(f"peer {name}: {', '.join(figures)} of {keys_count:,} keys on {cores} {'core' if cores == 1 else 'cores'}")
    return ask(command_of(order, cores), order, cores)


def command_of(order: Order, cores: int) -> list[str]:
    """Return the command of an order's peer, after building its environment if it is missing.

    Raises:
        UsageError: The peer does not have a group, or the sizes are invalid.
        ServiceError: The environment cannot be built.
    """
    peer = PEERS[order.peer]
    _check(order.peer, peer, order.keys_count, cores, order.figures)
    return [str(peer.environment.build(Cache())), "-m", peer.module]


def ask(command: Sequence[str], order: Order, cores: int) -> dict[str, float]:
    """Run a command on a number of cores, with an order as its last argument, and return its figures.

    Raises:
        ServiceError: It failed, did not end within the order's limit, or its last line is not JSON of finite figures.
    """
    with closing(PeerProcess(command, order, cores)) as process:
        return process.end()


class PeerProcess:
    """A process with an order, on a number of cores.

    Raises, from each method:
        ServiceError: It failed, did not end within the order's limit, or a line is not JSON of finite figures.
    """

    def __init__(self, command: Sequence[str], order: Order, cores: int) -> None:
        self._order, self._ends = order, ExitStack()
        folder = self._ends.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-peer-"))
        self._log = Path(folder) / "stderr"
        with self._log.open("wb") as stderr, _pinned(cores):
            self._process = subprocess.Popen(
                [*command, order.text()],
                stdin=subprocess.PIPE if order.in_turns else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=_ROOT,
                env=peer_variables(),
                start_new_session=True,
            )
        self._ends.callback(_end, self._process)
        self._is_waiting = False

    def turn(self) -> dict[str, float]:
        """Let it go on, and return the figures of its next window; the first call waits until it is ready."""
        self._go()
        assert self._process.stdout is not None
        figures = None
        while figures is None:  # the process ends itself within the order's limit
            line = self._process.stdout.readline(_ANSWER_BYTES_MAX)
            if not line.endswith(b"\n"):
                return self.end()  # raises, because it has ended
            figures = _parsed(line)  # libraries print lines too before they can be silenced
        self._is_waiting = True
        return figures

    def end(self) -> dict[str, float]:
        """Let it go on until its end, and return its figures."""
        self._go()
        try:
            stdout, _ = self._process.communicate(timeout=self._order.wait_s_max)
        except subprocess.TimeoutExpired:
            raise _failure(self._order, f"took longer than {self._order.wait_s_max:g} s", self._log) from None
        if self._process.returncode != 0:
            raise _failure(self._order, f"ended with status {self._process.returncode}", self._log)
        lines = stdout[-_ANSWER_BYTES_MAX:].splitlines()
        figures = _parsed(lines[-1]) if lines else None
        if not figures:
            raise _failure(self._order, f"answered {stdout[-200:]!r} instead of a line of figures", self._log)
        return figures

    def close(self) -> None:
        """Kill it if it runs."""
        self._ends.close()

    def _go(self) -> None:
        if self._is_waiting and self._process.stdin is not None:
            with suppress(OSError):  # it has ended, as its output will say
                self._process.stdin.write(b"\n")
                self._process.stdin.flush()
        self._is_waiting = False


def _check(name: str, peer: Peer, keys_count: int, cores: int, figures: Sequence[str]) -> None:
    unknown = [figure for figure in figures if figure not in peer.figures]
    if unknown or not figures:
        message = f"peer {name} does not measure {', '.join(unknown) or 'nothing'}"
        raise UsageError(message, help=f"choose from {', '.join(peer.figures)}")
    if keys_count <= 0 or keys_count % BATCH_KEYS:
        message = f"{keys_count} keys are not a multiple of a batch"
        raise UsageError(message, help=f"give a multiple of {BATCH_KEYS}")
    if "latency" in figures and len(figures) > 1:
        message = f"latency is requested together with {len(figures) - 1} other figures"
        raise UsageError(message, help="request it alone: its reader and writer have one core each")
    least, most = 2 if "latency" in figures else 1, len(os.sched_getaffinity(0))
    if not least <= cores <= most:
        message = f"{cores} cores are requested, outside of {least} to {most}"
        raise UsageError(message, help="a reader and a writer need a core each")


@contextmanager
def _pinned(cores: int) -> Iterator[None]:
    """Pin this process, so that a process started here has its cores before a library counts them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def peer_variables() -> dict[str, str]:
    """Return the environment variables without those that affect packages of the peer."""
    foreign = ("PYTHON", "VIRTUAL_ENV", "OMP_", "MKL_", "OPENBLAS_", "TF_", "KERAS_", "TORCH_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return variables | _QUIET | {"PYTHONNOUSERSITE": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children, which are its process group."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END_WAIT_S_MAX)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _parsed(line: bytes) -> dict[str, float] | None:
    """Return the figures of a line, or None if it has none."""
    try:
        figures = json.loads(line)
    except ValueError:
        return None
    if not isinstance(figures, dict):
        return None
    are_valid = all(type(value) in (int, float) and math.isfinite(value) for value in figures.values())
    return {name: float(value) for name, value in figures.items()} if are_valid else None


def _failure(order: Order, event: str, log: Path) -> ServiceError:
    message = f"peer {order.peer} {event}; its stderr ends with\n{log_tail(log)}"
    return ServiceError(message, help="its figures are missing; run it alone with `python -m benchmarks.peers run`")

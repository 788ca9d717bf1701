"""Peers of our node: mosec and Triton, each with the same model and as many workers as we have lanes.

A peer gets requests from the same `Load` as our node, so that both are measured alike.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from benchmarks.nodes.serving_workload import Workload
from benchmarks.peers.environment import PYTHON_VERSION, Environment, ready_environments
from benchmarks.peers.serving_folder import DELAY_MS, FOLDER, READY, WORKERS
from streamlearn.errors import ServiceError
from streamlearn.load.load_run import Load, LoadPlan
from streamlearn.serving.infer import InferAnswer, InferRequest, numbers_tensor
from tools.services.cache import Cache
from tools.services.process import OwnedProcess

__all__ = ["SERVING_PEERS", "PeerServer", "best_delay_ms", "ready_servers"]

Note = Callable[[str], None]
Scores = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

_ROOT = Path(__file__).parents[2]
_START_WAIT_S_MAX = 300.0
_DIFFERENCE_MAX = 1e-4
_CALLERS, _DELAY_SECONDS = 32, 3
_REQUESTS_MAX = 16
_TICKS_S = os.sysconf("SC_CLK_TCK")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONNOUSERSITE": "1"}


class _Server(Protocol):
    """The parts of a server that differ between peers."""

    environment: Environment
    connections: int
    # The best of these delays is used: the gain by merging depends on the machine and the model.
    delays_ms: tuple[int, ...]

    def command(self, python: Path, folder: Path, workers: int, delay_ms: int) -> tuple[list[str], dict[str, str]]:
        """Write the server's files into the folder; return its command and environment variables."""

    def address(self) -> str:
        """Return the address for `Load`."""

    def message(self, ids: Ids) -> bytes:
        """Encode a request."""

    def scores(self, answer: bytes) -> Scores:
        """Decode the scores of an answer."""

    def clean(self) -> None:
        """Remove files outside of its folder that it may have left."""


class _Mosec:
    """mosec: ids and scores as bytes, over HTTP."""

    environment = Environment("mosec")
    connections = 256
    delays_ms: tuple[int, ...] = (1, 2, 5)  # 0 is its default of 10

    def __init__(self) -> None:
        self._port = _free_port()

    def command(self, python: Path, folder: Path, workers: int, delay_ms: int) -> tuple[list[str], dict[str, str]]:
        options = ["--address", "127.0.0.1", "--port", str(self._port), "--timeout", "30000"]
        # The queue is long enough that mosec refuses no request.
        options += ["--capacity", "10000", "--log-level", "warning", "--path", str(folder / "sockets")]
        return [str(python), "-m", "benchmarks.peers.serving_mosec", *options], {}

    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/inference"

    def message(self, ids: Ids) -> bytes:
        return ids.tobytes()

    def scores(self, answer: bytes) -> Scores:
        return np.frombuffer(answer, "<f4")

    def clean(self) -> None:
        pass


class _Triton:
    """Triton: the Open Inference Protocol over gRPC, with a ragged tensor of ids.

    Triton runs with the Python backend of nvidia-pytriton, where each instance is a process. The callables of pytriton
    itself would be threads of one process.
    """

    environment = Environment("triton", is_system=True)
    connections = 2
    delays_ms: tuple[int, ...] = (0, 1, 3)
    _MODEL = "model"

    def __init__(self) -> None:
        self._port = _free_port()
        self._regions = f"streamlearn-peer-{os.getpid()}-{self._port}-"

    def command(self, python: Path, folder: Path, workers: int, delay_ms: int) -> tuple[list[str], dict[str, str]]:
        packages = python.parent.parent / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
        server, backend = packages / "pytriton" / "tritonserver", folder / "backends" / "python"
        backend.mkdir(parents=True)
        stubs = server / "python_backend_stubs" / PYTHON_VERSION
        for part in (*(server / "backends" / "python").iterdir(), *stubs.iterdir()):
            (backend / part.name).symlink_to(part)
        model = folder / "models" / self._MODEL
        (model / "1").mkdir(parents=True)
        # Triton's interpreter ignores PYTHONPATH.
        paths = f"import sys\nsys.path[:0] = {[str(_ROOT), str(packages)]!r}\n"
        imported = "from benchmarks.peers.serving_triton import TritonPythonModel\n"
        (model / "1" / "model.py").write_text(paths + imported)
        (model / "config.pbtxt").write_text(_CONFIG.format(requests=_REQUESTS_MAX, workers=workers, us=delay_ms * 1000))
        options: dict[str, object] = {"model-repository": folder / "models", "backend-directory": folder / "backends"}
        options |= {
            "grpc-address": "127.0.0.1",
            "grpc-port": self._port,
            "allow-http": "false",
            "allow-metrics": "false",
        }
        options |= {"backend-config": f"python,shm-region-prefix-name={self._regions}"}
        command = [str(server / "bin" / "tritonserver"), "--disable-auto-complete-config"]
        command += [f"--{name}={value}" for name, value in options.items()]
        return command, {
            "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }

    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def message(self, ids: Ids) -> bytes:
        return InferRequest(self._MODEL, (numbers_tensor("ids", ids, (1, len(ids))),)).encode()

    def scores(self, answer: bytes) -> Scores:
        return InferAnswer.decode(answer).outputs["scores"].numbers.reshape(-1)

    def clean(self) -> None:
        # Shared memory that a killed server leaves.
        for region in Path("/dev/shm").glob(f"{self._regions}*"):
            region.unlink()


_CONFIG = """\
backend: "python"
max_batch_size: {requests}
input [ {{ name: "ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: {workers} kind: KIND_CPU }} ]
dynamic_batching {{ max_queue_delay_microseconds: {us} }}
"""

SERVING_PEERS: dict[str, Callable[[], _Server]] = {"mosec": _Mosec, "triton": _Triton}


class PeerServer:
    """A peer that serves a workload, from `start` to `close`.

    Args:
        name: A key of `SERVING_PEERS`.
        workload: The model and requests.
        workers: Number of scoring processes.
        delay_ms: Wait of a request for others to merge with; by default `start` finds the best one.
    """

    def __init__(self, name: str, workload: Workload, *, workers: int = 2, delay_ms: int | None = None) -> None:
        self.name, self.delay_ms = name, delay_ms
        self._workload, self._workers = workload, workers
        self._server = SERVING_PEERS[name]()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: OwnedProcess | None = None
        self._load: Load | None = None

    @property
    def load(self) -> Load:
        """A load with all requests of the workload."""
        assert self._load is not None, "start it first"
        return self._load

    def start(self) -> None:
        """Start the peer, wait until all workers are ready, and check its scores.

        Raises:
            ServiceError: It does not start, or returns other scores.
        """
        python = self._server.environment.build(Cache())
        if self.delay_ms is None:
            self.delay_ms = best_delay_ms(self.name, self._workload, workers=self._workers)
        self._server = SERVING_PEERS[self.name]()  # with a port that is free now
        self._folder = tempfile.TemporaryDirectory(prefix="streamlearn-peer-")
        folder = Path(self._folder.name)
        try:
            self._workload.write(folder)
            command, variables = self._server.command(python, folder, self._workers, self.delay_ms)
            options = {FOLDER: str(folder), WORKERS: str(self._workers), DELAY_MS: str(self.delay_ms)}
            environment = {"PYTHONPATH": str(_ROOT)} | _QUIET | variables | options
            self._process = OwnedProcess(self.name, command, folder, environment=environment)
            self._process.wait_until(lambda: self._is_ready(folder), _START_WAIT_S_MAX)
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the peer and its children; does nothing if it was not started."""
        self._load = None
        process, self._process = self._process, None
        folder, self._folder = self._folder, None
        if process is not None:
            with suppress(ServiceError):
                process.stop()
        self._server.clean()
        if folder is not None:
            folder.cleanup()

    def pause(self) -> None:
        """Pause the peer, so that others have the machine to themselves."""
        self._started.pause()

    def resume(self) -> None:
        """Resume the peer."""
        self._started.resume()

    def cpu_s(self) -> float:
        """Return the CPU time of its processes."""
        return _group_cpu_s(self._started.pid)

    def __enter__(self) -> Self:
        """Start the peer."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the peer."""
        self.close()

    @property
    def _started(self) -> OwnedProcess:
        assert self._process is not None, "start it first"
        return self._process

    def _is_ready(self, folder: Path) -> bool:
        if len(list(folder.glob(f"{READY}-*"))) < self._workers:
            time.sleep(0.2)
            return False
        try:
            messages = [self._server.message(ids) for ids in self._workload.requests]
            self._load = Load(self._server.address(), messages, connections=self._server.connections)
            self._load.ask(0)
        except ServiceError:
            return False
        return True

    def _check(self) -> None:
        """Compare its scores of the first requests with the expected ones."""
        assert self._workload.expected
        for at, expected in enumerate(self._workload.expected):
            scores = self._server.scores(self.load.ask(at))
            if scores.shape != expected.shape or np.abs(scores - expected).max(initial=0) > _DIFFERENCE_MAX:
                message = f"{self.name} scores request {at} as {scores[:4]}, expected {expected[:4]}"
                raise ServiceError(message, help="the peer serves another model: compare the graphs")


def ready_servers(names: Sequence[str], note: Note) -> list[str]:
    """Build missing environments of peers, and return the peers that have one. `note` gets failures and progress."""
    return ready_environments({name: SERVING_PEERS[name]().environment for name in names}, note)


def best_delay_ms(
    name: str,
    workload: Workload,
    note: Note = lambda text: None,
    delays_ms: Sequence[int] = (),
    *,
    workers: int = 2,
) -> int:
    """Return the delay with which a saturated peer answers the most requests.

    Args:
        name: A key of `SERVING_PEERS`.
        workload: The model and requests.
        note: Called with the rate of each delay.
        delays_ms: The delays to try; by default those of the peer.
        workers: Number of scoring processes.

    Raises:
        ServiceError: The peer does not start or answer.
    """
    rates: dict[int, float] = {}
    for delay_ms in delays_ms or SERVING_PEERS[name]().delays_ms:
        with PeerServer(name, workload, workers=workers, delay_ms=delay_ms) as peer:
            run = peer.load.run(LoadPlan("closed", _CALLERS, _DELAY_SECONDS, 1.0))
        rates[delay_ms] = run.ok / run.seconds
        note(f"peer {name} with a delay of {delay_ms} ms: {rates[delay_ms]:,.0f} answers/s to {_CALLERS} callers")
    return max(rates, key=rates.__getitem__)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _group_cpu_s(group: int) -> float:
    """Return the CPU time of the running processes of a group."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_S

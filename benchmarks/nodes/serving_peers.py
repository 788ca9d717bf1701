"""Peers of our node: mosec and Triton, each serving the same model with as many workers as we have lanes.

A peer is started here and asked through the same `Load` as our node, so that whoever measures both measures both
alike. It does not know what is measured.
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
from benchmarks.peers.environment import PYTHON_VERSION, Environment
from benchmarks.peers.serving_folder import DELAY_MS, FOLDER, READY, WORKERS
from streamlearn.errors import ServiceError
from streamlearn.serving.infer import InferAnswer, InferRequest, numbers_tensor
from streamlearn.serving.load.load_run import Load, LoadPlan
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
    """What parts one peer's server from another's."""

    environment: Environment
    connections: int
    # Of these delays the best is quoted: what a request gains by being merged depends on the machine and the model.
    delays_ms: tuple[int, ...]

    def command(self, python: Path, folder: Path, workers: int, delay_ms: int) -> tuple[list[str], dict[str, str]]:
        """Lay down in the folder what it needs; the command that serves, and variables for it."""

    def address(self) -> str:
        """Where it serves, as `Load` takes it."""

    def message(self, ids: Ids) -> bytes:
        """A request."""

    def scores(self, answer: bytes) -> Scores:
        """What an answer holds."""

    def clean(self) -> None:
        """Remove what it may have left outside its folder."""


class _Mosec:
    """Ids and scores as bytes, over HTTP."""

    environment = Environment("mosec")
    connections = 256
    delays_ms: tuple[int, ...] = (1, 2, 5)  # 0 is its default of 10

    def __init__(self) -> None:
        self._port = _free_port()

    def command(self, python: Path, folder: Path, workers: int, delay_ms: int) -> tuple[list[str], dict[str, str]]:
        told = ["--address", "127.0.0.1", "--port", str(self._port), "--timeout", "30000"]
        # A queue as long as a run may be behind: our node is measured with its own bound, and nothing is to be refused.
        told += ["--capacity", "10000", "--log-level", "warning", "--path", str(folder / "sockets")]
        return [str(python), "-m", "benchmarks.peers.serving_mosec", *told], {}

    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/inference"

    def message(self, ids: Ids) -> bytes:
        return ids.tobytes()

    def scores(self, answer: bytes) -> Scores:
        return np.frombuffer(answer, "<f4")

    def clean(self) -> None:
        pass


class _Triton:
    """The Open Inference Protocol over gRPC, and a ragged tensor of ids.

    Triton itself is run, with the Python backend that nvidia-pytriton brings: each instance is a process of its own
    there, where pytriton's own callables are threads of one.
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
        # Its interpreter does not look at PYTHONPATH.
        paths = f"import sys\nsys.path[:0] = {[str(_ROOT), str(packages)]!r}\n"
        imported = "from benchmarks.peers.serving_triton import TritonPythonModel\n"
        (model / "1" / "model.py").write_text(paths + imported)
        (model / "config.pbtxt").write_text(_CONFIG.format(requests=_REQUESTS_MAX, workers=workers, us=delay_ms * 1000))
        told: dict[str, object] = {"model-repository": folder / "models", "backend-directory": folder / "backends"}
        told |= {"grpc-address": "127.0.0.1", "grpc-port": self._port, "allow-http": "false", "allow-metrics": "false"}
        told |= {"backend-config": f"python,shm-region-prefix-name={self._regions}"}
        command = [str(server / "bin" / "tritonserver"), "--disable-auto-complete-config"]
        command += [f"--{name}={value}" for name, value in told.items()]
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
        # Memory it shares with its instances, where it was killed.
        for left in Path("/dev/shm").glob(f"{self._regions}*"):
            left.unlink()


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
        name: Of `SERVING_PEERS`.
        workload: What it serves.
        workers: How many processes score.
        delay_ms: How long a request waits for others to be merged with; by default the one of some with which it
            answers most; these are tried first.
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
        """What it is asked with: all requests of the workload."""
        assert self._load is not None, "it was started"
        return self._load

    def start(self) -> None:
        """Start it, and see that it scores as it should; returns when all workers are ready.

        Raises:
            ServiceError: It cannot be started, or gives other scores.
        """
        python = self._server.environment.build(Cache())
        if self.delay_ms is None:
            self.delay_ms = best_delay_ms(self.name, self._workload, workers=self._workers)
        self._server = SERVING_PEERS[self.name]()  # of a port that is free now
        self._folder = tempfile.TemporaryDirectory(prefix="streamlearn-peer-")
        folder = Path(self._folder.name)
        try:
            self._workload.write(folder)
            command, variables = self._server.command(python, folder, self._workers, self.delay_ms)
            told = {FOLDER: str(folder), WORKERS: str(self._workers), DELAY_MS: str(self.delay_ms)}
            environment = {"PYTHONPATH": str(_ROOT)} | _QUIET | variables | told
            self._process = OwnedProcess(self.name, command, folder, environment=environment)
            self._process.wait_until(lambda: self._is_ready(folder), _START_WAIT_S_MAX)
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it and all it started, for certain; nothing happens when it was not started."""
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
        """Stand still, so that what else is measured has the machine to itself."""
        self._started.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._started.resume()

    def cpu_s(self) -> float:
        """Seconds of CPU that its processes have used."""
        return _group_cpu_s(self._started.pid)

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.close()

    @property
    def _started(self) -> OwnedProcess:
        assert self._process is not None, "it was started"
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
        """That it scores as it should, alone and merged."""
        assert self._workload.expected
        for at, expected in enumerate(self._workload.expected):
            found = self._server.scores(self.load.ask(at))
            if found.shape != expected.shape or np.abs(found - expected).max(initial=0) > _DIFFERENCE_MAX:
                message = f"{self.name} scores request {at} as {found[:4]}, expected {expected[:4]}"
                raise ServiceError(message, help="its figures would be of another model; compare the graphs")


def ready_servers(names: Sequence[str], note: Note) -> list[str]:
    """Those of the peers whose environments are there or could be built; the others are noted by name.

    Args:
        names: Of `SERVING_PEERS`.
        note: Told what is being built, and what could not be and why.
    """
    ready, cache = [], Cache()
    for name in names:
        environment = SERVING_PEERS[name]().environment
        try:
            if environment.find(cache) is None:
                note(f"peer {name}: building its environment")
            environment.build(cache)
        except ServiceError as error:
            note(f"peer {name} cannot be had, so there are no ratios to it: {error}")
        else:
            ready.append(name)
    return ready


def best_delay_ms(
    name: str,
    workload: Workload,
    note: Note = lambda text: None,
    delays_ms: Sequence[int] = (),
    *,
    workers: int = 2,
) -> int:
    """With which delay a peer answers most to callers who keep it busy.

    Args:
        name: Of `SERVING_PEERS`.
        workload: What it serves.
        note: Told what each delay comes to.
        delays_ms: Those that are tried; by default those that make sense for this peer.
        workers: How many processes score.

    Raises:
        ServiceError: It cannot be started, or answers nothing.
    """
    found: dict[int, float] = {}
    for delay_ms in delays_ms or SERVING_PEERS[name]().delays_ms:
        with PeerServer(name, workload, workers=workers, delay_ms=delay_ms) as peer:
            run = peer.load.run(LoadPlan("closed", _CALLERS, _DELAY_SECONDS, 1.0))
        found[delay_ms] = run.ok / run.seconds
        note(f"peer {name} with a delay of {delay_ms} ms: {found[delay_ms]:,.0f} answers/s to {_CALLERS} callers")
    return max(found, key=found.__getitem__)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _group_cpu_s(group: int) -> float:
    """Of all processes of a group, those that ended apart."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_S

"""Hosts: the processes of the loop on several hosts, and faults that end a process or cut a host off."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError
from streamlearn.replay import open_replay_topics
from streamlearn.versions.pointer.model import Model
from tools.chaos.faults import Fault
from tools.chaos.host_service import KAFKA_PORT, REDIS_PORT, UP
from tools.chaos.network import Network
from tools.chaos.run import ChaosOptions, Outcome, run
from tools.chaos.target import Target
from tools.demo import Loop
from tools.services.process import OwnedProcess

__all__ = ["HostsLoop", "figures_of_hosts", "run_on_hosts"]

_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
_TOKEN, _SHARDS, _SHARD_PORT, _LEADER_PORT, _NODE_PORT = "a-token-of-hosts", 2, 7_000, 7_100, 8_001
_READY_S_MAX, _LOOK_S, _CUT_S, _STOP_S_MAX = 240.0, 0.1, 5.0, 60.0
HOSTS = ("services", "shards", "trainer", "worker-1", "node-1", "node-2")


class _Part:
    """A process on a host, which is started again when it ends with an error."""

    def __init__(self, network: Network, host: str, name: str, words: Sequence[str], place: Path) -> None:
        self.name, self._place = name, place
        self._command = network.command(host, [sys.executable, "-m", *words])
        self.process = self._start()

    def keep(self) -> None:
        """Start it again, if it has ended with an error."""
        if not self.process.is_alive() and self.process.exit_status != 0:
            self.process = self._start()

    def wait_said(self, text: str) -> None:
        """Wait until the first process has said a text."""
        self.process.wait_until(lambda: text in self.process.log.read_text(errors="replace"), _READY_S_MAX)

    def _start(self) -> OwnedProcess:
        return OwnedProcess(
            self.name, self._command, self._place, environment=_ENVIRONMENT, stop_wait_s_max=_STOP_S_MAX
        )


class HostsLoop(Loop):
    """The loop on hosts: Kafka and Redis, shards, the trainer with ingest and folding, a worker, and two nodes.

    Versions are in a folder that all hosts share, as a file server gives it.
    """

    def __init__(self, network: Network, folder: AppFolder, changes: Sequence[str], place: Path) -> None:
        self.folder, self.network, self._logs, self.token = folder, network, place / "logs", _TOKEN
        self._logs.mkdir()
        self._changes, self._app = [word for change in changes for word in ("--set", change)], str(folder.folder)
        self._parts, self._lock, self._stack = dict[str, _Part](), threading.Lock(), ExitStack()
        self._is_closing, self._place = threading.Event(), place
        self.on_wait: Callable[[], None] = lambda: None
        self._token_file = place / "token"
        self._token_file.write_text(_TOKEN)
        self._addresses = {(name, "grpc"): f"{network.addresses[name]}:{_NODE_PORT}" for name in ("node-1", "node-2")}
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        try:
            for service in ("kafka", "redis"):
                words = ("tools.chaos.host_service", service, str(place / service), network.addresses["services"])
                self._part("services", service, *words).wait_said(UP)
            self.model = Model(folder.app.name, folder.store_url, folder.registry_url, folder.settings)
            with open_replay_topics(folder):  # creates those that are missing
                pass
        except BaseException:
            self.close()
            raise

    def wait_up(self) -> None:
        """Start the processes of the application, and wait until all are ready."""
        token = ("--token-file", str(self._token_file))
        shards = [f"{self.network.addresses['shards']}:{_SHARD_PORT + number}" for number in range(_SHARDS)]
        for number, address in enumerate(shards):
            place = ("--app", self._app, "--shard", f"{number}/{_SHARDS}", "--listen", address)
            self._verb("shards", f"shard-{number}", "ps", *place, *token)
        quoted = ", ".join(f'"{address}"' for address in shards)
        learns = (self._app, *token, "--set", f"ps.addresses=[{quoted}]")
        self._verb("trainer", "ingest", "ingest", self._app)
        self._verb("trainer", "fold", "features", "fold", self._app)
        self._verb("trainer", "trainer", "train", *learns)
        self._verb("worker-1", "worker-1", "work", *learns)
        for (name, _), address in self._addresses.items():
            self._verb(name, name, "serve", self._app, "--name", name, "--listen", address, "--http", "none", *token)
        for name, _ in self._addresses:
            self._parts[name].wait_said(" is served at grpc ")
        # From now on only its thread looks at processes.
        self._keeper.start()

    def check(self) -> None:
        """Parts are started again, so nothing ends the loop."""

    def pid(self, name: str) -> int:
        """Return the process of a name."""
        file = self._place / name / "pid"
        return int(file.read_text()) if file.exists() else self._parts[name].process.pid

    def has_ended(self, name: str) -> bool:
        """Return whether a process has ended without an error."""
        return self._parts[name].process.exit_status == 0

    def close(self) -> None:
        """End all processes, the last one first."""
        self._is_closing.set()
        if self._keeper.ident:
            self._keeper.join()
        self._stack.close()

    def _verb(self, host: str, name: str, *words: str) -> None:
        verb, *more = words
        self._part(host, name, "streamlearn", verb, *more, *self._changes)

    def _part(self, host: str, name: str, *words: str) -> _Part:
        part = _Part(self.network, host, name, words, self._logs)
        self._stack.callback(lambda: part.process.stop())
        with self._lock:
            self._parts[name] = part
        return part

    def _keep(self) -> None:
        while not self._is_closing.wait(_LOOK_S):
            with self._lock:
                parts = list(self._parts.values())
            for part in parts:
                part.keep()


def run_on_hosts(
    options: ChaosOptions, place: Path, changes: tuple[str, ...], on_progress: Callable[[str], None]
) -> Outcome:
    """Run a chaos test on hosts; this process needs a network namespace of its own: see `apart`."""
    with closing(Network(HOSTS, place)) as network:
        changes = (*_settings(network), *changes)
        return run(options, place, {}, changes, on_progress, start=partial(HostsLoop, network), faults_of=_faults)


def figures_of_hosts(outcome: Outcome) -> dict[str, float]:
    """Return the figures of a run: the worst recovery, and what was lost or doubled."""
    seconds = {name.replace(" ", "_"): max(taken) for name, taken in outcome.recovery_s.items()}
    return {
        "hosts_whole_again_s": max(seconds.values(), default=float("inf")),
        "hosts_lost": float(outcome.lost),
        "hosts_doubled": float(outcome.doubled),
        "hosts_unanswered": float(outcome.unanswered),
        "hosts_violations": float(len(outcome.violations)),
        "hosts_struck_workers": float(outcome.struck("worker")),
        **{f"hosts_{name}_s": value for name, value in seconds.items()},
    }


def _settings(network: Network) -> tuple[str, ...]:
    services = network.addresses["services"]
    redis = f"redis://{services}:{REDIS_PORT}"
    return (
        f"topics.root=kafka://{services}:{KAFKA_PORT}",
        f"registry.url={redis}/0",
        f"features.store={redis}/1",
        "up.workers=1",  # the one that is counted
        f'workers.listen=["{network.addresses["trainer"]}:{_LEADER_PORT}"]',
    )


def _faults(target: Target, away_s: float) -> dict[str, Fault]:
    """Return the faults by name: each role is killed, and each host is cut off for seconds."""
    del away_s
    roles = ("kafka", "redis", "shard-0", "ingest", "fold", "trainer", "worker-1", "node-1")
    faults: dict[str, Fault] = {f"kill {name}": partial(_kill, name=name) for name in roles}
    return faults | {f"cut {host} off for {_CUT_S:.0f} s": partial(_cut, host=host) for host in HOSTS[:-1]}


def _kill(target: Target, name: str) -> None:
    os.kill(target.loop.pid(name), signal.SIGKILL)


def _cut(target: Target, host: str) -> None:
    if not isinstance(target.loop, HostsLoop):
        message = "only hosts can be cut off"
        raise ServiceError(message, help="use --hosts")
    target.loop.network.cut(host)
    try:
        time.sleep(_CUT_S)
    finally:
        target.loop.network.mend(host)

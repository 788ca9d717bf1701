"""A Flink cluster of a job manager and a task manager, from the jars of the job server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.services.cache import Cache
from tools.services.flink import FlinkFiles, FlinkJobServer
from tools.services.ports import LOOPBACK, free_ports
from tools.services.service import Service, launch_on

__all__ = ["FlinkJobs", "FlinkTasks", "flink_cluster"]

_ASK_S_MAX = 30.0
# Flink's scripts compute the last seven memory settings from the size of the process.
_SETTINGS = """\
jobmanager.rpc.address: {host}
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: {host}
taskmanager.host: {host}
taskmanager.bind-host: {host}
taskmanager.numberOfTaskSlots: 4
rest.address: {host}
rest.bind-address: {host}
rest.port: {rest}
classloader.resolve-order: parent-first
state.checkpoints.dir: {folder}/checkpoints
state.savepoints.dir: {folder}/savepoints
taskmanager.cpu.cores: 2
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 512m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 64m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
"""


class _Part(Service):
    """One process of the cluster.

    Args:
        folder: A folder for its settings, temporary files and log. Its parent has checkpoints and savepoints.
        ports: The REST and RPC ports.
        files: Its runtime and jars.
    """

    _main = ""

    def __init__(self, folder: Path, ports: Sequence[int], files: FlinkFiles) -> None:
        super().__init__(folder.absolute(), ports)
        self._files = files

    @property
    def version(self) -> str:
        """The name of the job server's jars, whose pom sets the Flink version."""
        return self._files.jars.name

    def ask(self, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """Call Flink's REST API and return the reply: POST with content, GET without."""
        body = None if content is None else json.dumps(content).encode()
        url = f"http://{LOOPBACK}:{self.ports[0]}{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_ASK_S_MAX) as answer:
            return json.load(answer)

    def _prepare(self) -> Sequence[str]:
        settings, temporary = self.folder / "conf", self.folder / "tmp"
        for folder in (settings, temporary):
            folder.mkdir(exist_ok=True)
        rest, rpc = self.ports
        text = _SETTINGS.format(host=LOOPBACK, rest=rest, rpc=rpc, folder=self.folder.parent.as_uri())
        (settings / "flink-conf.yaml").write_text(text)
        return [*self._files.command(temporary), self._main, "--configDir", str(settings)]

    def _answers(self, pid: int) -> bool:
        try:
            return self._is_ready(self.ask("/overview"))
        except OSError:
            return False

    def _is_ready(self, overview: Mapping[str, Any]) -> bool:
        return True


class FlinkJobs(_Part):
    """The job manager."""

    name = "flink-jobs"
    _main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"


class FlinkTasks(_Part):
    """The task manager."""

    name = "flink-tasks"
    _main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"

    def _is_ready(self, overview: Mapping[str, Any]) -> bool:
        return int(overview["slots-total"]) > 0


@contextmanager
def flink_cluster(folder: Path) -> Iterator[FlinkJobs]:
    """Start a cluster for the jobs of any job server whose `--flink_master` is its address; stop it at the end.

    Raises:
        ServiceError: The files could not be fetched, or a process did not start.
    """
    files = FlinkJobServer.fetch(Cache())
    with launch_on(free_ports, 2, lambda ports: FlinkJobs(folder / "jobs", ports, files)) as jobs:
        tasks = FlinkTasks(folder / "tasks", jobs.ports, files)
        tasks.launch()
        with tasks:
            yield jobs

"""A Flink cluster of a job manager and task managers, from the jars of the job server."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.flink import FlinkFiles, FlinkJobServer
from tools.services.ports import LOOPBACK, free_ports
from tools.services.service import Service, launch_on

__all__ = ["FlinkJobs", "FlinkTasks", "flink_cluster"]

_ASK_S_MAX = 120.0
_POLL_S = 0.2
# Slots of all task managers together, and so the most instances of a step.
_SLOTS = 4
# Flink's scripts compute the last seven memory settings from the size of the process.
_SETTINGS = """\
jobmanager.rpc.address: {host}
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: {host}
taskmanager.host: {host}
taskmanager.bind-host: {host}
taskmanager.numberOfTaskSlots: {slots}
cluster.evenly-spread-out-slots: true
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
        slots: Slots of each task manager.
    """

    _main = ""

    def __init__(self, folder: Path, ports: Sequence[int], files: FlinkFiles, slots: int = _SLOTS) -> None:
        super().__init__(folder.absolute(), ports)
        self._files, self._slots = files, slots

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
        text = _SETTINGS.format(
            host=LOOPBACK, rest=rest, rpc=rpc, folder=self.folder.parent.as_uri(), slots=self._slots
        )
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

    def running(self) -> str:
        """Return the id of the one job that runs; empty if none does."""
        return next((str(one["id"]) for one in self.ask("/jobs")["jobs"] if one["status"] == "RUNNING"), "")

    def task_managers(self, job: str) -> set[str]:
        """Return the addresses of the task managers that work on a job."""
        vertices = self.ask(f"/jobs/{job}")["vertices"]
        parts = [self.ask(f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"] for vertex in vertices]
        return {subtask["endpoint"] for part in parts for subtask in part}

    def stop_with_savepoint(self, job: str, wait_s_max: float) -> str:
        """Stop a job with a savepoint, and return where that is.

        Raises:
            ServiceError: The savepoint failed, or was not there in time.
        """
        request, until_s = self.ask(f"/jobs/{job}/stop", {"drain": False})["request-id"], time.monotonic() + wait_s_max
        while time.monotonic() < until_s:
            found = self.ask(f"/jobs/{job}/savepoints/{request}")
            if found["status"]["id"] == "COMPLETED":
                if "location" in found["operation"]:
                    return str(found["operation"]["location"])
                message = f"the savepoint of job {job} failed: {found['operation']}"
                raise ServiceError(message, help=f"see {self.log}")
            time.sleep(_POLL_S)
        message = f"the savepoint of job {job} was not there after {wait_s_max:g} s"
        raise ServiceError(message, help=f"see {self.log}")


class FlinkTasks(_Part):
    """The task manager."""

    name = "flink-tasks"
    _main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"

    def __init__(
        self, folder: Path, ports: Sequence[int], files: FlinkFiles, slots: int = _SLOTS, *, number: int = 1
    ) -> None:
        super().__init__(folder, ports, files, slots)
        self._number = number  # of those that are started one after the other

    def _is_ready(self, overview: Mapping[str, Any]) -> bool:
        return int(overview["taskmanagers"]) >= self._number


@contextmanager
def flink_cluster(folder: Path, *, tasks: int = 1) -> Iterator[FlinkJobs]:
    """Start a cluster for the jobs of any job server whose `--flink_master` is its address; stop it at the end.

    Its slots are divided among `tasks` task managers.

    Raises:
        ServiceError: The files could not be fetched, or a process did not start.
    """
    files, slots = FlinkJobServer.fetch(Cache()), _SLOTS // tasks
    with ExitStack() as stack:
        jobs = stack.enter_context(launch_on(free_ports, 2, lambda ports: FlinkJobs(folder / "jobs", ports, files)))
        for number in range(1, tasks + 1):
            part = FlinkTasks(folder / f"tasks-{number}", jobs.ports, files, slots, number=number)
            part.launch()
            stack.enter_context(part)
        yield jobs

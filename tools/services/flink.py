"""Beam's Flink job server, which runs each job on an embedded Flink, or on the cluster of its `--flink_master`.

Beam opens its job and artifact ports, and those of a running job's workers, on every interface, whatever host it is
given, and has no setting against it. Only the expansion port is on the loopback address.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tools.services.cache import Cache
from tools.services.java import Java, find_java
from tools.services.maven import Jars, class_path
from tools.services.ports import LOOPBACK, FindPorts, free_ports
from tools.services.service import Service, launch_on

__all__ = ["FlinkFiles", "FlinkJobServer"]

_JARS = Jars("flink")
# Beam sends all jars of its class path with each job to a cluster, which has these: 150 MB, and more seconds than the
# job. It leaves out those in a folder of this name.
_UNSENT = Path("gradle", "wrapper")
_PROBE_WAIT_S_MAX = 2.0
_JVM = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_OPENED = tuple(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("util", "lang", "time", "net", "nio"))
_DRIVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_GET_JOBS = "/org.apache.beam.model.job_management.v1.JobService/GetJobs"
# Addresses of a running job: the default is every interface. Folder of checkpoints: the default is the job manager's
# memory, which takes 5 MiB of state of a step and fails the job with more. Restarts of a failing job: the default is
# to restart for ever without a report.
_FLINK_SETTINGS = f"""\
jobmanager.rpc.address: {LOOPBACK}
jobmanager.bind-host: {LOOPBACK}
taskmanager.host: {LOOPBACK}
taskmanager.bind-host: {LOOPBACK}
rest.address: {LOOPBACK}
rest.bind-address: {LOOPBACK}
rest.bind-port: 0
state.checkpoints.dir: {{checkpoints}}
restart-strategy.type: failure-rate
restart-strategy.failure-rate.max-failures-per-interval: 5
restart-strategy.failure-rate.failure-rate-interval: 5 min
"""


@dataclass(frozen=True)
class FlinkFiles:
    """The Java runtime and the folder of jars of a job server."""

    java: Java
    jars: Path

    def command(self, temporary: Path) -> list[str]:
        """Return the command that runs a class of the jars, up to the name of the class."""
        return [
            str(self.java.path),
            *_JVM,
            *_OPENED,
            f"-Djava.io.tmpdir={temporary}",
            "-cp",
            class_path(self.jars),
        ]


class FlinkJobServer(Service):
    """A running job server.

    Args:
        folder: A folder for staged artifacts, temporary files and the log.
        ports: The job, artifact and expansion ports.
        files: Its runtime and jars.
    """

    name = "flink"

    def __init__(self, folder: Path, ports: Sequence[int], files: FlinkFiles) -> None:
        super().__init__(folder.absolute(), ports)
        self._files = files

    @classmethod
    def fetch(cls, cache: Cache) -> FlinkFiles:
        """Return the files, after fetching the missing jars.

        Raises:
            ServiceError: Java or Maven is missing, or fetching failed.
        """
        java, jars = find_java(), _JARS.fetch(cache)
        return FlinkFiles(java, cache.get(_unsent_entry(), lambda folder: _link(jars, folder)) / _UNSENT)

    @classmethod
    def find(cls, cache: Cache) -> FlinkFiles | None:
        """Return the files, or None if the jars are missing; never fetches."""
        entry = cache.find(_unsent_entry())
        return FlinkFiles(find_java(), entry / _UNSENT) if entry else None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        cache: Cache | None = None,
        find_ports: FindPorts = free_ports,
    ) -> Self:
        """Fetch missing files, start a job server and wait until it answers. `find_ports` returns three ports.

        Raises:
            ServiceError: The files could not be fetched, or the server did not start.
        """
        files = cls.fetch(cache or Cache())
        return launch_on(find_ports, 3, lambda ports: cls(folder, ports, files))

    @property
    def job_endpoint(self) -> str:
        """The value of `--job_endpoint`."""
        return self.address

    @property
    def artifact_endpoint(self) -> str:
        """The value of `--artifact_endpoint`."""
        return f"{LOOPBACK}:{self.ports[1]}"

    @property
    def expansion_endpoint(self) -> str:
        """The address for cross-language transforms."""
        return f"{LOOPBACK}:{self.ports[2]}"

    @property
    def version(self) -> str:
        """The Beam version of the job server. The pom sets the Flink version."""
        return _JARS.version

    def _prepare(self) -> Sequence[str]:
        settings, temporary = self.folder / "conf", self.folder / "tmp"
        for folder in (settings, temporary):
            folder.mkdir(exist_ok=True)
        checkpoints = (self.folder / "checkpoints").as_uri()
        (settings / "flink-conf.yaml").write_text(_FLINK_SETTINGS.format(checkpoints=checkpoints))
        job, artifact, expansion = self.ports
        return [
            *self._files.command(temporary),
            _DRIVER,
            f"--job-host={LOOPBACK}",
            f"--job-port={job}",
            f"--artifact-port={artifact}",
            f"--expansion-port={expansion}",
            f"--artifacts-dir={self.folder / 'artifacts'}",
            f"--flink-conf-dir={settings}",
            "--flink-master=[local]",
        ]

    def _answers(self, pid: int) -> bool:
        # The server must log that it has the port: another server on the port would answer too.
        log = self.log.read_text(errors="replace")
        return (
            f"JobService started on {self.address}" in log and _port_open(self.ports[0]) and _lists_jobs(self.address)
        )


def _unsent_entry() -> str:
    return f"{_JARS.entry}-unsent"


def _link(jars: Path, folder: Path) -> None:
    shutil.copytree(jars, folder / _UNSENT, copy_function=os.link)


def _port_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=_PROBE_WAIT_S_MAX).close()
    except OSError:
        return False
    return True


def _lists_jobs(address: str) -> bool:
    """Return whether the job service answers a call. An empty protobuf message is the empty string."""
    import grpc  # takes 0.1 s, and only a job server needs it

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_GET_JOBS)(b"", timeout=_PROBE_WAIT_S_MAX)
        except grpc.RpcError:
            return False
    return True

"""The Flink job server: Beam's, running each job on a Flink inside itself, or on one beside it.

Beam opens its job and artifact ports, and those of a running job's workers, on every interface, whatever host
it is told, and offers no setting against it; only the expansion port is on the loopback address alone.
"""

from __future__ import annotations

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
_PROBE_WAIT_S_MAX = 2.0
_JVM = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_OPENED = tuple(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("util", "lang", "time", "net", "nio"))
_DRIVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_GET_JOBS = "/org.apache.beam.model.job_management.v1.JobService/GetJobs"
# What Flink listens on while a job runs; by default it is every interface. Where checkpoints go: by default that is the
# memory of the process that guides a job, which takes 5 MiB of one step's state, and fails the job with more. How often
# a job that fails is begun again: by default it is for ever, and nobody hears of it.
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
    """What a job server is started from.

    Attributes:
        java: The runtime.
        jars: The folder of its jars.
    """

    java: Java
    jars: Path

    def command(self, temporary: Path) -> list[str]:
        """The command of a program in the jars, but its class and arguments; temporary files go to that folder."""
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
        folder: Its staged artifacts, temporary files and log.
        ports: Of jobs, of artifacts, of expansion.
        files: What it is started from.
        master: The address of the Flink that runs jobs; by default each has one inside the job server.
    """

    name = "flink"

    def __init__(self, folder: Path, ports: Sequence[int], files: FlinkFiles, master: str = "[local]") -> None:
        super().__init__(folder.absolute(), ports)
        self._files, self._master = files, master

    @classmethod
    def fetch(cls, cache: Cache) -> FlinkFiles:
        """The jars, fetched first when they are not there.

        Raises:
            ServiceError: Java or Maven is missing, or fetching failed.
        """
        return FlinkFiles(find_java(), _JARS.fetch(cache))

    @classmethod
    def find(cls, cache: Cache) -> FlinkFiles | None:
        """What `fetch` would give, or None when it is not there; never fetches."""
        jars = _JARS.find(cache)
        return FlinkFiles(find_java(), jars) if jars else None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        cache: Cache | None = None,
        find_ports: FindPorts = free_ports,
        master: str = "[local]",
    ) -> Self:
        """Fetch what is missing, start a job server and wait until it answers.

        Args:
            folder: Where what it writes goes.
            cache: Where its jars are.
            find_ports: Where its three ports come from.
            master: The address of the Flink that runs jobs; by default each has one inside the job server.

        Raises:
            ServiceError: It could not be had or did not start.
        """
        files = cls.fetch(cache or Cache())
        return launch_on(find_ports, 3, lambda ports: cls(folder, ports, files, master))

    @property
    def job_endpoint(self) -> str:
        """For `--job_endpoint`."""
        return self.address

    @property
    def artifact_endpoint(self) -> str:
        """For `--artifact_endpoint`."""
        return f"{LOOPBACK}:{self.ports[1]}"

    @property
    def expansion_endpoint(self) -> str:
        """For cross-language transforms."""
        return f"{LOOPBACK}:{self.ports[2]}"

    @property
    def version(self) -> str:
        """Beam's version of the job server (the Flink inside is the pom's)."""
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
            f"--flink-master={self._master}",
        ]

    def _answers(self, pid: int) -> bool:
        # Its own word that it has the port comes first: another server there would answer as well.
        log = self.log.read_text(errors="replace")
        return (
            f"JobService started on {self.address}" in log and _port_open(self.ports[0]) and _lists_jobs(self.address)
        )


def _port_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=_PROBE_WAIT_S_MAX).close()
    except OSError:
        return False
    return True


def _lists_jobs(address: str) -> bool:
    """Whether the job service answers a call; an empty message in gRPC's bytes is no bytes."""
    import grpc  # type: ignore[import-untyped]  # a tenth of a second, and only a job server needs it

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_GET_JOBS)(b"", timeout=_PROBE_WAIT_S_MAX)
        except grpc.RpcError:
            return False
    return True

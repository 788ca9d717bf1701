"""Kafka: one KRaft node that is broker and controller, with default behaviour except topic auto-creation.

Two things make it ready in a second: its storage is a copy of a folder formatted at fetch time, and its classes
come from an archive that the JVM wrote when a broker ran once, also at fetch time.
"""

from __future__ import annotations

import base64
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.java import Java, find_java
from tools.services.kafka_metadata import read_cluster
from tools.services.maven import Jars, class_path
from tools.services.ports import LOOPBACK, FindPorts, free_ports
from tools.services.process import run_to_end
from tools.services.service import Service, launch_on

__all__ = ["Kafka", "KafkaFiles"]

_JARS = Jars("kafka")
_ARCHIVE = "classes.jsa"
_FORMATTED = "formatted"
_FORMAT_WAIT_S_MAX = 180.0
_PROBE_WAIT_S_MAX = 1.0
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

_ROLE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
"""

_SETTINGS = """\
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
# On one node internal topics have one replica, and need one partition.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
# The first consumer of a group does not wait for others.
group.initial.rebalance.delay.ms=0
# After a kill the controller refuses the broker until the old session has expired.
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""

_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


@dataclass(frozen=True)
class KafkaFiles:
    """The files of a broker.

    Attributes:
        java: The runtime.
        jars: The folder of Kafka's jars.
        prepared: The folder of the formatted storage and the class archive.
    """

    java: Java
    jars: Path
    prepared: Path


class Kafka(Service):
    """A running Kafka.

    Args:
        folder: A folder for all of its data, settings and logs.
        ports: The broker's and the controller's port.
        files: Its runtime, jars and prepared storage.
        sharing: JVM flag for the class archive; by default the archive is read.
        properties: Broker settings that override ours, for example a TLS listener.
    """

    name = "kafka"
    stop_wait_s_max = 30.0
    heap = "-Xmx512m"
    node = 1

    def __init__(
        self,
        folder: Path,
        ports: Sequence[int],
        files: KafkaFiles,
        *,
        sharing: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder.absolute(), ports)
        self._properties = dict(properties or {})
        self._files = files
        self._sharing = sharing or f"-XX:SharedArchiveFile={files.prepared / _ARCHIVE}"

    @classmethod
    def fetch(cls, cache: Cache) -> KafkaFiles:
        """Return the files, after fetching and preparing the missing ones.

        Raises:
            ServiceError: Java or Maven is missing, or fetching failed.
        """
        java = find_java()
        jars = _JARS.fetch(cache)
        prepared = cache.get(_prepared_entry(java), lambda folder: _prepare_once(java, jars, folder))
        return KafkaFiles(java, jars, prepared)

    @classmethod
    def find(cls, cache: Cache) -> KafkaFiles | None:
        """Return the files, or None if one is missing; never fetches."""
        jars = _JARS.find(cache)
        java = find_java() if jars else None
        prepared = cache.find(_prepared_entry(java)) if java else None
        return KafkaFiles(java, jars, prepared) if java and jars and prepared else None

    @classmethod
    def start(
        cls,
        folder: Path,
        *,
        cache: Cache | None = None,
        find_ports: FindPorts = free_ports,
        properties: Callable[[Sequence[int]], Mapping[str, str]] | None = None,
    ) -> Self:
        """Fetch missing files, start a broker and wait until it answers.

        Args:
            folder: The folder of its data, which may come from an earlier broker.
            cache: The cache of its files.
            find_ports: Returns its ports; `fixed_port(9092)` for a known one.
            properties: Returns broker settings that override ours, for these ports.

        Raises:
            ServiceError: The files could not be fetched, or the broker did not start.
        """
        files = cls.fetch(cache or Cache())
        overrides = properties or (lambda ports: {})
        return launch_on(find_ports, 2, lambda ports: cls(folder, ports, files, properties=overrides(ports)))

    @property
    def version(self) -> str:
        """Kafka's version."""
        return _JARS.version

    def _prepare(self) -> Sequence[str]:
        _write_settings(self.folder, self._role(), self._properties)
        data = self.folder / "data"
        if not (data / "meta.properties").exists():
            _copy_formatted(self._files.prepared / _FORMATTED, data, self.node, self._new_cluster_id())
        self._cluster_id = _property(data / "meta.properties", "cluster.id")
        jvm = _jvm(self._files.java, self._files.jars, self.folder, self._sharing)
        return [*jvm, self.heap, "kafka.Kafka", str(self.folder / "server.properties")]

    def _role(self) -> str:
        """Return the settings of this node's role and ports."""
        return _role_of(self.ports)

    def _new_cluster_id(self) -> str:
        return _random_id()

    def _answers(self, pid: int) -> bool:
        cluster = read_cluster(LOOPBACK, self.ports[0], _PROBE_WAIT_S_MAX)
        return cluster is not None and cluster.brokers_count > 0 and cluster.cluster_id == self._cluster_id


def _prepared_entry(java: Java) -> str:
    return f"{_JARS.entry}-java-{java.version}"


def _prepare_once(java: Java, jars: Path, folder: Path) -> None:
    """Format storage, and run a broker once so that the JVM writes its class archive."""
    _write_settings(folder, _role_of(free_ports(2)), {})
    cluster_id = _random_id()
    command = [*_jvm(java, jars, folder, "-Xshare:auto"), Kafka.heap, "kafka.tools.StorageTool", "format"]
    command += ["--cluster-id", cluster_id, "--config", str(folder / "server.properties")]
    run_to_end("format", command, folder, wait_s_max=_FORMAT_WAIT_S_MAX)
    shutil.copytree(folder / "data", folder / _FORMATTED)

    files = KafkaFiles(java, jars, folder)
    writing = f"-XX:ArchiveClassesAtExit={folder / _ARCHIVE}"
    with launch_on(free_ports, 2, lambda ports: Kafka(folder, ports, files, sharing=writing)):
        pass
    if not (folder / _ARCHIVE).is_file():
        message = f"Java {java.version} wrote no class archive when Kafka ended"
        raise ServiceError(message, help=f"use another Java runtime of version 17 or newer than {java.path}")
    for path in folder.iterdir():
        if path.name in ("data", "tmp"):
            shutil.rmtree(path)
        elif path.name not in (_FORMATTED, _ARCHIVE):
            path.unlink()


def _jvm(java: Java, jars: Path, folder: Path, sharing: str) -> list[str]:
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
    return [str(java.path), *_JVM, sharing, f"-Djava.io.tmpdir={temporary}", logging, "-cp", class_path(jars)]


def _role_of(ports: Sequence[int]) -> str:
    return _ROLE.format(host=LOOPBACK, port=ports[0], controller_port=ports[1])


def _write_settings(folder: Path, role: str, properties: Mapping[str, str]) -> None:
    settings = role + _SETTINGS.format(data=folder / "data")
    # Kafka takes the last value of a repeated name.
    settings += "".join(f"{name}={value}\n" for name, value in properties.items())
    (folder / "server.properties").write_text(settings)
    (folder / "log4j2.properties").write_text(_LOGGING)


def _copy_formatted(formatted: Path, data: Path, node: int, cluster_id: str) -> None:
    """Copy the formatted storage and give it new ids."""
    shutil.copytree(formatted, data, dirs_exist_ok=True)
    meta = data / "meta.properties"
    text = meta.read_text()
    for name, value in {"cluster.id": cluster_id, "directory.id": _random_id(), "node.id": str(node)}.items():
        text = re.sub(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
    meta.write_text(text)


def _property(file: Path, name: str) -> str:
    value = re.search(rf"(?m)^{re.escape(name)}=(.*)$", file.read_text())
    if value is None:
        message = f"{file} has no {name}"
        raise ServiceError(message, help="use another folder: this is not a Kafka data folder, or a damaged one")
    return value[1].strip()


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")

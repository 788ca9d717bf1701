"""Kafka: one KRaft node that is broker and controller, stock to its clients but for topic auto-creation.

Two things make it ready in a second: its storage is a copy of one formatted at fetch time, and its classes
come from an archive that the JVM wrote while a broker ran once, also at fetch time.
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
_FORMAT_WAIT_S_MAX = 60.0
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
# One node: its internal topics have one copy, and no more partitions than one node can use.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
# The first consumer of a group waits for no others.
group.initial.rebalance.delay.ms=0
# After a kill the controller refuses the returning broker until the session of the dead one has passed.
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
    """What a broker is started from.

    Attributes:
        java: The runtime.
        jars: The folder of Kafka's jars.
        prepared: The folder of formatted storage and the class archive.
    """

    java: Java
    jars: Path
    prepared: Path


class Kafka(Service):
    """A running Kafka.

    Args:
        folder: Its data, settings and log, and nothing of it is anywhere else.
        ports: The broker's and the controller's.
        files: What it is started from.
        sharing: The JVM's flag about the class archive; by default the archive is read.
        properties: Broker settings laid over ours, for a listener with TLS and the like.
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
        """The jars and what is prepared from them, made first when they are not there.

        Raises:
            ServiceError: Java or Maven is missing, or fetching failed.
        """
        java = find_java()
        jars = _JARS.fetch(cache)
        prepared = cache.get(_prepared_entry(java), lambda folder: _prepare_once(java, jars, folder))
        return KafkaFiles(java, jars, prepared)

    @classmethod
    def find(cls, cache: Cache) -> KafkaFiles | None:
        """What `fetch` would give, or None when it is not all there; never fetches."""
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
        """Fetch what is missing, start a broker and wait until it answers.

        Args:
            folder: Where its data is, or will be; the data of an earlier broker is served again.
            cache: Where its jars are.
            find_ports: Where its ports come from; `fixed_port(9092)` for a known one.
            properties: Broker settings laid over ours, made from the ports found.

        Raises:
            ServiceError: It could not be had or did not start.
        """
        files = cls.fetch(cache or Cache())
        laid = properties or (lambda ports: {})
        return launch_on(find_ports, 2, lambda ports: cls(folder, ports, files, properties=laid(ports)))

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
        """The settings that say what this node is, and which ports it has."""
        return _role_of(self.ports)

    def _new_cluster_id(self) -> str:
        return _random_id()

    def _answers(self, pid: int) -> bool:
        seen = read_cluster(LOOPBACK, self.ports[0], _PROBE_WAIT_S_MAX)
        return seen is not None and seen.brokers_count > 0 and seen.cluster_id == self._cluster_id


def _prepared_entry(java: Java) -> str:
    return f"{_JARS.entry}-java-{java.version}"


def _prepare_once(java: Java, jars: Path, folder: Path) -> None:
    """Format storage, and run a broker once so that the JVM writes its class archive at the end."""
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
        message = f"Java {java.version} wrote no class archive at the end of a Kafka run"
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
    # Of a name that stands twice, the last counts.
    settings += "".join(f"{name}={value}\n" for name, value in properties.items())
    (folder / "server.properties").write_text(settings)
    (folder / "log4j2.properties").write_text(_LOGGING)


def _copy_formatted(formatted: Path, data: Path, node: int, cluster_id: str) -> None:
    """Storage as formatting leaves it, with ids of its own: copied ones would be another cluster's."""
    shutil.copytree(formatted, data, dirs_exist_ok=True)
    meta = data / "meta.properties"
    text = meta.read_text()
    for name, value in {"cluster.id": cluster_id, "directory.id": _random_id(), "node.id": str(node)}.items():
        text = re.sub(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
    meta.write_text(text)


def _property(file: Path, name: str) -> str:
    found = re.search(rf"(?m)^{re.escape(name)}=(.*)$", file.read_text())
    if found is None:
        message = f"{file} states no {name}"
        raise ServiceError(message, help="it is no Kafka data folder, or a damaged one: use another")
    return found[1].strip()


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")

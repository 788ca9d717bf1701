"""Kafka cluster: three brokers and a separate controller, for tests of replicas and their loss.

Any broker may be killed and started again, because none of them is the controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.kafka import Kafka, KafkaFiles
from tools.services.kafka_metadata import read_cluster
from tools.services.ports import LOOPBACK, free_ports, is_taken
from tools.services.service import launch_on

__all__ = ["KafkaCluster", "kafka_cluster"]

_CONTROLLER = 100
_BROKERS = (1, 2, 3)
_PROBE_WAIT_S_MAX = 1.0
_WAIT_S_MAX = 180.0
_POLL_S = 0.05
_ROLE = """\
node.id={node}
controller.quorum.voters={controller}@{host}:{controller_port}
default.replication.factor={brokers}
"""
_BROKER = """\
process.roles=broker
listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
"""
_CONTROLLING = """\
process.roles=controller
listeners=CONTROLLER://{host}:{port}
"""


class _Node(Kafka):
    """One process of a cluster. `controller` is None for the controller itself."""

    def __init__(self, node: int, controller: _Node | None, folder: Path, ports: Sequence[int], files: KafkaFiles):
        super().__init__(folder / str(node), ports, files)
        self.node, self._controller = node, controller
        self.heap = "-Xmx256m" if controller else "-Xmx128m"

    def _role(self) -> str:
        port = (self._controller or self).ports[0]
        values = {"node": self.node, "host": LOOPBACK, "port": self.ports[0], "brokers": len(_BROKERS)}
        role = _ROLE + (_BROKER if self._controller else _CONTROLLING)
        return role.format(controller=_CONTROLLER, controller_port=port, **values)

    def _new_cluster_id(self) -> str:
        return self._controller._cluster_id if self._controller else super()._new_cluster_id()

    def _answers(self, pid: int) -> bool:
        return super()._answers(pid) if self._controller else is_taken(self.ports[0])


class KafkaCluster:
    """Running brokers; by default topics have a replica on each.

    Attributes:
        brokers: The brokers by number, from 1. Each can be killed, stopped and launched again.
    """

    def __init__(self, brokers: Mapping[int, Kafka]) -> None:
        self.brokers = dict(brokers)

    @property
    def address(self) -> str:
        """`host:port` of every broker, for clients."""
        return ",".join(broker.address for broker in self.brokers.values())

    def pause(self) -> None:
        """SIGSTOP to all brokers."""
        for broker in self.brokers.values():
            broker.pause()

    def resume(self) -> None:
        """SIGCONT to all brokers."""
        for broker in self.brokers.values():
            broker.resume()

    def create_topic(self, name: str, replicas: Sequence[int], settings: Mapping[str, str]) -> None:
        """Create a topic with one partition on these brokers; the first becomes its leader."""
        with self._admin() as admin:
            admin.create_topics({name: {"assignments": {0: list(replicas)}, "configs": dict(settings)}})
        _await(f"broker {replicas[0]} to lead {name}", lambda: self.partition(name)["leader_id"] == replicas[0])

    def partition(self, topic: str, partition: int = 0) -> dict[str, Any]:
        """Return the metadata of a partition: `leader_id` (-1: none), `replica_nodes`, `isr_nodes`."""
        with self._admin() as admin:
            described = admin.describe_topics([topic])[0]["partitions"]
        return next((part for part in described if part["partition_index"] == partition), {"leader_id": -1})

    def set_topic(self, name: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        from kafka.admin import ConfigResource, ConfigResourceType

        with self._admin() as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(settings))])

    def elect_unclean(self, topic: str, while_alone: Callable[[], None]) -> None:
        """Let the follower that stopped last lead partition 0: it lacks only the records that its leader alone has.

        The topic's settings then allow unclean elections.

        Args:
            topic: A topic with two or more replicas of partition 0.
            while_alone: Called while all followers are stopped. Records that it appends are lost.
        """
        self.set_topic(topic, {"unclean.leader.election.enable": "true"})
        partition = self.partition(topic)
        followers = [node for node in partition["replica_nodes"] if node != partition["leader_id"]]
        for node in followers:
            self.brokers[node].stop()
        while_alone()
        self.brokers[partition["leader_id"]].kill()
        self.brokers[followers[-1]].launch()
        _await(f"a follower to lead {topic}", lambda: self._leads(topic, followers[-1]))
        for node in (*followers[:-1], partition["leader_id"]):
            self.brokers[node].launch()

    def _leads(self, topic: str, node: int) -> bool:
        from kafka.errors import KafkaError

        try:
            return bool(self.partition(topic)["leader_id"] == node)
        except KafkaError:  # the client asked the leader that was killed
            return False

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        from kafka.admin import KafkaAdminClient

        from streamlearn.topics.kafka_connections import SOCKETS_URL

        running = [broker.address for broker in self.brokers.values() if broker.is_running()]
        with closing(KafkaAdminClient(bootstrap_servers=running, proxy_url=SOCKETS_URL)) as admin:
            yield admin


@contextmanager
def kafka_cluster(folder: Path, cache: Cache | None = None) -> Iterator[KafkaCluster]:
    """Start a cluster with a folder for each process in `folder`; stop it at the end.

    Raises:
        ServiceError: The files could not be fetched, or a process did not start.
    """
    files = Kafka.fetch(cache or Cache())
    with ExitStack() as stack:

        def launch(node: int, controller: _Node | None) -> _Node:
            return stack.enter_context(
                launch_on(free_ports, 1, lambda ports: _Node(node, controller, folder, ports, files))
            )

        controller = launch(_CONTROLLER, None)
        brokers = {node: launch(node, controller) for node in _BROKERS}
        _await("all brokers of Kafka", lambda: all(_sees_brokers(broker, len(brokers)) for broker in brokers.values()))
        yield KafkaCluster(brokers)


def _sees_brokers(broker: Kafka, count: int) -> bool:
    cluster = read_cluster(LOOPBACK, broker.ports[0], _PROBE_WAIT_S_MAX)
    return cluster is not None and cluster.brokers_count == count


def _await(event: str, is_there: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _WAIT_S_MAX
    while not is_there():
        if time.monotonic() > deadline_s:
            message = f"waited {_WAIT_S_MAX:g} s for {event}"
            raise ServiceError(message, help="see the brokers' logs")
        time.sleep(_POLL_S)

"""A connection to Kafka's brokers: requests and answers. The one module that imports kafka.

It speaks the protocol through kafka-python's connections and message classes instead of its consumer and
producer: those name topics, so a topic deleted and created again is taken for the old one, and they spend
most of their time in Python, record by record. Here topics are asked for by id, records packed and scanned natively.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streamlearn.errors import ConfigError
from streamlearn.topics.meters import note_answer
from streamlearn.topics.settings import AccessSettings, KafkaSecurity

with warnings.catch_warnings():  # its schemas are read by a call that Python 3.11 and 3.12 call deprecated
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.errors
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.selector import NetworkSelector
    from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest
    from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
    from kafka.protocol.metadata import MetadataRequest
    from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

__all__ = [
    "CERTAINLY_REFUSED",
    "DUPLICATE_SEQUENCE",
    "EARLIEST",
    "LATEST",
    "MESSAGE_TOO_LARGE",
    "NOT_ALLOWED",
    "NO_ERROR",
    "OFFSET_OUT_OF_RANGE",
    "PRODUCER_STATE_LOST",
    "TOPIC_EXISTS",
    "UNKNOWN_TOPIC",
    "Fetched",
    "KafkaLink",
    "LinkDown",
    "Pending",
    "Produced",
    "TopicFacts",
    "error_name",
    "is_passing",
]

NO_ERROR = 0
OFFSET_OUT_OF_RANGE = 1
MESSAGE_TOO_LARGE = (10, 18)
TOPIC_EXISTS = 36
DUPLICATE_SEQUENCE = 46
UNKNOWN_TOPIC = (3, 100, 103)
NOT_ALLOWED = (29, 31)
PRODUCER_STATE_LOST = (45, 47, 59)
CERTAINLY_REFUSED = frozenset((2, 3, 10, 17, 18, 19, 21, 29, 31, 32, 43, 44, 45, 47, 59, 76, 87, 100, 103))
"""Errors that a broker returns before it appends. After others, such as REQUEST_TIMED_OUT or NOT_LEADER, the batch may
have been written: the leader appends before it waits for its replicas."""
EARLIEST = -2
LATEST = -1
_READ_COMMITTED = 1
_OVERTIME_S = 1.0
"""How much longer than its own bound a request is waited for, should kafka-python forget it."""
_TOPIC_RESOURCE = 2
_CLIENT_ID = "streamlearn"
_NOBODY = uuid.UUID(int=0)
_T = TypeVar("_T")
PASSWORD_VARIABLE = "STREAMLEARN_KAFKA_PASSWORD"


class LinkDown(Exception):
    """A request without an answer; whether the broker acted on it is not known."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a broker says of a topic: its id, who leads each partition (-1: nobody now), the fewest replicas of one."""

    topic_id: uuid.UUID
    leaders: tuple[int, ...]
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer to a fetch: record batches, (producer id, first offset) of aborted transactions, the end.

    Where the log diverges from the leader epoch that was asked with, `diverges_at` is the first offset that may differ.
    """

    error: int
    data: bytes
    aborted: list[tuple[int, int]]
    stable_end: int = -1
    diverges_at: int = -1


@dataclass(frozen=True, slots=True)
class Produced:
    """An answer to a produce request; `reason` is the broker's own words, often empty."""

    error: int
    base_offset: int
    reason: str


class Pending(Generic[_T]):
    """A request on its way. Its signal is set once there is an answer, or there will be none.

    Attributes:
        done_ms: When that was, on the clock that only grows.
    """

    def __init__(self, future: Any, parse: Callable[[Any], _T], signal: threading.Event) -> None:
        self.done_ms = math.inf
        self._future = future
        self._parse = parse
        self._signal = signal
        future.add_both(self._note)

    def _note(self, _: object) -> None:
        self.done_ms = time.monotonic() * 1000
        self._signal.set()

    @property
    def done(self) -> bool:
        """Whether `take` has something to give or to raise."""
        return self.done_ms < math.inf

    def take(self) -> _T:
        """The answer.

        Raises:
            LinkDown: There is none.
        """
        if not self.done:
            message = "no answer yet"
            raise LinkDown(message)
        error = self._future.exception
        if error is not None:
            raise LinkDown(_brief(error)) from error
        return self._parse(self._future.value)


class KafkaLink:
    """Connections to the brokers of one cluster, with a thread of their own. Safe to use from many threads.

    A broker answers the requests of one connection in turn: what waits for records has a link of its own.
    """

    def __init__(self, brokers: tuple[str, ...], access: AccessSettings) -> None:
        _hush()
        config = {
            "bootstrap_servers": list(brokers),
            "client_id": _CLIENT_ID,
            "request_timeout_ms": access.request_timeout_ms,
            "reconnect_backoff_ms": access.retry_wait_ms,
            "reconnect_backoff_max_ms": max(access.retry_wait_ms, 1_000),
            "socket_connection_setup_timeout_ms": access.request_timeout_ms,
            "receive_message_max_bytes": access.response_bytes_max,
            "proxy_url": f"{_Socket.SCHEMES[0]}://direct",
            **_security(access.kafka),
        }
        self._access = access
        self._address = ",".join(brokers)
        self._net = NetworkSelector(**config)
        self._manager = KafkaConnectionManager(self._net, **config)
        self._net.start()

    def connect(self, timeout_ms: float) -> None:
        """Find the cluster; also after its brokers were away.

        Raises:
            LinkDown: Nobody answered in time.
        """
        try:
            self._manager.bootstrap(timeout_ms=timeout_ms)
        except Exception as error:  # kafka-python raises what it likes, RuntimeError among it
            raise LinkDown(_brief(error)) from error

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._net.run(self._manager.close)
        self._net.close()

    def topic(self, name: str) -> TopicFacts | None:
        """What the cluster says of a topic; None when there is none."""
        return _facts_of(self._ask(_metadata_request(name)))

    def topic_by_broker(self, name: str) -> list[TopicFacts | None]:
        """What each broker says of a topic: one that was just created or deleted reaches them one after the other."""
        nodes = [broker.node_id for broker in self._manager.cluster.brokers()]
        return [_facts_of(self._ask(_metadata_request(name), node)) for node in nodes]

    def begin_topic(self, name: str, *, connect: bool, signal: threading.Event) -> Pending[TopicFacts | None]:
        """Ask for a topic without waiting; on request find the cluster before."""
        bound_ms = self._access.request_timeout_ms
        future = self._manager.call_soon(self._looked, _metadata_request(name), connect, bound_ms)
        return Pending(future, _facts_of, signal)

    def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, only_ask: bool = False
    ) -> tuple[int, str, int]:
        """Create a topic with the cluster's own replication; gives the error code, the broker's words, and replicas.

        Their number is -1 where this user may not see it. To ask only creates nothing.
        """
        kind = CreateTopicsRequest.CreatableTopic
        settings = [kind.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = kind(name=name, num_partitions=partitions, replication_factor=-1, assignments=[], configs=settings)
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._access.request_timeout_ms, validate_only=only_ask, min_version=5
        )
        answer = self._ask(request).topics[0]
        return answer.error_code, answer.error_message or "", answer.replication_factor

    def delete(self, name: str) -> int:
        """Delete a topic; gives the error code."""
        topic = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)
        request = DeleteTopicsRequest(topics=[topic], topic_names=[name], timeout_ms=self._access.request_timeout_ms)
        return int(self._ask(request).responses[0].error_code)

    def configs(self, name: str) -> tuple[int, dict[str, str]]:
        """The settings of a topic as the broker has them; gives the error code and the settings."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        answer = self._ask(DescribeConfigsRequest(resources=[resource])).results[0]
        return answer.error_code, {config.name: config.value for config in answer.configs}

    def offset(self, leader: int, name: str, partition: int, timestamp_ms: int) -> tuple[int, int]:
        """The first offset at or after a time (or EARLIEST, LATEST); gives the error code and it, or -1."""
        kind = ListOffsetsRequest.ListOffsetsTopic
        part = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp_ms)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=_READ_COMMITTED,
            topics=[kind(name=name, partitions=[part])],
            timeout_ms=self._access.request_timeout_ms,
            min_version=2,
        )
        answer = self._ask(request, leader).topics[0].partitions[0]
        return answer.error_code, answer.offset

    def begin_fetch(
        self,
        leader: int,
        topic_id: uuid.UUID,
        positions: Mapping[int, int],
        *,
        leader_epochs: Mapping[int, int],
        bytes_max: tuple[int, int],
        wait_ms: int,
        signal: threading.Event,
    ) -> Pending[dict[int, Fetched]]:
        """Ask for record batches from the offset of each partition, without waiting for the answer.

        Args:
            leader: The broker.
            topic_id: Of the topic; a broker that has another under its name refuses.
            positions: Partition to offset.
            leader_epochs: Partition to the leader epoch of the record before its offset, where that is known.
            bytes_max: Of one partition, and of all together.
            wait_ms: How long the broker may wait until there are some.
            signal: Set when the answer is there.
        """
        kind = FetchRequest.FetchTopic
        parts = [
            kind.FetchPartition(
                partition=partition,
                fetch_offset=offset,
                last_fetched_epoch=leader_epochs.get(partition, -1),
                partition_max_bytes=bytes_max[0],
            )
            for partition, offset in positions.items()
        ]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max[1],
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic_id=topic_id, partitions=parts)],
            forgotten_topics_data=[],
            min_version=13,
        )
        future = self._begin(request, leader, self._access.request_timeout_ms + wait_ms)
        return Pending(future, lambda answer: _fetched(answer, positions), signal)

    def producer_id(self) -> tuple[int, int, int]:
        """A new producer's id and epoch, after the error code."""
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=self._access.request_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = self._ask(request)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    def produce(
        self, topic: tuple[str, uuid.UUID], batches: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, Produced | LinkDown]:
        """Append one record batch to each of many partitions, acknowledged by all replicas in sync.

        Brokers before 4.0 know only the topic's name here.

        Args:
            topic: Its name and its id.
            batches: Leader to partition to batch; all leaders are asked at once.
        """
        signal, bound_ms = threading.Event(), self._access.request_timeout_ms
        pending = [
            (parts, Pending(self._begin(_produce_request(topic, parts, bound_ms), leader, bound_ms), _produced, signal))
            for leader, parts in batches.items()
        ]
        until_s = time.monotonic() + bound_ms / 1000 + _OVERTIME_S
        while not all(asked.done for _, asked in pending) and (left_s := until_s - time.monotonic()) > 0:
            signal.wait(left_s)
            signal.clear()
        found: dict[int, Produced | LinkDown] = {}
        for parts, asked in pending:
            try:
                answers = asked.take()
                nothing = LinkDown("the broker did not answer for the partition")
                found.update((partition, answers.get(partition, nothing)) for partition in parts)
            except LinkDown as error:
                found.update(dict.fromkeys(parts, error))
        return found

    def _ask(self, request: Any, node: int | None = None) -> Any:
        try:
            return self._manager.run(self._sent, request, node, self._access.request_timeout_ms)
        except Exception as error:
            raise LinkDown(_brief(error)) from error

    def _begin(self, request: Any, node: int, timeout_ms: int) -> Any:
        return self._manager.call_soon(self._sent, request, node, timeout_ms)

    async def _looked(self, request: Any, connect: bool, timeout_ms: int) -> Any:
        if connect:
            await self._manager.bootstrap_async(timeout_ms=timeout_ms)
        return await self._sent(request, None, timeout_ms)

    async def _sent(self, request: Any, node: int | None, timeout_ms: int) -> Any:
        future = self._manager.send(request, node_id=node, request_timeout_ms=timeout_ms)
        answer = await self._manager.wait_for(future, timeout_ms)
        note_answer(self._address)
        return answer


def _metadata_request(name: str) -> Any:
    asked = MetadataRequest.MetadataRequestTopic(topic_id=_NOBODY, name=name)
    return MetadataRequest(topics=[asked], allow_auto_topic_creation=False, min_version=10)


def _facts_of(answer: Any) -> TopicFacts | None:
    found = answer.topics[0]
    if found.error_code in UNKNOWN_TOPIC:
        return None
    if found.error_code != NO_ERROR:
        raise LinkDown(error_name(found.error_code))
    leaders = {part.partition_index: part.leader_id for part in found.partitions}
    replicas = min((len(part.replica_nodes) for part in found.partitions), default=1)
    return TopicFacts(found.topic_id, tuple(leaders.get(at, -1) for at in range(len(leaders))), replicas)


def _fetched(answer: Any, positions: Mapping[int, int]) -> dict[int, Fetched]:
    if answer.error_code != NO_ERROR:
        return {partition: Fetched(answer.error_code, b"", []) for partition in positions}
    found = {}
    for part in (part for topic in answer.responses for part in topic.partitions):
        aborted = [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()]
        data = bytes(part.records or b"")
        diverges_at = part.diverging_epoch.end_offset if part.diverging_epoch else -1
        found[part.partition_index] = Fetched(part.error_code, data, aborted, part.last_stable_offset, diverges_at)
    return found


def _produce_request(topic: tuple[str, uuid.UUID], batches: Mapping[int, bytes], timeout_ms: int) -> Any:
    kind = ProduceRequest.TopicProduceData
    parts = [kind.PartitionProduceData(index=partition, records=batch) for partition, batch in batches.items()]
    data = kind(name=topic[0], topic_id=topic[1], partition_data=parts)
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=[data])


def _produced(answer: Any) -> dict[int, Produced]:
    found = {}
    for part in answer.responses[0].partition_responses:
        details = [entry.batch_index_error_message for entry in part.record_errors or ()]
        reason = next((detail for detail in details if detail), part.error_message or "")
        found[part.index] = Produced(part.error_code, part.base_offset, reason)
    return found


def _security(kafka: KafkaSecurity) -> dict[str, Any]:
    """What the connections need to know of TLS and SASL.

    Raises:
        ConfigError: A SASL protocol without a user or a password.
    """
    config: dict[str, Any] = {"security_protocol": kafka.protocol}
    if kafka.protocol.endswith("SSL"):
        config["ssl_cafile"] = kafka.ssl_cafile or None
    if kafka.protocol.startswith("SASL"):
        password = os.environ.get(PASSWORD_VARIABLE, "")
        if not password or not kafka.sasl_username:
            message = f"security protocol {kafka.protocol} needs a user and a password"
            raise ConfigError(message, help=f"set kafka.sasl_username, and {PASSWORD_VARIABLE} in the environment")
        config["sasl_mechanism"] = kafka.sasl_mechanism
        config["sasl_plain_username"] = kafka.sasl_username
        config["sasl_plain_password"] = password
    return config


def error_name(code: int) -> str:
    """A broker's error code in words."""
    kind = kafka.errors.for_code(code)
    return f"{kind.__name__.removesuffix('Error')} ({code})"


def is_passing(code: int) -> bool:
    """Whether the broker may answer otherwise when it is asked again."""
    return bool(kafka.errors.for_code(code).retriable)


class _Socket(KafkaNetSocket):  # type: ignore[misc]
    """How our connections are made: kafka-python leaves a refused socket to the garbage collector, which warns.

    It is found by the scheme of the setting for proxies, so that no other user of kafka-python meets it.
    """

    SCHEMES = ("streamlearn",)

    async def sock_connect(self, net: Any, sock: Any, *args: Any, **named: Any) -> Any:
        try:
            return await super().sock_connect(net, sock, *args, **named)
        except BaseException:
            sock.close()
            raise


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:200]


class _Hush(logging.Filter):
    """A broker that is away is reported once, by an error of ours; kafka-python would log every attempt.

    What other threads log comes from other users of kafka-python, and passes.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").endswith(_CLIENT_ID)


_HUSH = _Hush()


def _hush() -> None:
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.split(".")[0] == "kafka" and isinstance(logger, logging.Logger):
            logger.addFilter(_HUSH)  # once, however often it is added

"""A connection to Kafka's brokers: requests and answers. The one module that imports kafka.

It speaks the protocol through kafka-python's connections and message classes instead of its consumer and
producer: those name topics, so a topic deleted and created again is taken for the old one, and they spend
tens of microseconds on a record. Here topics are asked for by id, records are packed and scanned natively.
"""

from __future__ import annotations

import logging
import os
import uuid
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamlearn.errors import BadRecord, ConfigError, ServiceError
from streamlearn.topics.settings import AccessSettings, KafkaSecurity

with warnings.catch_warnings():  # its schemas are read by a call that Python 3.11 and 3.12 call deprecated
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.codec
    import kafka.errors
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.selector import NetworkSelector
    from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest
    from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
    from kafka.protocol.metadata import MetadataRequest
    from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

__all__ = [
    "DUPLICATE_SEQUENCE",
    "EARLIEST",
    "LATEST",
    "MESSAGE_TOO_LARGE",
    "NO_ERROR",
    "OFFSET_OUT_OF_RANGE",
    "PRODUCER_STATE_LOST",
    "TOPIC_EXISTS",
    "UNKNOWN_TOPIC",
    "Fetched",
    "KafkaLink",
    "LinkDown",
    "Produced",
    "TopicFacts",
    "decompress",
    "error_name",
    "is_passing",
]

NO_ERROR = 0
OFFSET_OUT_OF_RANGE = 1
MESSAGE_TOO_LARGE = (10, 18)
TOPIC_EXISTS = 36
DUPLICATE_SEQUENCE = 46
UNKNOWN_TOPIC = (3, 100, 103)
PRODUCER_STATE_LOST = (45, 47, 59)
EARLIEST = -2
LATEST = -1
_READ_COMMITTED = 1
_TOPIC_RESOURCE = 2
_INFLATED_BYTES_MAX = 512 * 1_048_576
_NOBODY = uuid.UUID(int=0)
PASSWORD_VARIABLE = "STREAMLEARN_KAFKA_PASSWORD"


class LinkDown(Exception):
    """A request without an answer; whether the broker acted on it is not known."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a broker says of a topic: its id, and the broker that leads each partition (-1: none now)."""

    topic_id: uuid.UUID
    leaders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer to a fetch: record batches, and (producer id, first offset) of aborted transactions."""

    error: int
    data: bytes
    aborted: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Produced:
    """An answer to a produce request; `reason` is the broker's own words, often empty."""

    error: int
    base_offset: int
    reason: str


class KafkaLink:
    """Connections to the brokers of one cluster, with a thread of their own. Safe to use from many threads.

    A broker answers the requests of one connection in turn: what waits for records has a link of its own.
    """

    def __init__(self, brokers: tuple[str, ...], access: AccessSettings) -> None:
        _hush()
        config = {
            "bootstrap_servers": list(brokers),
            "client_id": "streamlearn",
            "request_timeout_ms": access.request_timeout_ms,
            "reconnect_backoff_ms": access.retry_wait_ms,
            "reconnect_backoff_max_ms": max(access.retry_wait_ms, 1_000),
            "socket_connection_setup_timeout_ms": access.request_timeout_ms,
            "receive_message_max_bytes": access.response_bytes_max,
            **_security(access.kafka),
        }
        self._access = access
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
        except (kafka.errors.KafkaError, OSError) as error:
            raise LinkDown(_brief(error)) from error

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._net.run(self._manager.close)
        self._net.close()

    def topic(self, name: str) -> TopicFacts | None:
        """What the cluster says of a topic; None when there is none."""
        asked = MetadataRequest.MetadataRequestTopic(topic_id=_NOBODY, name=name)
        answer = self._ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=False, min_version=10))
        found = answer.topics[0]
        if found.error_code in UNKNOWN_TOPIC:
            return None
        if found.error_code != NO_ERROR:
            raise LinkDown(error_name(found.error_code))
        leaders = {part.partition_index: part.leader_id for part in found.partitions}
        return TopicFacts(found.topic_id, tuple(leaders.get(at, -1) for at in range(len(leaders))))

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> tuple[int, str]:
        """Create a topic with the cluster's own replication; gives the error code and the broker's words."""
        kind = CreateTopicsRequest.CreatableTopic
        settings = [kind.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = kind(name=name, num_partitions=partitions, replication_factor=-1, assignments=[], configs=settings)
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._access.request_timeout_ms, validate_only=False, min_version=4
        )
        answer = self._ask(request).topics[0]
        return answer.error_code, answer.error_message or ""

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

    def fetch(self, leader: int, topic_id: uuid.UUID, at: tuple[int, int], *, bytes_max: int, wait_ms: int) -> Fetched:
        """Record batches of (partition, offset) of the topic with this id, waiting until there are some."""
        kind = FetchRequest.FetchTopic
        part = kind.FetchPartition(partition=at[0], fetch_offset=at[1], partition_max_bytes=bytes_max)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic_id=topic_id, partitions=[part])],
            forgotten_topics_data=[],
            min_version=13,
        )
        answer = self._ask(request, leader, self._access.request_timeout_ms + wait_ms)
        if answer.error_code != NO_ERROR:
            return Fetched(answer.error_code, b"", [])
        found = answer.responses[0].partitions[0]
        aborted = [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or ()]
        return Fetched(found.error_code, bytes(found.records or b""), aborted)

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

    def produce(self, leader: int, topic: tuple[str, uuid.UUID], partition: int, batch: bytes) -> Produced:
        """Append one record batch, acknowledged by all replicas in sync.

        Brokers before 4.0 know only the topic's name here.
        """
        kind = ProduceRequest.TopicProduceData
        part = kind.PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=self._access.request_timeout_ms,
            topic_data=[kind(name=topic[0], topic_id=topic[1], partition_data=[part])],
        )
        answer = self._ask(request, leader).responses[0].partition_responses[0]
        details = [entry.batch_index_error_message for entry in answer.record_errors or ()]
        reason = next((detail for detail in details if detail), answer.error_message or "")
        return Produced(answer.error_code, answer.base_offset, reason)

    def _ask(self, request: Any, node: int | None = None, timeout_ms: int | None = None) -> Any:
        bound_ms = timeout_ms or self._access.request_timeout_ms
        try:
            return self._manager.run(_sent, self._manager, request, node, bound_ms)
        except (kafka.errors.KafkaError, OSError) as error:
            raise LinkDown(_brief(error)) from error


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


def decompress(codec: int, data: bytes) -> bytes:
    """The records of a compressed batch, at most 512 MiB of them.

    Raises:
        BadRecord: The bytes are not what the codec's number says, or too many come out.
        ServiceError: The codec's package is not installed.
    """
    name, present, decode = _CODECS.get(codec, (str(codec), _never, None))
    if decode is None or not present():
        message = f"records are compressed with {name}, which is not installed here"
        raise ServiceError(message, help=f"`pip install kafka-python[{name}]`, or let producers use gzip or none")
    try:
        plain: bytes = decode(data)
    except Exception as error:
        message = f"records compressed with {name} cannot be decompressed: {error}"
        raise BadRecord(message, help="the topic holds damaged records; read on from a later position") from error
    return plain


def _gunzip(data: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    plain = inflater.decompress(data, _INFLATED_BYTES_MAX)
    if not inflater.eof:
        message = f"incomplete, or more than {_INFLATED_BYTES_MAX} bytes"
        raise ValueError(message)
    return plain


def _never() -> bool:
    return False


_CODECS: dict[int, tuple[str, Any, Any]] = {
    1: ("gzip", kafka.codec.has_gzip, _gunzip),
    2: ("snappy", kafka.codec.has_snappy, kafka.codec.snappy_decode),
    3: ("lz4", kafka.codec.has_lz4, kafka.codec.lz4_decode),
    4: ("zstd", kafka.codec.has_zstd, kafka.codec.zstd_decode),
}


_connect_socket = KafkaNetSocket.sock_connect


async def _connect_or_close(self: Any, net: Any, sock: Any, *args: Any, **named: Any) -> Any:
    """Connect a socket; kafka-python leaves a refused one to the garbage collector, which warns of it."""
    try:
        return await _connect_socket(self, net, sock, *args, **named)
    except BaseException:
        sock.close()
        raise


KafkaNetSocket.sock_connect = _connect_or_close


async def _sent(manager: Any, request: Any, node: int | None, timeout_ms: int) -> Any:
    future = manager.send(request, node_id=node, request_timeout_ms=timeout_ms)
    return await manager.wait_for(future, timeout_ms)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:200]


def _hush() -> None:
    """A broker that is away is reported once, by an error of ours; kafka-python would log every attempt."""
    log = logging.getLogger("kafka")
    if log.level == logging.NOTSET:
        log.setLevel(logging.CRITICAL + 1)

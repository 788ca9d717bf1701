"""A connection to Kafka's brokers: requests and answers. Only it and `kafka_connections` import kafka.

It uses kafka-python's connections and message classes instead of its consumer and producer. Those address topics
by name, so they take a topic that was deleted and created again for the old one, and they process each record in
Python. Here requests address topics by id, and native code packs and scans records.
"""

from __future__ import annotations

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
from streamlearn.settings.topics import KafkaSettings
from streamlearn.topics.kafka_connections import CLIENT_ID, SOCKETS_URL, Connections, Selector, silence_kafka_python
from streamlearn.topics.meters import note_answer
from streamlearn.topics.settings import AccessSettings

with warnings.catch_warnings():  # kafka-python reads its schemas with a call that Python 3.11 and 3.12 deprecate
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka.errors
    from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest
    from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
    from kafka.protocol.metadata import MetadataRequest
    from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

__all__ = [
    "EARLIEST",
    "LATEST",
    "ErrorCode",
    "Fetched",
    "KafkaLink",
    "LinkDown",
    "Pending",
    "Produced",
    "TopicFacts",
    "error_name",
    "is_passing",
]

EARLIEST, LATEST = -2, -1
_READ_COMMITTED, _TOPIC_RESOURCE = 1, 2
_OVERTIME_S = 1.0  # how much longer than its own bound to wait for a request, in case kafka-python forgets it
_NO_TOPIC_ID = uuid.UUID(int=0)
_T = TypeVar("_T")
PASSWORD_VARIABLE = "STREAMLEARN_KAFKA_PASSWORD"


class ErrorCode:
    """The error codes of Kafka's protocol that need special care, some of them in groups."""

    NO_ERROR = 0
    OFFSET_OUT_OF_RANGE = 1
    MESSAGE_TOO_LARGE = (10, 18)
    TOPIC_EXISTS = 36
    DUPLICATE_SEQUENCE = 46
    UNKNOWN_TOPIC = (3, 100, 103)
    NOT_ALLOWED = (29, 31)
    PRODUCER_STATE_LOST = (45, 47, 59)
    # Errors that a broker returns before it appends. After others, such as REQUEST_TIMED_OUT or NOT_LEADER, the batch
    # may have been written: the leader appends before it waits for its replicas.
    CERTAINLY_REFUSED = frozenset((2, 3, 10, 17, 18, 19, 21, 29, 31, 32, 43, 44, 45, 47, 59, 76, 87, 100, 103))


class LinkDown(Exception):
    """A request got no answer; whether the broker acted on it is unknown."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A broker's metadata of a topic."""

    topic_id: uuid.UUID
    leaders: tuple[int, ...]  # of each partition; -1 while it has none
    replicas: int = 1  # the fewest of any partition


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer to a fetch of one partition."""

    error: int
    data: bytes  # record batches
    aborted: list[tuple[int, int]]  # (producer id, first offset) of aborted transactions
    stable_end: int = -1
    diverges_at: int = -1  # the first offset that may differ, if the log diverges from the leader epoch in the request


@dataclass(frozen=True, slots=True)
class Produced:
    """An answer to a produce request."""

    error: int
    base_offset: int
    reason: str  # the broker's message, often empty


class Pending(Generic[_T]):
    """A request in flight. Its signal is set when it is answered or has failed."""

    def __init__(self, future: Any, parse: Callable[[Any], _T], signal: threading.Event) -> None:
        self.done_ms = math.inf  # when it was answered or failed, on the monotonic clock
        self._future = future
        self._parse = parse
        self._signal = signal
        future.add_both(self._finish)

    def _finish(self, _: object) -> None:
        self.done_ms = time.monotonic() * 1000
        self._signal.set()

    @property
    def done(self) -> bool:
        """Whether the request was answered or has failed."""
        return self.done_ms < math.inf

    def take(self) -> _T:
        """Return the answer; raises LinkDown if there is none, or not yet."""
        if not self.done:
            message = "no answer yet"
            raise LinkDown(message)
        error = self._future.exception
        if error is not None:
            raise LinkDown(_brief(error)) from error
        return _understood(self._parse, self._future.value)


class KafkaLink:
    """Connections to the brokers of one cluster, with their own thread. Safe to use from many threads.

    A broker answers the requests of one connection in turn, so everything that waits for records has its own link.
    """

    def __init__(self, brokers: tuple[str, ...], access: AccessSettings) -> None:
        silence_kafka_python()
        config = {
            "bootstrap_servers": list(brokers),
            "client_id": CLIENT_ID,
            "request_timeout_ms": access.request_timeout_ms,
            "reconnect_backoff_ms": access.retry_wait_ms,
            "reconnect_backoff_max_ms": max(access.retry_wait_ms, 1_000),
            "socket_connection_setup_timeout_ms": access.request_timeout_ms,
            "receive_message_max_bytes": access.response_bytes_max,
            "proxy_url": SOCKETS_URL,
            **_security(access.kafka),
        }
        self._access = access
        self._address = ",".join(brokers)
        self._net = Selector(**config)
        self._manager = Connections(self._net, **config)
        self._net.start()

    def connect(self, timeout_ms: float) -> None:
        """Find the cluster, also after its brokers were away; raises LinkDown if none answers in time."""
        try:
            self._manager.bootstrap(timeout_ms=timeout_ms)
        except Exception as error:  # kafka-python raises many types, RuntimeError among them
            raise LinkDown(_brief(error)) from error

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._net.run(self._manager.close)
        self._net.close()

    def topic(self, name: str) -> TopicFacts | None:
        """Return the cluster's metadata of a topic; None if it does not exist."""
        return self._ask(_metadata_request(name), _facts_of)

    def topic_by_broker(self, name: str) -> list[TopicFacts | None]:
        """Return each broker's metadata of a topic, since a change reaches the brokers one after the other."""
        brokers, request = self._manager.cluster.brokers(), _metadata_request(name)
        return [self._ask(request, _facts_of, broker.node_id) for broker in brokers]

    def begin_topic(self, name: str, *, connect: bool, signal: threading.Event) -> Pending[TopicFacts | None]:
        """Request a topic's metadata without waiting; `connect` finds the cluster first."""
        request = _metadata_request(name)
        future = self._manager.call_soon(self._look_up, request, connect, self._access.request_timeout_ms)
        return Pending(future, _facts_of, signal)

    def create(
        self, name: str, partitions: int, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> tuple[int, str, int]:
        """Create a topic with the cluster's default replication; with `validate_only`, only validate the request.

        Returns the error code, the broker's message and the number of replicas (-1 if this user may not see it).
        """
        kind = CreateTopicsRequest.CreatableTopic
        settings = [kind.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = kind(name=name, num_partitions=partitions, replication_factor=-1, assignments=[], configs=settings)
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._access.request_timeout_ms, validate_only=validate_only, min_version=5
        )
        answer = self._ask(request, lambda answer: answer.topics[0])
        return answer.error_code, answer.error_message or "", answer.replication_factor

    def delete(self, name: str) -> int:
        """Delete a topic and return the error code."""
        topics = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)]
        request = DeleteTopicsRequest(topics=topics, topic_names=[name], timeout_ms=self._access.request_timeout_ms)
        return self._ask(request, lambda answer: int(answer.responses[0].error_code))

    def configs(self, name: str) -> tuple[int, dict[str, str]]:
        """Return the error code and the broker's settings of a topic."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        answer = self._ask(DescribeConfigsRequest(resources=[resource]), lambda answer: answer.results[0])
        return answer.error_code, {config.name: config.value for config in answer.configs or ()}

    def offset(self, leader: int, name: str, partition: int, timestamp_ms: int) -> tuple[int, int]:
        """Return the error code and the first offset at or after a time (or EARLIEST, LATEST); -1 if there is none."""
        kind = ListOffsetsRequest.ListOffsetsTopic
        asked = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp_ms)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=_READ_COMMITTED,
            topics=[kind(name=name, partitions=[asked])],
            timeout_ms=self._access.request_timeout_ms,
            min_version=2,
        )
        part = self._ask(request, lambda answer: answer.topics[0].partitions[0], leader)
        return part.error_code, part.offset

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
        """Request record batches without waiting for the answer, which sets `signal`.

        `positions` maps partitions to offsets, and `leader_epochs` partitions to the leader epoch of the record before
        that offset, if known. `bytes_max` bounds one partition and the whole answer. The broker waits up to `wait_ms`
        for records, and refuses if its topic has another id.
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
        """Return the error code, and the id and epoch of a new producer."""
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=self._access.request_timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        return self._ask(request, lambda answer: (answer.error_code, answer.producer_id, answer.producer_epoch))

    def produce(
        self, topic: tuple[str, uuid.UUID], batches: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, Produced | LinkDown]:
        """Append one record batch to each of many partitions, acknowledged by all replicas in sync.

        `topic` is its name and id; brokers before 4.0 use only the name. `batches` maps leaders to partitions to
        batches. All requests go out at once.
        """
        signal, bound_ms = threading.Event(), self._access.request_timeout_ms
        pending = [
            (parts, Pending(self._begin(_produce_request(topic, parts, bound_ms), leader, bound_ms), _produced, signal))
            for leader, parts in batches.items()
        ]
        deadline_s = time.monotonic() + bound_ms / 1000 + _OVERTIME_S
        while not all(request.done for _, request in pending) and (left_s := deadline_s - time.monotonic()) > 0:
            signal.wait(left_s)
            signal.clear()
        outcomes: dict[int, Produced | LinkDown] = {}
        for parts, request in pending:
            try:
                answers = request.take()
                missing = LinkDown("the broker did not answer for the partition")
                outcomes.update((partition, answers.get(partition, missing)) for partition in parts)
            except LinkDown as error:
                outcomes |= dict.fromkeys(parts, error)
        return outcomes

    def _ask(self, request: Any, parse: Callable[[Any], _T], node: int | None = None) -> _T:
        try:
            answer = self._manager.run(self._send, request, node, self._access.request_timeout_ms)
        except Exception as error:
            raise LinkDown(_brief(error)) from error
        return _understood(parse, answer)

    def _begin(self, request: Any, node: int, timeout_ms: int) -> Any:
        return self._manager.call_soon(self._send, request, node, timeout_ms)

    async def _look_up(self, request: Any, connect: bool, timeout_ms: int) -> Any:
        if connect:
            await self._manager.bootstrap_async(timeout_ms=timeout_ms)
        return await self._send(request, None, timeout_ms)

    async def _send(self, request: Any, node: int | None, timeout_ms: int) -> Any:
        future = self._manager.send(request, node_id=node, request_timeout_ms=timeout_ms)
        answer = await self._manager.wait_for(future, timeout_ms)
        note_answer(self._address)
        return answer


def _understood(parse: Callable[[Any], _T], answer: Any) -> _T:
    """Parse an answer; one that lacks what was asked for raises LinkDown."""
    try:
        return parse(answer)
    except (AttributeError, IndexError, TypeError) as error:
        message = f"the broker's {type(answer).__name__} lacks what was asked for: {_brief(error)}"
        raise LinkDown(message) from error


def _metadata_request(name: str) -> Any:
    topic = MetadataRequest.MetadataRequestTopic(topic_id=_NO_TOPIC_ID, name=name)
    return MetadataRequest(topics=[topic], allow_auto_topic_creation=False, min_version=10)


def _facts_of(answer: Any) -> TopicFacts | None:
    topic = answer.topics[0]
    if topic.error_code in ErrorCode.UNKNOWN_TOPIC:
        return None
    if topic.error_code != ErrorCode.NO_ERROR:
        raise LinkDown(error_name(topic.error_code))
    leaders = {part.partition_index: part.leader_id for part in topic.partitions}
    replicas = min((len(part.replica_nodes) for part in topic.partitions), default=1)
    return TopicFacts(topic.topic_id, tuple(leaders.get(at, -1) for at in range(len(leaders))), replicas)


def _fetched(answer: Any, positions: Mapping[int, int]) -> dict[int, Fetched]:
    if answer.error_code != ErrorCode.NO_ERROR:
        return {partition: Fetched(answer.error_code, b"", []) for partition in positions}
    fetched = {}
    parts = (part for topic in answer.responses for part in topic.partitions)
    for part in (part for part in parts if part.partition_index in positions):
        aborted = [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()]
        data = part.records or b""
        diverges_at = part.diverging_epoch.end_offset if part.diverging_epoch else -1
        fetched[part.partition_index] = Fetched(part.error_code, data, aborted, part.last_stable_offset, diverges_at)
    return fetched


def _produce_request(topic: tuple[str, uuid.UUID], batches: Mapping[int, bytes], timeout_ms: int) -> Any:
    kind = ProduceRequest.TopicProduceData
    parts = [kind.PartitionProduceData(index=partition, records=batch) for partition, batch in batches.items()]
    data = kind(name=topic[0], topic_id=topic[1], partition_data=parts)
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=[data])


def _produced(answer: Any) -> dict[int, Produced]:
    produced = {}
    for part in answer.responses[0].partition_responses:
        details = [entry.batch_index_error_message for entry in part.record_errors or ()]
        reason = next((detail for detail in details if detail), part.error_message or "")
        produced[part.index] = Produced(part.error_code, part.base_offset, reason)
    return produced


def _security(kafka: KafkaSettings) -> dict[str, Any]:
    """Return kafka-python's options for TLS and SASL; a SASL protocol without user or password raises ConfigError."""
    config: dict[str, Any] = {"security_protocol": kafka.security_protocol}
    if kafka.security_protocol.endswith("SSL"):
        config["ssl_cafile"] = kafka.ssl_cafile or None
    if kafka.security_protocol.startswith("SASL"):
        password = os.environ.get(PASSWORD_VARIABLE, "")
        if not password or not kafka.sasl_username:
            message = f"security protocol {kafka.security_protocol} needs a user and a password"
            raise ConfigError(message, help=f"set kafka.sasl_username, and {PASSWORD_VARIABLE} in the environment")
        config["sasl_mechanism"] = kafka.sasl_mechanism
        config["sasl_plain_username"] = kafka.sasl_username
        config["sasl_plain_password"] = password
    return config


def error_name(code: int) -> str:
    """Return the name of a broker's error code."""
    return f"{kafka.errors.for_code(code).__name__.removesuffix('Error')} ({code})"


def is_passing(code: int) -> bool:
    """Return whether a retry may succeed."""
    return bool(kafka.errors.for_code(code).retriable)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:200]

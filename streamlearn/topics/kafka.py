"""Topics in Kafka, for production: settings as broker configs, creation and deletion."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError, TopicError, TopicExists, TopicMissing
from streamlearn.topics.kafka_link import ErrorCode, error_name, is_passing
from streamlearn.topics.kafka_reader import KafkaReader
from streamlearn.topics.kafka_session import KafkaSession, TryAgain
from streamlearn.topics.kafka_writer import BATCH_OVERHEAD_BYTES, KafkaWriter
from streamlearn.topics.settings import (
    IN_SYNC_SAFE,
    REPLICAS_SAFE,
    AccessSettings,
    Durability,
    TopicSettings,
    WriterSettings,
)
from streamlearn.topics.topic import Reader, Topic
from streamlearn.topics.url import TopicUrl
from streamlearn.topics.writer import Writer

__all__ = ["KafkaTopic", "create_kafka_topic", "delete_kafka_topic"]

_LOG = logging.getLogger(__name__)
_SAID_AFTER_S = 3.0
_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


def create_kafka_topic(url: TopicUrl, settings: TopicSettings, access: AccessSettings) -> None:
    """Create a topic and wait until every partition has a leader.

    Raises TopicExists if the name is taken, and ConfigError if the broker refuses the settings.
    """
    session = KafkaSession(url, access, SYSTEM_CLOCK)

    def create() -> None:
        session.link.connect(access.request_timeout_ms)
        configs = _configs_of(settings)
        code, reason, replicas = session.link.create(url.name, settings.partitions, configs, validate_only=True)
        if code != ErrorCode.NO_ERROR and code != ErrorCode.TOPIC_EXISTS and not is_passing(code):
            # Some managed brokers do not allow this config; their value is false.
            configs.pop(_UNCLEAN, None)
            code, reason, replicas = session.link.create(url.name, settings.partitions, configs, validate_only=True)
        if code == ErrorCode.NO_ERROR:
            if replicas >= REPLICAS_SAFE:
                configs[_IN_SYNC] = str(IN_SYNC_SAFE)
            code, reason, _ = session.link.create(url.name, settings.partitions, configs)
        if code == ErrorCode.TOPIC_EXISTS:
            message = f"{session.url} exists already"
            raise TopicExists(message, help="delete it first, or choose another name")
        if code != ErrorCode.NO_ERROR and not is_passing(code):
            message = f"{session.url}: the broker refused to create it: {error_name(code)}: {reason}"
            raise ConfigError(message, help="change the setting the broker names")
        session.check(code)

    def check_leaders() -> None:
        session.link.connect(access.request_timeout_ms)
        for facts in session.link.topic_by_broker(url.name):
            if facts is None or len(facts.leaders) != settings.partitions or min(facts.leaders) < 0:
                message = "a broker does not know the leaders of the new topic yet"
                raise TryAgain(message)

    with closing(session):
        session.persist(create, refresh=False)
        session.persist(check_leaders, refresh=False)


def delete_kafka_topic(url: TopicUrl, access: AccessSettings) -> None:
    """Delete a topic and wait until no broker knows it; raises TopicMissing if it does not exist."""
    session = KafkaSession(url, access, SYSTEM_CLOCK)

    def delete() -> None:
        session.link.connect(access.request_timeout_ms)
        code = session.link.delete(url.name)
        if code in ErrorCode.UNKNOWN_TOPIC:
            message = f"topic {session.url} does not exist"
            raise TopicMissing(message, help="correct the name, or regard it as deleted")
        session.check(code)

    def check_deleted() -> None:
        session.link.connect(access.request_timeout_ms)
        if any(session.link.topic_by_broker(url.name)):
            message = "the brokers still know the topic"
            raise TryAgain(message)

    with closing(session):
        session.persist(delete, refresh=False)
        session.persist(check_deleted, refresh=False)


class KafkaTopic(Topic):
    """A topic of a Kafka cluster. Its readers and writers have their own connections."""

    def __init__(self, url: TopicUrl, access: AccessSettings, clock: Clock) -> None:
        session = _open_session(url, access, clock)
        self.url = session.url
        self.topic_id = str(session.facts.topic_id)
        self.partitions = len(session.facts.leaders)
        self._parsed = url
        self._session = session

    def settings(self) -> TopicSettings:
        """Return the broker's current settings of the topic."""
        code, configs = self._configs()
        self._session.check(code)
        return _settings_of(self.url, configs, self.partitions)

    def _configs(self) -> tuple[int, dict[str, str]]:
        """Return the broker's configs of the topic, or a code of `NOT_ALLOWED` if this user may not read them."""

        def attempt() -> tuple[int, dict[str, str]]:
            code, configs = self._session.link.configs(self._parsed.name)
            if code not in ErrorCode.NOT_ALLOWED:
                self._session.check(code)
            return code, configs

        answer = self._session.persist(attempt)
        self._session.persist(self._session.verify)  # the request names the topic, not its id
        return answer

    def durability(self) -> Durability | None:
        """Return the broker's replication settings; None if this user may not read them or the broker omits them."""
        code, configs = self._configs()
        if code in ErrorCode.NOT_ALLOWED:
            return None
        if _IN_SYNC not in configs or _UNCLEAN not in configs:
            return None
        return Durability(
            replicas=self._session.facts.replicas,
            in_sync_min=int(configs[_IN_SYNC]),
            unclean=configs[_UNCLEAN] == "true",
        )

    def writer(self, settings: WriterSettings | None = None) -> Writer:
        """Return an idempotent writer, acknowledged by all in-sync replicas, with its own connection.

        If this user may write but not read the topic's settings, the writer checks records against the default
        settings, and the broker against the real ones.
        """
        code, configs = self._configs()
        if code in ErrorCode.NOT_ALLOWED:
            topic = TopicSettings(partitions=self.partitions)
            message = "%s: this user may not read its settings: records are checked against a record_bytes_max of %d"
            _LOG.warning(message, self.url, topic.record_bytes_max)
        else:
            topic = _settings_of(self.url, configs, self.partitions)
        session = self._reopen_session()
        return KafkaWriter(session, topic, settings or WriterSettings(), session.clock)

    def maintain(self) -> None:
        """Do nothing: the broker applies retention and compaction."""

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _open_reader(self, partitions: tuple[int, ...]) -> Reader:
        return KafkaReader(self._reopen_session(), partitions)

    def _reopen_session(self) -> KafkaSession:
        known = (self.topic_id, self.partitions)
        return _open_session(self._parsed, self._session.access, self._session.clock, known)


def _open_session(
    url: TopicUrl, access: AccessSettings, clock: Clock, known: tuple[str, int] | None = None
) -> KafkaSession:
    """Return a session that has fetched the topic's metadata."""
    session = KafkaSession(url, access, clock, known)
    address, bound_s = ",".join(url.brokers), access.unreachable_after_ms / 1e3
    # A log without handlers goes to stderr: commands say what they wait for.
    timer = threading.Timer(
        _SAID_AFTER_S, _LOG.warning, ("waiting for the broker at %s (up to %g s)", address, bound_s)
    )
    timer.daemon = True
    timer.start()
    try:
        session.persist(lambda: session.facts)
    except BaseException:
        session.close()
        raise
    finally:
        timer.cancel()
    return session


def _configs_of(settings: TopicSettings) -> dict[str, str]:
    bounded = settings.retention_ms != -1 or settings.retention_bytes != -1
    policies = ["compact"] * settings.compacted + ["delete"] * (bounded or not settings.compacted)
    return {
        "cleanup.policy": ",".join(policies),
        "retention.ms": str(settings.retention_ms),
        "retention.bytes": str(settings.retention_bytes),
        "delete.retention.ms": str(settings.tombstones_keep_ms),
        "max.message.bytes": str(settings.record_bytes_max + BATCH_OVERHEAD_BYTES),
        "segment.bytes": str(settings.segment_bytes),
        _UNCLEAN: "false",
    }


def _settings_of(url: str, configs: dict[str, str], partitions: int) -> TopicSettings:
    """Return the settings in effect; raises TopicError if the broker leaves some out, or gives no numbers."""
    try:
        policies = configs["cleanup.policy"].split(",")
        deletes = "delete" in policies  # a topic that is only compacted has no retention by age or size
        return TopicSettings(
            partitions=partitions,
            retention_ms=max(int(configs["retention.ms"]), -1) if deletes else -1,
            retention_bytes=max(int(configs["retention.bytes"]), -1) if deletes else -1,
            compacted="compact" in policies,
            tombstones_keep_ms=int(configs["delete.retention.ms"]),
            record_bytes_max=max(int(configs["max.message.bytes"]) - BATCH_OVERHEAD_BYTES, 1),
            segment_bytes=int(configs["segment.bytes"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{url}: the broker's settings of the topic cannot be read: {type(error).__name__}: {error}"
        raise TopicError(message, help="check that a Kafka broker answers at this address") from error

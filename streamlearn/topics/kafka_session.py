"""A session with a Kafka topic: a link with bounded retries, and the topic's metadata.

It knows the topic's id and refuses any other. It does not know the requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from streamlearn.clock import Clock
from streamlearn.errors import TopicError, TopicMissing, TopicUnreachable
from streamlearn.topics.kafka_link import ErrorCode, KafkaLink, LinkDown, Pending, TopicFacts, error_name, is_passing
from streamlearn.topics.meters import Meter
from streamlearn.topics.settings import AccessSettings
from streamlearn.topics.topic import replaced
from streamlearn.topics.url import TopicUrl

__all__ = ["KafkaSession", "TryAgain"]

_T = TypeVar("_T")


class TryAgain(Exception):
    """The answer may soon be another: a leader election is under way, or a broker is starting."""


class KafkaSession:
    """A link to the brokers of one topic. Close it.

    `known` is the topic's id and its number of partitions, if it was opened before; the session refuses any other.
    """

    def __init__(
        self, url: TopicUrl, access: AccessSettings, clock: Clock, known: tuple[str, int] | None = None
    ) -> None:
        self.name = url.name
        self._address = ",".join(url.brokers)
        self.url = f"kafka://{self._address}/{url.name}"
        self.access = access
        self.clock = clock
        self.link = KafkaLink(url.brokers, access)
        self._known = known
        self._facts: TopicFacts | None = None
        self._meter = Meter(self.url)
        self._checked_ms = self.now_ms()

    def close(self) -> None:
        """Close the link."""
        self.link.close()

    def now_ms(self) -> float:
        """Return the milliseconds of the monotonic clock."""
        return self.clock.monotonic_s() * 1000

    @property
    def facts(self) -> TopicFacts:
        """The topic's metadata, requested on first use."""
        if self._facts is None:
            self.refresh(min(self.access.request_timeout_ms, self.access.unreachable_after_ms))
        assert self._facts is not None  # refresh stores them or raises
        return self._facts

    def leader(self, partition: int) -> int:
        """Return the broker that leads a partition; raises TryAgain while there is none."""
        leader = self.facts.leaders[partition]
        if leader < 0:
            message = f"partition {partition} has no leader"
            raise TryAgain(message)
        return leader

    def refresh(self, timeout_ms: float) -> None:
        """Find the cluster and verify the topic; raises LinkDown if no broker answers, and as `accept` does."""
        self.link.connect(timeout_ms)
        self.verify()

    def verify(self) -> None:
        """Request the topic's metadata over the existing connection; raises LinkDown, and as `accept` does."""
        self.accept(self.link.topic(self.name))

    def is_due(self) -> bool:
        """Return whether the last check is older than `check_every_ms`."""
        return self.now_ms() - self._checked_ms >= self.access.check_every_ms

    def begin_verify(self, *, connect: bool, signal: threading.Event) -> Pending[TopicFacts | None]:
        """Request the topic's metadata without waiting; pass the answer to `accept`."""
        self._checked_ms = self.now_ms()
        return self.link.begin_topic(self.name, connect=connect, signal=signal)

    def accept(self, facts: TopicFacts | None) -> None:
        """Check and store new metadata of the topic.

        Raises:
            TopicMissing: The topic does not exist (any more).
            TopicReplaced: It has another id than before.
            TopicError: It has more partitions than before.
            TryAgain: It has fewer: the broker is behind.
        """
        if facts is None:
            message = f"topic {self.url} does not exist"
            raise TopicMissing(message, help="create it first; reading or writing never creates a topic")
        topic_id, partitions = str(facts.topic_id), len(facts.leaders)
        known_id, known_partitions = self._known or (topic_id, partitions)
        if topic_id != known_id:
            raise replaced(self.url, known_id, topic_id)
        if partitions > known_partitions:
            message = f"{self.url} now has {partitions} partitions; it had {known_partitions} when it was opened"
            help = (
                "open it again to use all partitions; many keys now go to other partitions, so start "
                "consumers that join by key from the beginning, and give impressions and actions the same "
                "number"
            )
            raise TopicError(message, help=help)
        if partitions < known_partitions:
            message = f"the broker knows {partitions} of {known_partitions} partitions"
            raise TryAgain(message)
        self._known, self._facts, self._checked_ms = (known_id, known_partitions), facts, self.now_ms()

    def check(self, code: int) -> None:
        """Check an error code; raises TryAgain if a retry may succeed, otherwise TopicUnreachable."""
        if code == ErrorCode.NO_ERROR:
            return
        if code in ErrorCode.UNKNOWN_TOPIC or is_passing(code):
            raise TryAgain(error_name(code))
        message = f"{self.url}: the broker refused: {error_name(code)}"
        raise TopicUnreachable(message, help="see the broker's log, and check this client's rights to the topic")

    def persist(self, attempt: Callable[[], _T], bound_ms: float | None = None, *, refresh: bool = True) -> _T:
        """Retry an attempt that raises `LinkDown` or `TryAgain` until it succeeds, and return its result.

        After the bound, by default `unreachable_after_ms`, it raises TopicUnreachable. `refresh` verifies the topic
        between tries; leave it out where the topic need not exist.
        """
        bound_ms = self.access.unreachable_after_ms if bound_ms is None else bound_ms
        started_ms, tries = self.now_ms(), 0
        while True:
            tries += 1
            try:
                return attempt()
            except (LinkDown, TryAgain) as error:
                reason: Exception = error
            spent_ms = self.now_ms() - started_ms
            if spent_ms >= bound_ms:
                raise self.unreachable(spent_ms, tries, reason) from reason
            self._meter.retried()
            pause_ms, left_ms = self.access.retry_wait_ms, bound_ms - spent_ms
            self.clock.sleep((min(pause_ms, left_ms) if refresh else pause_ms) / 1000)
            if refresh:
                with suppress(LinkDown, TryAgain):  # the next attempt meets the same error
                    self.refresh(min(self.access.request_timeout_ms, max(left_ms, pause_ms)))

    def unreachable(self, spent_ms: float, tries: int, reason: Exception) -> TopicUnreachable:
        """Return the error for brokers that did not answer."""
        message = f"{self.url}: {self._address} did not answer for {spent_ms:.0f} ms ({tries} tries): {reason}"
        return TopicUnreachable(message, help="check that the brokers run and that this machine can reach them")

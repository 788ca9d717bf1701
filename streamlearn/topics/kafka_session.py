"""A session with a Kafka topic: a link that is tried again until a bound, and what is known of the topic.

It knows the topic's id and refuses any other; it does not know what is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from streamlearn.clock import Clock
from streamlearn.errors import TopicError, TopicMissing, TopicUnreachable
from streamlearn.topics.kafka_link import (
    NO_ERROR,
    UNKNOWN_TOPIC,
    KafkaLink,
    LinkDown,
    Pending,
    TopicFacts,
    error_name,
    is_passing,
)
from streamlearn.topics.meters import Meter
from streamlearn.topics.settings import AccessSettings
from streamlearn.topics.topic import replaced
from streamlearn.topics.url import TopicUrl

__all__ = ["KafkaSession", "TryAgain"]

_T = TypeVar("_T")


class TryAgain(Exception):
    """An answer that may be another one soon: a leader is being elected, a broker is starting."""


class KafkaSession:
    """One link to the brokers of one topic. Close it.

    Args:
        url: The topic.
        access: How long to try.
        clock: Says how long it took.
        known: The topic's id and its partitions, when it was opened before: any other is refused.
    """

    def __init__(
        self, url: TopicUrl, access: AccessSettings, clock: Clock, known: tuple[str, int] | None = None
    ) -> None:
        self.name = url.name
        self.url = f"kafka://{','.join(url.brokers)}/{url.name}"
        self.access = access
        self.clock = clock
        self.link = KafkaLink(url.brokers, access)
        self._address = ",".join(url.brokers)
        self._known = known
        self._facts: TopicFacts | None = None
        self.meter = Meter(self.url)
        self._checked_ms = self.now_ms()

    def close(self) -> None:
        """Close the link."""
        self.link.close()

    def now_ms(self) -> float:
        """Milliseconds on the clock that only grows."""
        return self.clock.monotonic_s() * 1000

    @property
    def facts(self) -> TopicFacts:
        """What is known of the topic; asked for when nothing is."""
        if self._facts is None:
            self.refresh(self.access.request_timeout_ms)
        if self._facts is None:
            raise TryAgain("the metadata of the topic have not been fetched yet")  # noqa: EM101 - never shown by itself
        return self._facts

    def leader(self, partition: int) -> int:
        """The broker that leads a partition.

        Raises:
            TryAgain: There is none now.
        """
        leader = self.facts.leaders[partition]
        if leader < 0:
            message = f"partition {partition} has no leader"
            raise TryAgain(message)
        return leader

    def refresh(self, timeout_ms: float) -> None:
        """Find the cluster and ask again for the topic.

        Raises:
            LinkDown: Nobody answered.
            TopicMissing: There is no such topic (any more).
            TopicReplaced: It has another id than before.
        """
        self.link.connect(timeout_ms)
        self.verify()

    def verify(self) -> None:
        """Ask again for the topic, over the connection there is; raises as `refresh` does."""
        self.learn(self.link.topic(self.name))

    def verify_now_and_then(self) -> None:
        """Verify when the last look is older than `check_every_ms`."""
        if self.is_due():
            self.verify()

    def is_due(self) -> bool:
        """Whether it is time to look at the topic again."""
        return self.now_ms() - self._checked_ms >= self.access.check_every_ms

    def begin_look(self, *, connect: bool, signal: threading.Event) -> Pending[TopicFacts | None]:
        """Ask again for the topic without waiting; give the answer to `learn`."""
        self._checked_ms = self.now_ms()
        return self.link.begin_topic(self.name, connect=connect, signal=signal)

    def learn(self, facts: TopicFacts | None) -> None:
        """Take in what the brokers say of the topic.

        Raises:
            TopicMissing: There is no such topic (any more).
            TopicReplaced: It has another id than before.
            TopicError: It has more partitions than before.
            TryAgain: It has fewer: the broker is behind.
        """
        if facts is None:
            message = f"topic {self.url} does not exist"
            raise TopicMissing(message, help="create it first; reading or writing never creates a topic")
        found = (str(facts.topic_id), len(facts.leaders))
        known = self._known or found
        if found[0] != known[0]:
            raise replaced(self.url, known[0], found[0])
        if found[1] > known[1]:
            message = f"{self.url} now has {found[1]} partitions; it had {known[1]} when it was opened"
            help = (
                "open it again to use all partitions; many keys now go to other partitions, so start "
                "consumers that join by key from the beginning, and give impressions and actions the same "
                "number"
            )
            raise TopicError(message, help=help)
        if found[1] < known[1]:
            message = f"the broker knows {found[1]} of {known[1]} partitions"
            raise TryAgain(message)
        self._known, self._facts, self._checked_ms = known, facts, self.now_ms()

    def check(self, code: int) -> None:
        """Sort out an error code: nothing wrong, or worth another try.

        Raises:
            TryAgain: The broker may answer otherwise soon.
            TopicUnreachable: It will not.
        """
        if code == NO_ERROR:
            return
        if code in UNKNOWN_TOPIC or is_passing(code):
            raise TryAgain(error_name(code))
        message = f"{self.url}: the broker refused: {error_name(code)}"
        raise TopicUnreachable(message, help="see the broker's log, and check this client's rights to the topic")

    def persist(self, attempt: Callable[[], _T], bound_ms: float | None = None, *, refresh: bool = True) -> _T:
        """Do something until it succeeds or the bound has passed.

        Args:
            attempt: What to do; `LinkDown` and `TryAgain` are tried again.
            bound_ms: How long; `unreachable_after_ms` when None.
            refresh: Whether to ask again for the topic between tries; not where it need not exist.

        Raises:
            TopicUnreachable: It did not succeed within the bound.
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
            self.meter.retried()
            if refresh:
                self.try_refresh(bound_ms - spent_ms)
            else:
                self.clock.sleep(self.access.retry_wait_ms / 1000)

    def try_refresh(self, bound_ms: float) -> None:
        """Wait a moment, then refresh; a broker that does not answer is left to the next try."""
        self.clock.sleep(min(self.access.retry_wait_ms, max(bound_ms, 0)) / 1000)
        timeout_ms = min(self.access.request_timeout_ms, max(bound_ms, self.access.retry_wait_ms))
        try:
            self.refresh(timeout_ms)
        except (LinkDown, TryAgain):
            return

    def unreachable(self, spent_ms: float, tries: int, reason: Exception) -> TopicUnreachable:
        """The error of brokers that did not answer."""
        message = f"{self.url}: {self._address} did not answer for {spent_ms:.0f} ms ({tries} tries): {reason}"
        return TopicUnreachable(message, help="check that the brokers run and that this machine can reach them")

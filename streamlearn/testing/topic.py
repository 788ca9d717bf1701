"""A topic in memory with a name of its own, deleted after use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.topics import Topic, TopicSettings, create_topic, delete_topic

__all__ = ["memory_topic"]

_numbers = itertools.count()


@contextmanager
def memory_topic(settings: TopicSettings | None = None, clock: Clock = SYSTEM_CLOCK) -> Iterator[Topic]:
    """Yield a topic with the same contract as any other; by default it has one partition and keeps all records.

    `clock` gives its records their timestamps and ends their retention.

    Examples:
        >>> with memory_topic() as topic, topic.writer() as writer, topic.reader() as reader:
        ...     offsets = writer.append(0, [b"hello"])
        ...     reader.read(0, 0).values
        [b'hello']
    """
    url = f"memory://testing-{next(_numbers)}"
    with create_topic(url, settings or TopicSettings(retention_ms=-1), clock=clock) as topic:
        try:
            yield topic
        finally:
            delete_topic(url)

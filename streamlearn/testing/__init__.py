"""For tests, yours and ours: a clock that stands still, topics in memory, small applications and their data."""

from streamlearn.testing.clock import ManualClock
from streamlearn.testing.registry import MemoryRegistry
from streamlearn.testing.small import small_app, small_batch, small_folder, small_impression
from streamlearn.testing.topic import memory_topic
from streamlearn.testing.wait import wait_until

__all__ = [
    "ManualClock",
    "MemoryRegistry",
    "memory_topic",
    "small_app",
    "small_batch",
    "small_folder",
    "small_impression",
    "wait_until",
]

"""Doubles for tests, also of your own code: a manual clock, topics and a registry in memory, small applications."""

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

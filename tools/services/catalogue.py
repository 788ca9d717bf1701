"""The catalogue: the services there are, and what of each is already on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.services.cache import Cache, size_bytes
from tools.services.chromium import Chromium, chromium_version
from tools.services.flink import FlinkJobServer
from tools.services.kafka import Kafka
from tools.services.maven import Jars
from tools.services.prism import PRISM_VERSION, Prism
from tools.services.redis import Redis, stated_version
from tools.services.service import Service

__all__ = ["FETCHED", "STARTED", "Found", "fetch", "find"]


@dataclass(frozen=True)
class Found:
    """A service that is on this machine.

    Attributes:
        name: The service.
        version: Its own version.
        paths: The files or folders it is started from.
        size_bytes: Of all of them.
        fetch_s: How long fetching took just now; 0 when only looked for.
    """

    name: str
    version: str
    paths: tuple[Path, ...]
    size_bytes: int
    fetch_s: float = 0.0


def _kafka(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    files = Kafka.fetch(cache) if fetching else Kafka.find(cache)
    return (Jars("kafka").version, (files.jars, files.prepared)) if files else None


def _redis(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    program = Redis.fetch(cache) if fetching else Redis.find(cache)
    return (stated_version(program), (program,)) if program else None


def _prism(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    program = Prism.fetch(cache) if fetching else Prism.find(cache)
    return (PRISM_VERSION, (program,)) if program else None


def _flink(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    files = FlinkJobServer.fetch(cache) if fetching else FlinkJobServer.find(cache)
    return (Jars("flink").version, (files.jars,)) if files else None


def _chromium(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    files = Chromium.fetch(cache) if fetching else Chromium.find(cache)
    return (chromium_version(files.browser), (files.browser, files.driver)) if files else None


_LOOKED_UP = {"kafka": _kafka, "redis": _redis, "prism": _prism, "flink": _flink, "chromium": _chromium}

FETCHED: tuple[str, ...] = tuple(_LOOKED_UP)
STARTED: dict[str, Callable[[Path], Service]] = {
    "kafka": Kafka.start,
    "redis": Redis.start,
    "flink": FlinkJobServer.start,
}


def fetch(name: str, cache: Cache) -> Found:
    """Have a service on this machine, fetching or building what is missing.

    Raises:
        ServiceError: It could not be had.
    """
    began_s = time.monotonic()
    looked_up = _LOOKED_UP[name](cache, fetching=True)
    assert looked_up is not None, f"{name} was fetched and is not there"
    return _found(name, looked_up, time.monotonic() - began_s)


def find(name: str, cache: Cache) -> Found | None:
    """What of a service is on this machine already, or None; never fetches.

    Raises:
        ServiceError: What is there does not run.
    """
    looked_up = _LOOKED_UP[name](cache, fetching=False)
    return _found(name, looked_up, 0.0) if looked_up else None


def _found(name: str, looked_up: tuple[str, tuple[Path, ...]], fetch_s: float) -> Found:
    version, paths = looked_up
    return Found(name, version, paths, sum(size_bytes(path) for path in paths), fetch_s)

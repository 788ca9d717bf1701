"""The catalogue of services: fetches them, and finds those on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.services.cache import Cache, size_bytes
from tools.services.chromium import Chromium, chromium_version
from tools.services.envoy import ENVOY_VERSION, Envoy
from tools.services.flink import FlinkJobServer
from tools.services.kafka import Kafka
from tools.services.kubernetes import HELM_VERSION, Helm
from tools.services.maven import Jars
from tools.services.prism import PRISM_VERSION, Prism
from tools.services.redis import Redis, printed_version
from tools.services.service import Service

__all__ = ["FETCHED", "STARTED", "Installed", "fetch", "find"]


@dataclass(frozen=True)
class Installed:
    """A service on this machine.

    Attributes:
        name: The service.
        version: Its version.
        paths: The files or folders that it is started from.
        size_bytes: Total size of the paths.
        fetch_s: Duration of the fetch; 0 from `find`.
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
    return (printed_version(program), (program,)) if program else None


def _prism(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    program = Prism.fetch(cache) if fetching else Prism.find(cache)
    return (PRISM_VERSION, (program,)) if program else None


def _flink(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    files = FlinkJobServer.fetch(cache) if fetching else FlinkJobServer.find(cache)
    return (Jars("flink").version, (files.jars,)) if files else None


def _chromium(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    files = Chromium.fetch(cache) if fetching else Chromium.find(cache)
    return (chromium_version(files.browser), (files.browser, files.driver)) if files else None


def _helm(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    folder = Helm.fetch(cache) if fetching else Helm.find(cache)
    return (HELM_VERSION, (folder,)) if folder else None


def _envoy(cache: Cache, *, fetching: bool) -> tuple[str, tuple[Path, ...]] | None:
    program = Envoy.fetch(cache) if fetching else Envoy.find(cache)
    return (ENVOY_VERSION, (program,)) if program else None


_LOOKUPS = {
    "kafka": _kafka, "redis": _redis, "prism": _prism, "flink": _flink, "chromium": _chromium, "helm": _helm,
    "envoy": _envoy,
}  # fmt: skip

FETCHED: tuple[str, ...] = tuple(_LOOKUPS)
STARTED: dict[str, Callable[[Path], Service]] = {
    "kafka": Kafka.start,
    "redis": Redis.start,
    "flink": FlinkJobServer.start,
}


def fetch(name: str, cache: Cache) -> Installed:
    """Return a service, after fetching or building the missing files.

    Raises:
        ServiceError: Fetching or building failed.
    """
    began_s = time.monotonic()
    files = _LOOKUPS[name](cache, fetching=True)
    assert files is not None, f"{name} is missing after the fetch"
    return _installed(name, files, time.monotonic() - began_s)


def find(name: str, cache: Cache) -> Installed | None:
    """Return a service that is on this machine, or None; never fetches.

    Raises:
        ServiceError: The program on this machine does not run.
    """
    files = _LOOKUPS[name](cache, fetching=False)
    return _installed(name, files, 0.0) if files else None


def _installed(name: str, files: tuple[str, tuple[Path, ...]], fetch_s: float) -> Installed:
    version, paths = files
    return Installed(name, version, paths, sum(size_bytes(path) for path in paths), fetch_s)

"""Fixtures of the whole suite: the real services, each started at most once a run, when a test first asks.

A test that asks for one gets its marker. Where a service cannot be had the test is skipped with the reason,
and fails on CI or under STREAMLEARN_SERVICES=require. One that is there but does not start always fails.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings as hypothesis_settings

from streamlearn.errors import ServiceError
from tools.services import (
    Cache,
    Chromium,
    FlinkJobServer,
    Kafka,
    KafkaCluster,
    Redis,
    Service,
    kafka_cluster,
    prism_path,
)
from tools.services.flink_cluster import FlinkJobs, flink_cluster
from tools.services.prism import PRISM_VERSION

__all__: list[str] = []

# Fixture to marker: `own_...` are for tests that take the server down.
_MARKERS = {
    "kafka": "kafka",
    "own_kafka": "kafka",
    "own_kafka_cluster": "kafka",
    "redis": "redis",
    "own_redis": "redis",
    "prism": "prism",
    "chromium": "chromium",
    "flink": "flink",
    "own_flink": "flink",
    "own_flink_cluster": "flink",
}
# Written by `python -m tools.run_tests --write-slow`.
_SLOW = Path(__file__).parent / "slow.txt"
_USED = pytest.StashKey[list[str]]()
_Had = TypeVar("_Had")


# Warnings of libraries that we cannot mend; every other warning is an error.
_WARNINGS_ALLOWED = (
    # kafka-python reads its schemas at import by a function that Python 3.11 and 3.12 call deprecated.
    "ignore:(read|open)_text is deprecated:DeprecationWarning",
)


# A busy machine takes longer for an example, and that is no failure.
hypothesis_settings.register_profile("suite", deadline=None)
hypothesis_settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Name the warnings that are no errors."""
    for allowed in _WARNINGS_ALLOWED:
        config.addinivalue_line("filterwarnings", allowed)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and each test by the services that it uses, before pytest applies `-m`."""
    slow = set(_SLOW.read_text().split())
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker("slow")
        for marker in {_MARKERS[name] for name in getattr(item, "fixturenames", ()) if name in _MARKERS}:
            item.add_marker(marker)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each service that was really used."""
    for line in config.stash.get(_USED, []):
        terminalreporter.write_line(f"service used: {line}")


def _had(name: str, fetch: Callable[[Cache], _Had]) -> _Had:
    try:
        return fetch(Cache())
    except ServiceError as error:
        reason = f"{name} cannot be had: {error}"
    demanded = os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
    if demanded or os.environ.get("STREAMLEARN_SERVICES") == "require":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def _started(config: pytest.Config, start: Callable[[], Service]) -> Iterator[Service]:
    with start() as service:
        used = f"{service.name} {service.version} at {service.address} (started in {service.ready_s:.1f} s)"
        config.stash.setdefault(_USED, []).append(used)
        yield service


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The run's Kafka, shared: use topics of your own (`topic_name`) and leave it running."""
    _had("kafka", Kafka.fetch)
    with _started(pytestconfig, lambda: Kafka.start(tmp_path_factory.mktemp("kafka"))) as service:
        assert isinstance(service, Kafka)
        yield service


@pytest.fixture(scope="session")
def redis(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the run's Redis, shared: use keys of your own and leave it running."""
    _had("redis", Redis.fetch)
    with _started(pytestconfig, lambda: Redis.start(tmp_path_factory.mktemp("redis"))) as service:
        assert isinstance(service, Redis)
        yield service.url


@pytest.fixture(scope="session")
def flink(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkJobServer]:
    """The run's Flink job server, shared: cancel your jobs."""
    _had("flink", FlinkJobServer.fetch)
    with _started(pytestconfig, lambda: FlinkJobServer.start(tmp_path_factory.mktemp("flink"))) as service:
        assert isinstance(service, FlinkJobServer)
        yield service


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The run's driver of Chromium, shared: open browsers of your own, and close them."""
    _had("chromium", Chromium.fetch)
    with _started(pytestconfig, lambda: Chromium.start(tmp_path_factory.mktemp("chromium"))) as service:
        assert isinstance(service, Chromium)
        yield service


@pytest.fixture(scope="session")
def prism(pytestconfig: pytest.Config) -> Path:
    """The Prism binary, for `--prism_location`."""
    path = _had("prism", prism_path)
    pytestconfig.stash.setdefault(_USED, []).append(f"prism {PRISM_VERSION} ({path})")
    return path


@pytest.fixture(autouse=True)
def _logs_of_one_test() -> Iterator[None]:
    """Where a test has a command log to what was its own stderr, no later one writes there."""
    yield
    own, root = logging.getLogger("streamlearn"), logging.getLogger()
    for logger in (own, root):
        for handler in [one for one in logger.handlers if type(one) is logging.StreamHandler]:
            logger.removeHandler(handler)
    own.propagate = True
    own.setLevel(logging.NOTSET)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """A Kafka of this test alone, to be killed, paused and restarted."""
    _had("kafka", Kafka.fetch)
    with Kafka.start(tmp_path / "own_kafka") as service:
        yield service


@pytest.fixture
def own_kafka_cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three brokers of this test alone, each to be killed and restarted."""
    _had("kafka", Kafka.fetch)
    with kafka_cluster(tmp_path / "own_kafka_cluster") as cluster:
        yield cluster


@pytest.fixture
def own_flink(tmp_path: Path) -> Iterator[FlinkJobServer]:
    """A Flink job server of this test alone: it ends with all its jobs, and may be killed and restarted."""
    _had("flink", FlinkJobServer.fetch)
    with FlinkJobServer.start(tmp_path / "own_flink") as service:
        yield service


@pytest.fixture
def own_flink_cluster(tmp_path: Path) -> Iterator[tuple[FlinkJobs, FlinkJobServer]]:
    """A Flink cluster of this test alone, and a job server for it."""
    _had("flink", FlinkJobServer.fetch)
    with flink_cluster(tmp_path / "own_flink_cluster") as found:
        yield found


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A Redis of this test alone, to be killed, paused and restarted."""
    _had("redis", Redis.fetch)
    with Redis.start(tmp_path / "own_redis") as service:
        yield service


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name nobody else has; it begins with the test's name, cut to Kafka's alphabet and length."""
    name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in request.node.name)
    return f"{name[:80]}-{uuid.uuid4().hex[:12]}"

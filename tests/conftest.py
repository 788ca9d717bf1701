"""Fixtures of the whole suite: the real services, each started at most once per run, when a test first uses it.

A test that uses a service gets its marker. If a service is not available, the test is skipped with the reason, and
fails on CI or with STREAMLEARN_SERVICES=require. A service that is available but does not start is always a failure.
"""

from __future__ import annotations

import gc
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
import typer.testing
from hypothesis import settings as hypothesis_settings
from typer.main import get_command

from streamlearn.errors import ServiceError
from tests.availability import lacks
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
from tools.services.envoy import Envoy
from tools.services.flink_cluster import FlinkJobs, flink_cluster
from tools.services.kubernetes import HELM_VERSION, Helm
from tools.services.prism import PRISM_VERSION

__all__: list[str] = []

# The marker of each fixture. Fixtures `own_...` are for tests that stop the server.
_MARKERS = {
    "kafka": "kafka",
    "own_kafka": "kafka",
    "own_kafka_cluster": "kafka",
    "redis": "redis",
    "own_redis": "redis",
    "prism": "prism",
    "chromium": "chromium",
    "helm": "helm",
    "envoy": "envoy",
    "flink": "flink",
    "own_flink_cluster": "flink",
}
# Written by `python -m tools.run_tests --write-slow`.
_SLOW = Path(__file__).parent / "slow.txt"
_USED = pytest.StashKey[list[str]]()
_Fetched = TypeVar("_Fetched")


# Warnings of libraries that we cannot fix; every other warning is an error.
_WARNINGS_ALLOWED = (
    # kafka-python reads its schemas at import with a function that is deprecated in Python 3.11 and 3.12.
    "ignore:(read|open)_text is deprecated:DeprecationWarning",
)


# Slow examples on a busy machine are not failures.
hypothesis_settings.register_profile("suite", deadline=None)
hypothesis_settings.load_profile("suite")

# All verbs are built once for all calls of a process, as the command line does: a runner would build them for each.
typer.testing._get_command = cache(get_command)  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    """Register the warnings that are not errors, and turn the garbage collector off until all is imported."""
    gc.disable()
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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported to itself: the garbage collector would look through all of it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a line for each service that was used."""
    for line in config.stash.get(_USED, []):
        terminalreporter.write_line(f"service used: {line}")


def _fetched(name: str, fetch: Callable[[Cache], _Fetched]) -> _Fetched:
    try:
        return fetch(Cache())
    except ServiceError as error:
        reason = f"{name} is not available: {error}"
    lacks(reason)


@contextmanager
def _started(config: pytest.Config, start: Callable[[], Service]) -> Iterator[Service]:
    with start() as service:
        used = f"{service.name} {service.version} at {service.address} (started in {service.ready_s:.1f} s)"
        config.stash.setdefault(_USED, []).append(used)
        yield service


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The shared Kafka of the run: use your own topics (`topic_name`), and do not stop it."""
    _fetched("kafka", Kafka.fetch)
    with _started(pytestconfig, lambda: Kafka.start(tmp_path_factory.mktemp("kafka"))) as service:
        assert isinstance(service, Kafka)
        yield service


@pytest.fixture(scope="session")
def redis(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the shared Redis of the run: use your own keys, and do not stop it."""
    _fetched("redis", Redis.fetch)
    with _started(pytestconfig, lambda: Redis.start(tmp_path_factory.mktemp("redis"))) as service:
        assert isinstance(service, Redis)
        yield service.url


@pytest.fixture(scope="session")
def flink(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkJobServer]:
    """The shared Flink job server of the run: leave no job, and if you stop it, start it again."""
    _fetched("flink", FlinkJobServer.fetch)
    with _started(pytestconfig, lambda: FlinkJobServer.start(tmp_path_factory.mktemp("flink"))) as service:
        assert isinstance(service, FlinkJobServer)
        yield service


@pytest.fixture(scope="session")
def chromium(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The shared Chromium driver of the run: open your own browsers, and close them."""
    _fetched("chromium", Chromium.fetch)
    with _started(pytestconfig, lambda: Chromium.start(tmp_path_factory.mktemp("chromium"))) as service:
        assert isinstance(service, Chromium)
        yield service


@pytest.fixture(scope="session")
def prism(pytestconfig: pytest.Config) -> Path:
    """The Prism binary, for `--prism_location`."""
    path = _fetched("prism", prism_path)
    pytestconfig.stash.setdefault(_USED, []).append(f"prism {PRISM_VERSION} ({path})")
    return path


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config) -> Path:
    """The folder of the program `helm`, and of the API's schemas in `openapi`."""
    path = _fetched("helm", Helm.fetch)
    pytestconfig.stash.setdefault(_USED, []).append(f"helm {HELM_VERSION} ({path})")
    return path


@pytest.fixture(scope="session")
def envoy(pytestconfig: pytest.Config) -> Path:
    """The program of Envoy."""
    path = _fetched("envoy", Envoy.fetch)
    pytestconfig.stash.setdefault(_USED, []).append(f"envoy ({path})")
    return path


@pytest.fixture(autouse=True)
def _logs_of_one_test() -> Iterator[None]:
    """Remove log handlers after each test: they write to the stderr of that test."""
    yield
    own, root = logging.getLogger("streamlearn"), logging.getLogger()
    for logger in (own, root):
        for handler in [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]:
            logger.removeHandler(handler)
    own.propagate = True
    own.setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka for the tests of one module, which may kill and pause it, and start it again: use your own topics."""
    _fetched("kafka", Kafka.fetch)
    with Kafka.start(tmp_path_factory.mktemp("own_kafka")) as service:
        yield service


@pytest.fixture(scope="module")
def own_kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers for the tests of one module, which may kill and restart them: use your own topics."""
    _fetched("kafka", Kafka.fetch)
    with kafka_cluster(tmp_path_factory.mktemp("own_kafka_cluster")) as cluster:
        yield cluster


@pytest.fixture
def own_flink_cluster(tmp_path: Path) -> Iterator[FlinkJobs]:
    """A Flink cluster of two task managers for one test: jobs come by the shared job server, with `--flink_master`."""
    _fetched("flink", FlinkJobServer.fetch)
    with flink_cluster(tmp_path / "own_flink_cluster", tasks=2) as cluster:
        yield cluster


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A Redis for one test, which may kill, pause and restart it."""
    _fetched("redis", Redis.fetch)
    with Redis.start(tmp_path / "own_redis") as service:
        yield service


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A unique topic name, which begins with the test's name, in Kafka's alphabet and length."""
    name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in request.node.name)
    return f"{name[:80]}-{uuid.uuid4().hex[:12]}"

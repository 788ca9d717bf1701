"""The command line of the services, and the behaviour of the suite if a service is not available."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis as Client

__all__: list[str] = []

_ROOT = Path(__file__).parents[2]
_CLI = (sys.executable, "-m", "tools.services")
_SHARED_REDIS = "tests/tools/test_services_redis.py::test_the_shared_redis_is_on_loopback_and_answers"


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_fetch_prints_what_is_there_as_one_line_of_json(redis: str) -> None:
    del redis  # asked for only so that this test is skipped where there is no Redis
    done = _run(*_CLI, "fetch", "redis", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [found["name"] for found in told["found"]] == ["redis"]
    assert told["found"][0]["size_bytes"] > 0
    assert told["failed"] == {}


def test_fetch_that_fails_for_some_exits_3_and_names_them(redis: str, tmp_path: Path) -> None:
    del redis
    file = tmp_path / "file"
    file.touch()
    done = _run(*_CLI, "fetch", "redis", "prism", "--json", STREAMLEARN_CACHE=str(file / "cache"))
    assert done.returncode == 3
    assert list(json.loads(done.stdout)["failed"]) == ["prism"]
    assert "error: could not fetch prism" in done.stderr


def test_fetch_that_fails_for_all_exits_1(tmp_path: Path) -> None:
    done = _run(*_CLI, "fetch", "redis", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "no redis-server on PATH" in done.stderr


@pytest.mark.parametrize("arguments", [("fetch", "postgres"), ("up", "prism"), ("down",), ("fetch", "--quick")])
def test_what_is_not_offered_exits_2(arguments: tuple[str, ...]) -> None:
    assert _run(*_CLI, *arguments).returncode == 2


def test_status_tells_what_is_missing_without_fetching(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = _run(*_CLI, "status", "--json", STREAMLEARN_CACHE=str(cache), PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["cache"] == str(cache)
    assert all(
        "missing" in told["services"][name] for name in ("kafka", "redis", "prism", "flink", "chromium", "java", "go")
    )
    assert not cache.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_prints_addresses_and_stops_cleanly_at(number: signal.Signals, redis: str, tmp_path: Path) -> None:
    del redis
    # As a shell starts a command in the background: with SIGINT ignored.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *_CLI, "up", "redis", "--folder", str(tmp_path)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            name, _, url = running.stdout.readline().strip().partition("=")
            assert name == "STREAMLEARN_REGISTRY"
            with Client.from_url(url, socket_timeout=60) as client:
                pid = int(client.info("server")["process_id"])
            running.send_signal(number)
            _, told = running.communicate(timeout=120)
        finally:
            running.kill()
        assert running.returncode == 0, told
    assert "stopping redis" in told
    assert not Path(f"/proc/{pid}").exists()


def test_where_a_service_cannot_be_had_a_test_skips_with_the_reason(tmp_path: Path) -> None:
    done = _pytest(tmp_path, CI="", STREAMLEARN_SERVICES="")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "no redis-server on PATH" in done.stdout


@pytest.mark.parametrize("environment", [{"CI": "true"}, {"CI": "", "STREAMLEARN_SERVICES": "require"}])
def test_on_ci_or_when_services_are_required_a_missing_one_fails(environment: dict[str, str], tmp_path: Path) -> None:
    done = _pytest(tmp_path, **environment)
    assert done.returncode == 1, done.stdout
    assert "no redis-server on PATH" in done.stdout


def test_a_test_gets_the_marker_of_the_service_it_asks_for() -> None:
    done = _run(sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not redis", _SHARED_REDIS)
    assert "1 deselected" in done.stdout


def _pytest(empty: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _SHARED_REDIS]
    return _run(*command, PATH=str(empty), **environment)

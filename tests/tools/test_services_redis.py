"""Redis: starts on loopback, survives a kill with its data, and a port taken meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis import Redis as Client

from streamlearn.errors import ServiceError
from streamlearn.testing import wait_until
from tools.services import Redis, fixed_port, free_ports
from tools.services.ports import LOOPBACK, PortTaken, is_taken

__all__: list[str] = []

_ROOT = Path(__file__).parents[2]
_OWNER = """\
import sys
from pathlib import Path
from tools.services import Redis
redis = Redis.start(Path(sys.argv[1]))
print(redis.pid, redis.ports[0], flush=True)
sys.stdin.read()
"""


def _client(redis: Redis) -> Client:
    return Client.from_url(redis.url, socket_timeout=60, retry=None)


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_shared_redis_is_on_loopback_and_answers(redis: str) -> None:
    assert redis.startswith(f"redis://{LOOPBACK}:")
    with Client.from_url(redis, socket_timeout=60) as client:
        assert client.ping()


def test_what_was_acknowledged_outlives_a_kill_and_the_port_stays(own_redis: Redis) -> None:
    address, pid = own_redis.address, own_redis.pid
    with _client(own_redis) as client:
        client.set("version", "1841")
    own_redis.kill()
    assert not own_redis.is_running()
    assert not _is_there(pid)
    own_redis.restart()
    assert own_redis.address == address
    assert own_redis.pid != pid
    with _client(own_redis) as client:
        assert client.get("version") == b"1841"


def test_a_paused_redis_answers_again_after_resume(own_redis: Redis) -> None:
    own_redis.pause()
    with socket.create_connection((LOOPBACK, own_redis.ports[0]), timeout=60) as connection:
        connection.settimeout(0.2)
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(7)
        own_redis.resume()
        connection.settimeout(120)
        assert connection.recv(7) == b"+PONG\r\n"


def test_a_stopped_redis_is_gone_and_its_port_is_free(own_redis: Redis) -> None:
    pid, port = own_redis.pid, own_redis.ports[0]
    own_redis.stop()
    assert not _is_there(pid)
    assert not is_taken(port)
    own_redis.stop()  # a second time changes nothing
    with pytest.raises(ServiceError, match="not running"):
        own_redis.kill()


def test_a_redis_that_ended_by_itself_is_told_with_its_log(own_redis: Redis) -> None:
    own_redis.check()
    with _client(own_redis) as client:
        client.shutdown(nosave=True)
    with pytest.raises(ServiceError, match=r"(?s)ended by itself.*bye bye"):
        wait_until(own_redis.check, "the check to fail")


def test_a_redis_is_gone_after_its_owner_was_killed(redis: str, tmp_path: Path) -> None:
    del redis  # asked for only so that this test is skipped where there is no Redis
    command = [sys.executable, "-c", _OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT) as owner:
        assert owner.stdout is not None
        pid, port = map(int, owner.stdout.readline().split())
        assert is_taken(port)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(120)
        wait_until(lambda: not _is_there(pid), f"redis {pid} to be gone")


def test_a_port_taken_meanwhile_is_survived(own_redis: Redis, tmp_path: Path) -> None:
    taken, asked = own_redis.ports[0], []

    def find_ports(count: int) -> Sequence[int]:
        asked.append(count)
        return [taken] if len(asked) == 1 else free_ports(count)

    # On the taken port a real Redis answers, and must not be believed to be ours.
    with Redis.start(tmp_path / "second", find_ports=find_ports) as second:
        assert len(asked) == 2
        assert second.ports[0] != taken


def test_a_named_port_that_is_taken_is_refused_with_the_log(own_redis: Redis, tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match=r"(?s)port \d+ .* is taken.*Address already in use"):
        Redis.start(tmp_path / "second", find_ports=fixed_port(own_redis.ports[0]))


def test_without_a_redis_server_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match="no redis-server on PATH") as caught:
        Redis.start(tmp_path / "redis")
    assert "Debian: redis-server" in caught.value.help


def test_a_flushed_redis_has_no_keys(own_redis: Redis) -> None:
    with _client(own_redis) as client:
        client.set("a", 1)
        own_redis.flush()
        assert client.dbsize() == 0

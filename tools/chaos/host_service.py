"""A service for other hosts: a Kafka or a Redis that listens at an address, and is started again when it ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tools.services import Kafka, Redis, Service
from tools.services.cache import Cache

__all__ = ["KAFKA_PORT", "REDIS_PORT", "UP"]

KAFKA_PORT, REDIS_PORT, UP = 9_092, 6_379, " is up"
_LOOK_S = 0.2


class _OpenRedis(Redis):
    """A Redis that other hosts reach. It needs no password: only the test's hosts are there."""

    def _prepare(self) -> Sequence[str]:
        return [*super()._prepare(), "--bind", "0.0.0.0", "--protected-mode", "no"]


def _service(name: str, folder: Path, address: str) -> Service:
    if name == "redis":
        return _OpenRedis(folder, (REDIS_PORT,), Redis.fetch(Cache()))
    listeners = {
        "listeners": f"PLAINTEXT://0.0.0.0:{KAFKA_PORT},CONTROLLER://127.0.0.1:{KAFKA_PORT + 1}",
        "advertised.listeners": f"PLAINTEXT://{address}:{KAFKA_PORT}",
    }
    return Kafka(folder, (KAFKA_PORT, KAFKA_PORT + 1), Kafka.fetch(Cache()), properties=listeners)


def main(name: str, folder: Path, address: str) -> None:
    """Run the service until SIGTERM; its process id is in the file `pid` of its folder."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with _service(name, folder, address) as service:
        while not stopped.wait(_LOOK_S):
            if not service.is_running():
                service.launch()
                (folder / "pid").write_text(str(service.pid))
                print(f"{name}{UP}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])

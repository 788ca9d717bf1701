"""Temporary: a broker for the tests of topics, until the suite's own fixture `kafka` is there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
"""


class Broker:
    def __init__(self, jars: str, folder: Path) -> None:
        self._classes = f"{jars}/*"
        self._folder = folder
        self._port, controller = _free_port(), _free_port()
        self.address = f"127.0.0.1:{self._port}"
        text = _SETTINGS.format(port=self._port, controller=controller, data=folder / "data")
        (folder / "server.properties").write_text(text)
        format = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "AAAAAAAAAAAAAAAAAAAAAQ",
            "-c",
            "server.properties",
        ]
        subprocess.run(["java", "-cp", self._classes, *format], cwd=folder, check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.restart()

    def restart(self) -> None:
        if self._process is not None:
            self.kill()
        command = ["java", "-Xmx384m", "-cp", self._classes, "kafka.Kafka", "server.properties"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.05)
        message = "the broker did not start"
        raise RuntimeError(message)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(os.environ["STREAMLEARN_KAFKA_JARS"], tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.kill()


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    broker = Broker(os.environ["STREAMLEARN_KAFKA_JARS"], folder)
    yield broker
    broker.kill()

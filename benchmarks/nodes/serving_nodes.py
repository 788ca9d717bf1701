"""ServingNode: a process of `streamlearn serve`, its addresses, and its use of resources."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from streamlearn.apps import AppFolder
from streamlearn.load.load_run import Load
from tools.services.process import OwnedProcess

__all__ = ["Served", "ServingNode", "cpu_s_of"]

_ROOT = Path(__file__).parents[2]
_READY_S_MAX = 300.0
_TICKS_S = os.sysconf("SC_CLK_TCK")
_ADDRESS_PREFIX = " is served at grpc "


class Served(Protocol):
    """What a node serves."""

    @property
    def folder(self) -> AppFolder:
        """The application."""

    @property
    def registry_url(self) -> str:
        """The registry of its nodes."""


class ServingNode:
    """A node. The constructor starts it; its addresses wait until it is ready.

    Args:
        model: The model to serve.
        name: The node's name.
        place: The folder of its log and compiled code.
        settings: Changes of settings for `--set`.
        cache: Folder of compiled code in `place`; nodes may share one.
    """

    def __init__(
        self, model: Served, name: str, place: Path, settings: Sequence[str] = (), *, cache: str = "compiled"
    ) -> None:
        folder = model.folder
        command = [sys.executable, "-m", "streamlearn", "serve", str(folder.folder), "--name", name]
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        changes = [f"versions.store={folder.store_url}", f"registry.url={model.registry_url}"]
        changes += [f"serving.cache_folder={place / cache}", "telemetry.log_level=warning"]
        for setting in (*changes, *settings):
            command += ["--set", setting]
        self.name, self._model = name, model
        environment = {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        self.process = OwnedProcess(name, command, place, environment=environment)
        self._where: tuple[str, str] | None = None

    @property
    def grpc(self) -> str:
        """The gRPC address; waits until the node is ready."""
        return self._addresses()[0]

    @property
    def http(self) -> str:
        """The HTTP address; waits until the node is ready."""
        return self._addresses()[1]

    def load(self, messages: Sequence[bytes], *, connections: int = 2) -> Load:
        """Return a load on the node."""
        return Load(self.grpc, messages, connections=connections)

    def meters(self) -> dict[str, float]:
        """Return its metrics by name, summed over labels."""
        with urllib.request.urlopen(f"http://{self._addresses()[1]}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        values: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return values

    def cpu_s(self) -> float:
        """Return the CPU time of the process, without its children."""
        return cpu_s_of(self.process.pid)

    def anonymous_bytes(self) -> int:
        """Return the anonymous resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def close(self) -> None:
        """Stop the node, and wait until it is gone."""
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _addresses(self) -> tuple[str, str]:
        if self._where is None:
            self.process.wait_until(lambda: _ADDRESS_PREFIX in self.process.log.read_text(), _READY_S_MAX)
            line = self.process.log.read_text().partition(_ADDRESS_PREFIX)[2]
            grpc, _, rest = line.partition(", http ")
            self._where = grpc, rest.partition(": version")[0]
        return self._where


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S

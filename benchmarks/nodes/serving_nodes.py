"""ServingNode: a process of `streamlearn serve`, where it is, and what it has used."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.nodes.serving_model import ServingModel
from streamlearn.serving.load.load_run import Load
from tools.services.process import OwnedProcess

__all__ = ["ServingNode", "cpu_s_of"]

_ROOT = Path(__file__).parents[2]
_READY_S_MAX = 300.0
_TICKS_S = os.sysconf("SC_CLK_TCK")
_SAID = " is served at grpc "


class ServingNode:
    """A node; it starts when it is made, and whoever wants to know where it is waits until it is ready.

    Args:
        model: What it serves.
        name: Its own.
        place: Where its log is, and code that it compiled.
        settings: Others than the application's, as `--set` takes them.
        cache: Where compiled code is kept; shared by those who name the same.
    """

    def __init__(
        self, model: ServingModel, name: str, place: Path, settings: Sequence[str] = (), *, cache: str = "compiled"
    ) -> None:
        folder = model.folder
        command = [sys.executable, "-m", "streamlearn", "serve", str(folder.folder), "--name", name]
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        where = [f"versions.store={folder.store_url}", f"registry.url={model.registry_url}"]
        where += [f"serving.cache_folder={place / cache}", "telemetry.log_level=warning"]
        for setting in (*where, *settings):
            command += ["--set", setting]
        self.name, self._model = name, model
        environment = {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
        self.process = OwnedProcess(name, command, place, environment=environment)
        self._where: tuple[str, str] | None = None

    @property
    def grpc(self) -> str:
        """Where it is asked; waits until it is ready."""
        return self._found()[0]

    def load(self, messages: Sequence[bytes], *, connections: int = 2) -> Load:
        """What asks it."""
        return Load(self.grpc, messages, connections=connections)

    def meters(self) -> dict[str, float]:
        """Its metrics by name; those with labels are summed up."""
        with urllib.request.urlopen(f"http://{self._found()[1]}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def cpu_s(self) -> float:
        """Processor time it has used, what it started apart."""
        return cpu_s_of(self.process.pid)

    def anonymous_bytes(self) -> int:
        """Memory that is no view of a file."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def close(self) -> None:
        """End it, and wait until it is gone."""
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _found(self) -> tuple[str, str]:
        if self._where is None:
            self.process.wait_until(lambda: _SAID in self.process.log.read_text(), _READY_S_MAX)
            said = self.process.log.read_text().partition(_SAID)[2]
            grpc, _, rest = said.partition(", http ")
            self._where = grpc, rest.partition(": version")[0]
        return self._where


def cpu_s_of(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S

"""The demo's samples: ingest in a process of its own, and what it counts while it runs."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.errors import ServiceError
from streamlearn.topics import create_topic

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder

__all__ = ["DemoSamples"]

_COUNTED = re.compile(r'^streamlearn_ingest_joined_total\{what="(\w+)"\} (\S+)$', re.MULTILINE)
_LETTERS = re.compile(r"^streamlearn_ingest_dead_letters_total\{[^}]*\} (\S+)$", re.MULTILINE)
_END_S_MAX = 20.0


class DemoSamples:
    """Starts ingest on an application's topics.

    Args:
        app: The application's folder.
        changes: What `--set` says.
    """

    def __init__(self, app: Path, changes: Sequence[str]) -> None:
        self._port = _free_port()
        with ExitStack() as ends:
            self._said = ends.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, "-m", "streamlearn", "ingest", str(app), "--json"]
            for change in (*changes, f"telemetry.metrics_port={self._port}", "telemetry.log_level=warning"):
                command += ["--set", change]
            self._process = subprocess.Popen(command, stdout=self._said)
            ends.callback(self._end)
            self._ends = ends.pop_all()

    @staticmethod
    def prepare(folder: AppFolder) -> None:
        """Make the topics that ingest writes to."""
        partitions = folder.settings.replay.partitions
        for name in ("samples", "progress", "dead_letters"):
            create_topic(folder.topic_url(name), folder.topic_settings(name, partitions), folder.access).close()

    @property
    def has_ended(self) -> bool:
        """Whether all events are joined.

        Raises:
            ServiceError: Ingest failed.
        """
        status = self._process.poll()
        if status:
            message = f"ingest ended with status {status}"
            raise ServiceError(message, help="what it said is above; a missing Prism is fetched by make fetch")
        return status is not None

    def counts(self) -> Mapping[str, int]:
        """What ingest has counted by now, as its metrics say; nothing while it begins, and once it has ended."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=1) as answer:
                page = answer.read(1 << 20).decode()
        except OSError:
            return {}
        letters = sum(float(count) for count in _LETTERS.findall(page))
        return {what: round(float(count)) for what, count in _COUNTED.findall(page)} | {"dead_letters": round(letters)}

    def report(self) -> dict[str, Any]:
        """What ingest said when it ended."""
        self._said.seek(0)
        said: dict[str, Any] = json.loads(self._said.read())
        return said

    def close(self) -> None:
        """End ingest."""
        self._ends.close()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port

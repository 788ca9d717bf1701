"""Loop: an application's processes as `streamlearn up` runs them, and its versions as people move them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamlearn.apps import AppFolder
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.replay import open_replay_topics
from streamlearn.supervision import tether
from streamlearn.versions import Known, Verdict
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.pointer.model import Model

__all__ = ["Loop"]

_UP_S_MAX, _END_S_MAX, _VERB_S_MAX, _LOOK_S = 240.0, 120.0, 60.0, 0.05
_PAGE_BYTES_MAX, _PAGE_WAIT_S = 1 << 22, 2.0
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_TAIL_LINES = 15


class Loop:
    """Runs from when it is made.

    Args:
        folder: The application, as its settings are with `changes`.
        changes: What `--set` says.
        place: A folder for logs.
        nodes: How many nodes.
        shards: How many shards of the parameter server.

    Attributes:
        model: Its versions and its nodes.
        waiting: Called again and again while something is waited for.
    """

    def __init__(self, folder: AppFolder, changes: Sequence[str], place: Path, nodes: int, shards: int) -> None:
        self._folder, self._logs = folder, place / "logs"
        self.model = Model(folder.app.name, folder.store_url, folder.registry_url, folder.settings)
        with open_replay_topics(folder):  # creates those that are missing
            pass
        self._logs.mkdir(parents=True)
        # It ends with the demo, however that ends.
        command = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid())]
        command += [sys.executable, "-m", "streamlearn", "up", str(folder.folder), "--logs", str(self._logs)]
        command += ["--nodes", str(nodes), "--shards", str(shards)]
        command += [word for change in changes for word in ("--set", change)]
        self._said = self._logs / "up.txt"
        with self._said.open("wb") as said:
            # A group of its own: Ctrl-C reaches the demo alone, which ends the loop in order.
            self._up = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        self._where: dict[tuple[str, str], str] = {}
        self.waiting: Callable[[], None] = lambda: None

    def wait_up(self) -> None:
        """Wait until all processes are ready.

        Raises:
            ServiceError: They are not.
        """
        line = ""
        mark = f"{self._folder.app.name} is up: "

        def is_up() -> bool:
            nonlocal line
            self.check()
            line = next((one for one in self._said.read_text().splitlines() if one.startswith(mark)), "")
            return bool(line)

        self.wait(is_up, "all processes to be ready", _UP_S_MAX)
        for one in line.removeprefix(mark).split(", "):
            name, what, address = one.rsplit(" ", 2)
            self._where[name, what] = address

    def check(self) -> None:
        """See that it runs.

        Raises:
            ServiceError: It does not.
        """
        status = self._up.poll()
        if status is not None:
            tail = "\n".join(self._said.read_text().splitlines()[-_TAIL_LINES:])
            message = f"`streamlearn up` ended with status {status}:\n{tail}"
            raise ServiceError(message, help="its last lines are above")

    def wait(self, is_so: Callable[[], bool], what: str, wait_s: float) -> None:
        """Wait for something.

        Raises:
            ServiceError: The loop ended meanwhile, or it did not come to be.
        """
        until_s = time.monotonic() + wait_s
        while not is_so():
            self.check()
            if time.monotonic() > until_s:
                message = f"waited {wait_s:.0f} s for {what}"
                raise ServiceError(message, help=f"see the logs in {self._logs}; a slow machine needs more --seconds")
            self.waiting()
            time.sleep(_LOOK_S)

    @property
    def nodes(self) -> list[str]:
        """Where nodes serve gRPC."""
        return [address for (_, what), address in self._where.items() if what == "grpc"]

    def kill(self, name: str) -> None:
        """Kill a process as a machine that loses power does; `up` starts it again."""
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: int) -> None:
        """Send a process a signal; one that has just ended gets none."""
        with suppress(ProcessLookupError):
            os.kill(self.pid(name), number)

    def pid(self, name: str) -> int:
        """The process of a name that was started last."""
        log = (self._logs / f"{name}.log").read_text(errors="replace")
        return int(re.findall(rf"^--- {re.escape(name)} started as pid (\d+)", log, re.MULTILINE)[-1])

    def meter(self, name: str, metric: str, **labels: str) -> float:
        """The sum of what a process says of a metric, of the labels given; 0 while it says nothing."""
        try:
            with urllib.request.urlopen(
                f"http://{self._where[name, 'metrics']}/metrics", timeout=_PAGE_WAIT_S
            ) as answer:
                page = answer.read(_PAGE_BYTES_MAX).decode()
        except OSError:
            return 0.0
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        found = (
            float(value)
            for one, said, value in _SAMPLE.findall(page)
            if one == metric and all(pair in said for pair in wanted)
        )
        return sum(found)

    def known(self) -> Sequence[Known]:
        """Its versions, oldest first."""
        return self.model.history.read()

    def verdict(self, version: int) -> Verdict:
        """What the judge said of a version that was judged."""
        (one,) = (one for one in self.known() if one.version == version)
        verdict = read_verdict(self.model.store, self.model.history.folder(one.ref))
        assert verdict is not None
        return verdict

    def served(self) -> list[int]:
        """The version that each node answers with, as it said last."""
        return [one.active for one in self.model.nodes()[0]]

    @property
    def letters(self) -> int:
        """Events that ingest could not read, or refused."""
        return sum(self.ends("dead_letters"))

    def ends(self, topic: str) -> list[int]:
        """Where a topic's partitions end now."""
        with self._folder.open_topic(topic) as opened, opened.reader() as reader:
            return [reader.end(partition) for partition in range(opened.partitions)]

    def has_learned(self, version: Known, ends: Sequence[int]) -> bool:
        """Whether a version has learned all samples before some ends."""
        manifest = read_manifest(self.model.store, self.model.history.folder(version.ref))
        reached = {one.partition: one.offset for one in manifest.positions}
        return all(reached.get(partition, 0) >= end for partition, end in enumerate(ends))

    def verb(self, *words: str) -> dict[str, Any]:
        """Carry out one of the project's commands on the model, and give what it says.

        Raises:
            StreamlearnError: It failed.
        """
        verb, *rest = words
        where = ["--store", self.model.store_url, "--registry", self.model.url]
        command = [sys.executable, "-m", "streamlearn", verb, self.model.name, *rest, *where, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_VERB_S_MAX)
        if done.returncode:
            message = f"`streamlearn {' '.join(words)}` ended with status {done.returncode}: {done.stderr.strip()}"
            raise StreamlearnError(message, help="this is a bug: please report it with this output")
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def close(self) -> None:
        """End all processes in order."""
        if self._up.poll() is None:
            self._up.terminate()
        try:
            self._up.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.wait()

"""Loop: an application's processes as `streamlearn up` runs them, and the commands that move its versions."""

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
from streamlearn.trainer.workers.worker_facts import worker_facts
from streamlearn.versions import Known, Verdict
from streamlearn.versions.format.log import read_manifest
from streamlearn.versions.format.manifest import Manifest
from streamlearn.versions.format.verdict import read_verdict
from streamlearn.versions.pointer.model import Model

__all__ = ["Loop", "run_verb"]

_UP_S_MAX, _END_S_MAX, _VERB_S_MAX, _LOOK_S = 240.0, 120.0, 60.0, 0.05
_PAGE_BYTES_MAX, _PAGE_WAIT_S = 1 << 22, 2.0
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_TAIL_LINES = 15


class Loop:
    """The processes of an application; the constructor starts them.

    Args:
        folder: The application, loaded with `changes`.
        changes: Settings for `--set`.
        place: A folder for logs.
        nodes: Number of nodes.
        shards: Number of shards of the parameter server.
        beside: The folder of a running application whose addresses the nodes share.

    Attributes:
        folder: The application.
        model: Its versions and nodes.
        on_wait: Called repeatedly during `wait`.
        token: The token that the nodes expect; None without one.
    """

    token: str | None = None

    def __init__(
        self,
        folder: AppFolder,
        changes: Sequence[str],
        place: Path,
        nodes: int,
        shards: int,
        *,
        beside: Path | None = None,
    ) -> None:
        self.folder, self._logs = folder, place / "logs"
        self.model = Model(folder.app.name, folder.store_url, folder.registry_url, folder.settings)
        if beside is None:
            with open_replay_topics(folder):  # creates those that are missing
                pass
        self._logs.mkdir(parents=True)
        # The tether ends the loop when this process ends in any way.
        command = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), ""]
        command += [sys.executable, "-m", "streamlearn", "up", str(folder.folder), "--logs", str(self._logs)]
        command += ["--nodes", str(nodes), "--shards", str(shards)]
        command += ["--beside", str(beside)] if beside else []
        command += [word for change in changes for word in ("--set", change)]
        self._output = self._logs / "up.txt"
        with self._output.open("wb") as output:
            # In a group of its own, Ctrl-C reaches only the demo, which ends the loop in order.
            self._up = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self._addresses: dict[tuple[str, str], str] = {}
        self.on_wait: Callable[[], None] = lambda: None

    def wait_up(self) -> None:
        """Wait until all processes are ready.

        Raises:
            ServiceError: They did not become ready in time.
        """
        line = ""
        mark = f"{self.folder.app.name} is up: "

        def is_up() -> bool:
            nonlocal line
            self.check()
            line = next((line for line in self._output.read_text().splitlines() if line.startswith(mark)), "")
            return bool(line)

        self.wait(is_up, "all processes to be ready", _UP_S_MAX)
        for entry in line.removeprefix(mark).split(", "):
            name, what, address = entry.rsplit(" ", 2)
            self._addresses[name, what] = address

    def check(self) -> None:
        """Check that the loop runs.

        Raises:
            ServiceError: It has ended.
        """
        status = self._up.poll()
        if status is not None:
            tail = "\n".join(self._output.read_text().splitlines()[-_TAIL_LINES:])
            message = f"`streamlearn up` ended with status {status}:\n{tail}"
            raise ServiceError(message, help="its last lines are above")

    def wait(self, is_so: Callable[[], bool], what: str, wait_s: float) -> None:
        """Wait until `is_so`; `what` names it in errors.

        Raises:
            ServiceError: The loop ended, or the time is over.
        """
        until_s = time.monotonic() + wait_s
        while not is_so():
            self.check()
            if time.monotonic() > until_s:
                message = f"waited {wait_s:.0f} s for {what}"
                raise ServiceError(message, help=f"see the logs in {self._logs}; a slow machine needs more --seconds")
            self.on_wait()
            time.sleep(_LOOK_S)

    @property
    def nodes(self) -> list[str]:
        """The gRPC addresses of the nodes."""
        return [address for (_, what), address in self._addresses.items() if what == "grpc"]

    @property
    def http(self) -> list[str]:
        """The HTTP addresses of the nodes."""
        return [address for (_, what), address in self._addresses.items() if what == "http"]

    @property
    def doors(self) -> list[str]:
        """The gRPC addresses that callers use: Envoy's, if it is in front of the nodes, or those of all nodes."""
        return [address for (_, what), address in self._addresses.items() if what == "access"] or self.nodes

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL; `up` restarts it."""
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process, unless it has just ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid(name), number)

    def pid(self, name: str) -> int:
        """Return the newest process of a name."""
        log = (self._logs / f"{name}.log").read_text(errors="replace")
        return int(re.findall(rf"^--- {re.escape(name)} started as pid (\d+)", log, re.MULTILINE)[-1])

    def metric(self, name: str, metric: str, **labels: str) -> float:
        """Return the sum of a process's metric over the given labels; 0 while the process does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://{self._addresses[name, 'metrics']}/metrics", timeout=_PAGE_WAIT_S
            ) as answer:
                page = answer.read(_PAGE_BYTES_MAX).decode()
        except OSError:
            return 0.0
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = _SAMPLE.findall(page)
        return sum(
            float(value) for name, pairs, value in samples if name == metric and all(pair in pairs for pair in wanted)
        )

    def learners(self) -> dict[str, dict[str, Any]]:
        """Return the processes that learn the model, by name; none while the trainer does not answer."""
        facts = worker_facts(self.folder, self._addresses["trainer", "workers"], None, _PAGE_WAIT_S)
        return {member["name"]: member for member in facts["members"]} if facts else {}

    def versions(self) -> Sequence[Known]:
        """Return all versions, oldest first."""
        return self.model.history.read()

    def verdict(self, version: int) -> Verdict:
        """Return the verdict on a judged version."""
        (known,) = (known for known in self.versions() if known.version == version)
        verdict = read_verdict(self.model.store, self.model.history.folder(known.ref))
        assert verdict is not None
        return verdict

    def served(self) -> list[int]:
        """Return the version that each node answers with, by its newest heartbeat."""
        return [node.active for node in self.model.nodes()[0]]

    def has_ended(self, name: str) -> bool:
        """Return whether a process has ended by itself."""
        state = {"process": name, "state": "ended"}
        return self.metric("up", "streamlearn_supervision_state_processes", **state) > 0

    @property
    def dead_letters(self) -> int:
        """Number of dead letters."""
        return sum(self.ends("dead_letters"))

    def ends(self, topic: str) -> list[int]:
        """Return the end offset of each partition of a topic."""
        with self.folder.open_topic(topic) as opened, opened.reader() as reader:
            return [reader.end(partition) for partition in range(opened.partitions)]

    def manifest(self, version: Known) -> Manifest:
        """Return the manifest of a version."""
        return read_manifest(self.model.store, self.model.history.folder(version.ref))

    def has_learned(self, version: Known, ends: Sequence[int]) -> bool:
        """Return whether a version has learned all samples before these end offsets."""
        reached = {position.partition: position.offset for position in self.manifest(version).samples_positions}
        return all(reached.get(partition, 0) >= end for partition, end in enumerate(ends))

    def verb(self, *words: str) -> dict[str, Any]:
        """Run one of the project's commands on the model, and return its JSON output.

        Raises:
            StreamlearnError: The command failed.
        """
        verb, *rest = words
        return run_verb(verb, self.model.name, *rest, "--store", self.model.store_url, "--registry", self.model.url)

    def close(self) -> None:
        """End all processes in order."""
        if self._up.poll() is None:
            self._up.terminate()
        try:
            self._up.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.wait()


def run_verb(*words: str, is_json: bool = True) -> dict[str, Any]:
    """Run one of the project's commands, and return its JSON output, if it has one.

    Raises:
        StreamlearnError: The command failed.
    """
    command = [sys.executable, "-m", "streamlearn", *words, *(("--json",) if is_json else ())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_VERB_S_MAX)
    if done.returncode:
        message = f"`streamlearn {' '.join(words)}` ended with status {done.returncode}: {done.stderr.strip()}"
        raise StreamlearnError(message, help="this is a bug: please report it with this output")
    result: dict[str, Any] = json.loads(done.stdout) if is_json else {}
    return result

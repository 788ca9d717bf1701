"""Applications in folders, the process `streamlearn access` in front of their nodes, and callers."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from streamlearn.gateway.envoy_process import ask_admin
from streamlearn.testing import wait_until
from tools.services import free_ports

__all__ = ["INPUTS", "ROWS", "USER", "Access", "Answer", "access", "call", "find", "folder_of", "infer", "once_led"]

T = TypeVar("T")
_ROOT = Path(__file__).parents[2]
_APP = """
from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot

app = App(
    name={name!r},
    serves={serves!r},
    features=FeatureSpec(slots=(Slot("user_id", "user"), Slot("item_id", "item")), item_id="item_id"),
    groups=(LabelGroup("fast", wait_s=60, window_s=600),),
    labels=(Label("click", action="click", group="fast"),),
)
"""
USER = {"user": {"user_id": 1}, "k": 5}
INPUTS = {
    "inputs": [{"name": name, "datatype": "INT64", "shape": [1], "data": [1]} for name in ("user_id", "k")],
}
ROWS = {"user": {"user_id": 1}, "items": [{"item_id": 2}]}


class Answer(NamedTuple):
    """An answer by HTTP."""

    status: int
    body: dict[str, object]


def folder_of(place: Path, name: str, serves: str = "", toml: str = "") -> Path:
    """Write an application and return its folder."""
    folder = place / name
    folder.mkdir()
    (folder / "app.py").write_text(_APP.format(name=name, serves=serves))
    (folder / "app.toml").write_text(toml)
    return folder


class Access:
    """A running `streamlearn access --run`."""

    def __init__(self, folders: Sequence[Path], envoy: Path, changes: Sequence[str], more: Sequence[str] = ()) -> None:
        # The path of a socket is short.
        self.out, self.port = Path(tempfile.mkdtemp(prefix="sl-")), free_ports(1)[0]
        words = [sys.executable, "-m", "streamlearn", "access", *map(str, folders), "--out", str(self.out), "--run"]
        for change in (f"access.listen=127.0.0.1:{self.port}", *changes):
            words += ["--set", change]
        words += more
        self.log = self.out / "log"
        environment = {**os.environ, "PATH": f"{envoy.parent}:{os.environ['PATH']}"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, cwd=_ROOT, env=environment)

    def wait_ready(self) -> None:
        """Wait until it takes requests."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return ": access at " in self.log.read_text()

        wait_until(is_ready, "access to begin")

    def wait_healthy(self, count: int) -> None:
        """Wait until `count` nodes get requests, by gRPC as by HTTP."""
        wait_until(lambda: self.healthy() == count, f"{count} nodes to get requests")

    def healthy(self) -> int:
        """How many nodes get requests by both protocols; -1 while the protocols differ."""
        lines = re.findall(r"^(\S+?)::(\S+?)::health_flags::healthy$", self.ask("/clusters"), flags=re.MULTILINE)
        by_kind = [sum(name.endswith(kind) for name, _ in lines) for kind in (".grpc", ".http")]
        return by_kind[0] if len({*by_kind}) == 1 else -1

    def while_healthy(self, nodes: int, ask: Callable[[], T]) -> T:
        """Ask until so many nodes got requests during the whole call: Envoy leaves out a slow node for a time."""
        seen = list[T]()

        def is_seen() -> bool:
            self.wait_healthy(nodes)
            failures = self.figure("health_check.failure")
            seen.append(ask())
            return self.figure("health_check.failure") == failures and self.healthy() == nodes

        wait_until(is_seen, f"{nodes} nodes that get requests all the time")
        return seen[-1]

    def given(self, host: str) -> int:
        """How many requests Envoy has given to nodes of a host, or to that of an address."""
        lines = re.findall(r"^\S+?::(\S+?)::rq_total::(\d+)$", self.ask("/clusters"), flags=re.MULTILINE)
        return sum(int(count) for address, count in lines if host in (address, address.rpartition(":")[0]))

    def ask(self, path: str) -> str:
        """Ask Envoy as an administrator."""
        return ask_admin(self.out, "GET", path).decode()

    def figure(self, name: str) -> int:
        """The sum of all figures of Envoy whose name ends so."""
        found = re.findall(rf"^cluster\.[^.]*\.{re.escape(name)}: (\d+)$", self.ask("/stats"), flags=re.MULTILINE)
        return sum(map(int, found))

    def call(
        self, path: str = "/score", body: object = ROWS, head: Mapping[str, str] | None = None, timeout_s: float = 120
    ) -> Answer:
        """Send a request by HTTP."""
        return call(f"127.0.0.1:{self.port}", path, body, head, timeout_s)

    def close(self) -> None:
        """Stop it, and check that Envoy has ended with it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self.process.wait()
            shutil.rmtree(self.out)


def call(
    address: str,
    path: str = "/score",
    body: object = ROWS,
    head: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> Answer:
    """Send a request by HTTP to an address, of Envoy or of a node."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(head or {})})
        answer = connection.getresponse()
        text = answer.read()
        return Answer(answer.status, json.loads(text) if text.startswith(b"{") else {"text": text.decode()})
    finally:
        connection.close()


def infer(client: triton.InferenceServerClient, model: str, head: dict[str, str] | None = None) -> str:
    """Send a request by gRPC; return the version that answered."""
    user, item = triton.InferInput("user_id", [1], "INT64"), triton.InferInput("item_id", [1], "INT64")
    user.set_data_from_numpy(np.array([1]))
    item.set_data_from_numpy(np.array([2]))
    return str(client.infer(model, [user, item], headers=head, client_timeout=120).get_response().model_version)


def find(client: triton.InferenceServerClient, model: str, head: dict[str, str] | None = None) -> str:
    """Ask for items by gRPC; return the version that answered."""
    user, k = triton.InferInput("user_id", [1], "INT64"), triton.InferInput("k", [1], "INT64")
    user.set_data_from_numpy(np.array([1]))
    k.set_data_from_numpy(np.array([1]))
    answer = client.infer(f"{model}.retrieve", [user, k], headers=head, client_timeout=120)
    return str(answer.get_response().model_version)


def once_led(ask: Callable[..., T], *words: Any, **more: Any) -> T:
    """What is answered once a node gets requests: one that a loaded machine holds up gets none for a while."""
    answers = list[T]()

    def is_led() -> bool:
        try:
            answers.append(ask(*words, **more))
        except InferenceServerException as error:
            if str(error.status()) != "StatusCode.UNAVAILABLE":
                raise
            return False
        return not (isinstance(answers[-1], Answer) and answers[-1].status == 503)

    wait_until(is_led, "a node that gets requests")
    return answers[-1]


@contextmanager
def access(
    folders: Sequence[Path], envoy: Path, *changes: str, nodes: int, more: Sequence[str] = ()
) -> Iterator[Access]:
    """Start `streamlearn access` with `more` words, wait until it leads to `nodes` nodes, and yield it."""
    running = Access(folders, envoy, changes, more)
    try:
        running.wait_ready()
        running.wait_healthy(nodes)
        yield running
    finally:
        running.close()

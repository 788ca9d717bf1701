"""A changed application takes over the callers of the old one, and gives them back: no request is lost."""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton

from streamlearn.apps import load_app
from streamlearn.models.tf_calls import Place
from streamlearn.serving.inherited_sockets import InheritedSockets
from streamlearn.serving.node import Node
from streamlearn.testing import wait_until
from streamlearn.trainer import put_graphs, samples_of
from streamlearn.trainer.migration import Migration
from streamlearn.versions import Chain, open_store
from streamlearn.versions.pointer.switch_log import SwitchLog
from tests.gateway.place import access
from tests.replaced import ADDED, folder_of, learn, learned_folder
from tests.trainer.stream import write_messages

REQUEST = json.dumps(
    {
        "user": {"user_id": 1, "history": [1, 2], "age": 3.0},
        "items": [{"video_id": 1, "tags": [5], "length": 1.0}, {"video_id": 2, "tags": [], "length": 2.0}],
    }
)
SWITCHES = 6
PLACES = [Place("/CPU:0")]
_READY_S = 120.0


class Callers:
    """Callers over connections that are kept, which connect again only where the node asks for it."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port, self._over = int(port), threading.Event()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._call) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def _call(self) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=120)
        with closing(connection):
            self._ask(connection)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        while not self._over.is_set():
            try:
                connection.request("POST", "/score", REQUEST, {"content-type": "application/json"})
                reply = connection.getresponse()
                answer = json.loads(reply.read())
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                return
            if reply.status == 200:
                self.answers[str(len(answer["scores"]))] += 1
            else:
                self.failures.append(f"{reply.status} {answer}")
            self._over.wait(0.002)

    def has(self, count: int) -> bool:
        assert not self.failures, self.failures[:3]
        return self.answers.total() >= count

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_callers_are_answered_while_applications_change_places_also_through_envoy(
    tmp_path: Path, envoy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nodes that did not know that they stand beside each other would never follow.
    monkeypatch.setattr("streamlearn.serving.switch_follower._ALONE_S", 3_600.0)
    old = load_app(learned_folder(tmp_path))
    new = load_app(folder_of(tmp_path, "learnable2", ADDED))
    store = open_store(old.store_url)
    write_messages(new, [])
    log = SwitchLog(store, "learnable")
    log.begin("learnable", "learnable2", by="test")
    with samples_of(new) as topic:
        migration = Migration(old, new, store, Chain.find(store, "learnable"))
        migration.write(topic, put_graphs(new, migration.model, store), "test")
    learn(new)
    with ExitStack() as ends:
        listeners = [ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]

        def node(folder: Any) -> Node:
            sockets = InheritedSockets(*(listener.dup() for listener in listeners))
            return ends.enter_context(Node(folder, name=folder.app.name, sockets=sockets, places=PLACES))

        nodes = {name: node(folder) for name, folder in (("learnable", old), ("learnable2", new))}
        for running in nodes.values():
            assert running.wait_ready()
        address = nodes["learnable"].http
        assert address == nodes["learnable2"].http
        assert address is not None
        wait_until(lambda: nodes["learnable2"].status().state == "aside", "the new node stands aside", _READY_S)
        assert nodes["learnable"].status().state == "ready"
        callers = Callers(address)
        ends.callback(callers.stop)
        # Envoy's checks of nodes go to the same sockets.
        led = Callers(f"127.0.0.1:{ends.enter_context(access([old.folder], envoy, nodes=1)).port}")
        ends.callback(led.stop)
        client = ends.enter_context(triton.InferenceServerClient(nodes["learnable"].grpc))
        took_s = list[float]()
        for number in range(SWITCHES):
            to, other = ("learnable2", "learnable")[:: 1 if number % 2 == 0 else -1]
            begin_s, before, led_before = time.monotonic(), callers.answers.total(), led.answers.total()
            log.switch(to, by="test")
            wait_until(partial(_stand, nodes, {to: "ready", other: "aside"}), "both nodes follow", _READY_S)
            took_s.append(time.monotonic() - begin_s)
            wait_until(partial(callers.has, before + 20), "answers", _READY_S)
            wait_until(partial(led.has, led_before + 20), "answers through Envoy", _READY_S)
            # The model keeps its name, whichever application answers.
            wait_until(lambda: _is_ready(client), "gRPC answers", _READY_S)
        assert statistics.median(took_s) <= 1.0, took_s  # a stalled machine may delay some of them
        for some in (callers, led):
            some.stop()
            assert not some.failures
            assert some.answers.keys() == {"2"}


def _stand(nodes: Mapping[str, Node], states: Mapping[str, str]) -> bool:
    return all(nodes[name].status().state == state for name, state in states.items())


def _is_ready(client: Any) -> bool:
    try:
        return bool(client.is_model_ready("learnable"))
    except triton.InferenceServerException:
        return False


def test_a_new_application_answers_nobody_before_a_switch(tmp_path: Path) -> None:
    folder = load_app(learned_folder(tmp_path))
    SwitchLog(open_store(folder.store_url), "learnable").begin("learnable", "learnable2", by="test")
    SwitchLog(open_store(folder.store_url), "learnable").switch("learnable2", by="test")
    with Node(folder, name="one", places=PLACES) as node:
        assert node.wait_ready()
        assert node.http is not None
        host, _, port = node.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=120)
        connection.request("GET", "/v2/health/ready")
        reply = connection.getresponse()
        assert reply.status == 503
        assert b"learnable2 answers the callers of this model (switch 2)" in reply.read()
        connection.close()

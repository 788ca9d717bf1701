"""RoundRobin: a stock gRPC client that asks all nodes in turn, at a rate, and never asks again after an error."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Self

import grpc

__all__ = ["RoundRobin"]

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_ANSWER_S_MAX, _TRIAL_S, _TRIAL_OPEN = 30.0, 3.0, 16
_SERVICE = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}
_OPTIONS = (
    ("grpc.service_config", json.dumps(_SERVICE)),
    ("grpc.enable_retries", 0),
    # By default it names all addresses in one authority, which servers in Rust refuse.
    ("grpc.default_authority", "nodes"),
)


class RoundRobin:
    """A client of nodes; `begin` starts its load.

    Args:
        addresses: HOST:PORT of each node; HOST is an IPv4 address.
        messages: Encoded requests.
        token: The token that the nodes expect.

    Attributes:
        answers: Requests with an answer.
        errors: Requests without one, by code and text.
    """

    def __init__(self, addresses: Sequence[str], messages: Sequence[bytes], token: str | None = None) -> None:
        self._channel = grpc.insecure_channel(f"ipv4:{','.join(addresses)}", _OPTIONS)
        self._ask: Any = self._channel.unary_unary(_METHOD)
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._messages, self._lock = cycle(messages), threading.Lock()
        self.answers, self.errors = 0, Counter[str]()
        self._open, self._ended, self._thread = 0, threading.Event(), threading.Thread()

    def capacity(self) -> float:
        """Return the answers a second with some requests open all the time: about the goodput of all nodes."""
        until_s, before = time.monotonic() + _TRIAL_S, self.answers

        def ask_on() -> None:
            while time.monotonic() < until_s:
                self._send().exception(_ANSWER_S_MAX)

        threads = [threading.Thread(target=ask_on) for _ in range(_TRIAL_OPEN)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (self.answers - before) / _TRIAL_S

    def begin(self, rate: float) -> None:
        """Ask from now on, at this many requests a second, whatever the answers take."""
        self._thread = threading.Thread(target=self._run, args=(rate,), name="round-robin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the load, wait for the answers, and close the connections."""
        self._ended.set()
        if self._thread.ident:
            self._thread.join()
        until_s = time.monotonic() + _ANSWER_S_MAX
        while self._open and time.monotonic() < until_s:
            time.sleep(0.01)
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, rate: float) -> None:
        begun_s, sent = time.monotonic(), 0
        while not self._ended.wait(max(0.0, begun_s + sent / rate - time.monotonic())):
            self._send()
            sent += 1

    def _send(self) -> Any:
        with self._lock:
            message = next(self._messages)
            self._open += 1
        call = self._ask.future(message, timeout=_ANSWER_S_MAX, metadata=self._metadata)
        call.add_done_callback(self._note)
        return call

    def _note(self, call: Any) -> None:
        with self._lock:
            self._open -= 1
            if call.code() is grpc.StatusCode.OK:
                self.answers += 1
            else:
                self.errors[f"{call.code().name}: {call.details()}"[:200]] += 1

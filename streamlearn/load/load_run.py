"""Load run: requests sent to a node at times that do not depend on its answers. The native core sends and measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from streamlearn.errors import ServiceError, UsageError
from streamlearn.native import native
from streamlearn.serving.infer import InferAnswer

__all__ = ["Load", "LoadLimits", "LoadPlan", "LoadProgress", "LoadResult"]

_PROGRESS_MS = 200
_PROBE_MS = 30_000


class LoadLimits(NamedTuple):
    """The limits of a load's connections."""

    connections: int
    threads: int
    connect_wait_ms_max: int = 10_000
    answer_bytes_max: int = 64 << 20


@dataclass(frozen=True)
class LoadPlan:
    """The plan of a run.

    Attributes:
        pace: When requests are due. "poisson", "constant" and "bursts" do not depend on answers; with "closed", each
            caller sends its next request when the previous one is answered.
        amount: Requests a second (between bursts), or the number of callers.
        seconds: How long requests are sent that count.
        warmup_s: How long requests are sent before that, which do not count.
        deadline_ms: The deadline of each request, sent to the node.
        seed: The same seed gives the same times and requests.
        bursts: The factor of a burst, its duration and the interval between bursts, both in seconds.
        outstanding_max: The most requests in flight; a request that is due beyond this bound fails.
        answer_wait_s_max: How long to wait for an answer if there is no deadline.
        keeps_answers: Whether the result has the answers.
    """

    pace: Literal["poisson", "constant", "bursts", "closed"]
    amount: float
    seconds: int
    warmup_s: float = 0.0
    deadline_ms: int | None = None
    seed: int = 0
    bursts: tuple[float, float, float] = (4.0, 0.5, 5.0)
    outstanding_max: int = 10_000
    answer_wait_s_max: float = 30.0
    keeps_answers: bool = False


@dataclass(frozen=True)
class LoadProgress:
    """The counts of a run so far: requests that were due, were answered, failed, and are in flight."""

    due: int
    ok: int
    failed: int
    outstanding: int


@dataclass(frozen=True)
class LoadResult:
    """The result of a run.

    Attributes:
        plan: The plan of the run.
        seconds: How long requests that count were sent.
        due: Requests that were due.
        ok: Requests that were answered.
        in_time: Requests that were answered within the deadline; without one, all answered requests.
        overrun: Requests that failed because too many were in flight when they were due.
        unanswered: Requests that got no reply.
        refused: Requests that ended with another gRPC code, by code.
        said: The first message of each of these codes.
        latency_ms: `mean`, `p50`, `p90`, `p95`, `p99`, `p999` and `max` of the time from when a request was due to the
            end of its answer; None if none was answered.
        lag_ms: The same of the time from when a request was due until it was sent: the generator's own delay.
        answer_bytes: The size of all answers together.
        time_line: For each second: requests due, requests answered, and the p99 of their latency in ms.
        own_cpu_us: CPU time of this process per request.
        answers: Of each request that was sent and counts: the number of its message, when it was due in ns since the
            start, and the answer, None if there was none in time. Empty unless the plan keeps answers.
    """

    plan: LoadPlan
    seconds: float
    due: int
    ok: int
    in_time: int
    overrun: int
    unanswered: int
    refused: Mapping[str, int]
    said: Mapping[str, str]
    latency_ms: Mapping[str, float | None]
    lag_ms: Mapping[str, float | None]
    answer_bytes: int
    time_line: Sequence[tuple[int, int, float | None]]
    own_cpu_us: float
    answers: Sequence[tuple[int, int, bytes | None]] = ()

    @property
    def failed(self) -> int:
        """Requests that were not answered."""
        return self.due - self.ok

    @property
    def late(self) -> int:
        """Requests that had no answer when their deadline passed, and were not refused before it."""
        return self.ok - self.in_time + self.refused.get("DEADLINE_EXCEEDED", 0) + self.unanswered

    @property
    def goodput_per_s(self) -> float:
        """Answers within the deadline per second."""
        return self.in_time / self.seconds if self.seconds else 0.0


class Load:
    """Connections to a node, and the messages to send.

    Args:
        address: HOST:PORT of a gRPC server, or http://HOST:PORT/PATH to post bodies to.
        messages: Encoded requests, or bodies; `ask_all` needs none.
        token: The token that the node expects.
        authority: With TLS, which gRPC alone has: the file of the authority that signed the node's certificate.
        connections: The number of gRPC connections, used in turn. For HTTP the most connections: each carries one
            request at a time.
        threads: The number of sending threads.

    Attributes:
        refusal: Why the last request of `ask_all` without an answer has none; empty if all had one.
    """

    def __init__(
        self,
        address: str,
        messages: Sequence[bytes] = (),
        token: str | None = None,
        *,
        authority: Path | None = None,
        connections: int = 2,
        threads: int = 1,
    ) -> None:
        self._address, self.refusal = address, ""
        host_port, path = _target_of(address)
        if path is not None and authority is not None:
            message = f"{address} cannot be asked over TLS"
            raise UsageError(message, help="give HOST:PORT with --ca: TLS is for gRPC alone")
        self._native = native.Load(host_port, path, messages, token, LoadLimits(connections, threads), authority)

    def probe(self) -> InferAnswer:
        """Send the first message and return the decoded answer; see `ask` and `InferAnswer.decode`."""
        return InferAnswer.decode(self.ask(0))

    def ask(self, number: int) -> bytes:
        """Send one of the messages and return the bytes of the answer.

        Raises:
            ServiceError: The node refuses the message or does not reply.
        """
        code, reply, answer = self._native.ask(number, _PROBE_MS)
        if code is None:
            message = f"{self._address} did not answer within {_PROBE_MS // 1000} s"
            raise ServiceError(message, help="check that the node is ready")
        if answer is None:
            message = f"{self._address} refuses a request: {code}: {reply}"
            help = "check that it serves this model (--model) with these features; if it takes TLS, give --ca"
            raise ServiceError(message, help=help)
        return answer

    def outcomes(self, messages: Sequence[bytes], wait_s: float) -> list[tuple[str | None, str, bytes | None]]:
        """Send other messages, all at once; return the gRPC code, its text and the answer of each, None without."""
        outcomes: list[tuple[str | None, str, bytes | None]]
        outcomes = self._native.ask_all(messages, round(wait_s * 1_000))
        return outcomes

    def ask_all(self, messages: Sequence[bytes], wait_s: float = _PROBE_MS / 1_000) -> list[bytes | None]:
        """Like `outcomes`, but return the answers alone; None where the node refuses or does not reply."""
        answers = []
        for code, reply, answer in self.outcomes(messages, wait_s):
            answers.append(answer)
            if answer is None:
                self.refusal = f"{self._address} says {code}: {reply}" if code else f"{self._address} did not answer"
        return answers

    def run(
        self, plan: LoadPlan, on_progress: Callable[[LoadProgress], None] | None = None, stop: Callable[[], bool] = bool
    ) -> LoadResult:
        """Carry out a plan. `on_progress` and `stop` are called a few times a second; a true `stop` ends it."""
        cpu_s = time.process_time()
        run = self._native.start(plan)
        while not run.wait(_PROGRESS_MS):
            if on_progress is not None:
                on_progress(LoadProgress(**run.progress()))
            if stop():
                run.stop()
        outcome = run.outcome()
        assert outcome is not None
        return _result(plan, outcome, time.process_time() - cpu_s)


def _target_of(address: str) -> tuple[str, str | None]:
    """Split an address into HOST:PORT and the path of an HTTP address."""
    if "://" not in address:
        return address, None
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.netloc or "@" in parts.netloc:
        message = f"cannot send load to {address!r}"
        raise UsageError(message, help="give HOST:PORT for gRPC, or http://HOST:PORT/PATH; for TLS, HOST:PORT and --ca")
    path = parts.path or "/"
    host = parts.netloc if parts.port else f"{parts.netloc}:80"
    return host, f"{path}?{parts.query}" if parts.query else path


def _result(plan: LoadPlan, outcome: Mapping[str, Any], cpu_s: float) -> LoadResult:
    same = ("seconds", "due", "ok", "in_time", "overrun", "unanswered", "refused", "said", "answer_bytes", "answers")
    sent = outcome["due"] + outcome["warmup"] - outcome["overrun"]
    return LoadResult(
        plan=plan,
        latency_ms=_ms(outcome["latency_ns"]),
        lag_ms=_ms(outcome["lag_ns"]),
        time_line=[(due, ok, None if p99 is None else p99 / 1e6) for due, ok, p99 in outcome["time_line"]],
        own_cpu_us=cpu_s / sent * 1e6 if sent else 0.0,
        **{name: outcome[name] for name in same},
    )


def _ms(times_ns: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if time_ns is None else time_ns / 1e6 for name, time_ns in times_ns.items()}

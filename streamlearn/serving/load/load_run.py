"""Load on a serving node, at times that do not depend on its answers; the native core sends and measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from streamlearn.errors import ServiceError, UsageError
from streamlearn.native import native
from streamlearn.serving.infer import InferAnswer

__all__ = ["Load", "LoadFound", "LoadPlan", "LoadProgress", "Pace"]

Pace = Literal["poisson", "constant", "bursts", "closed"]

_LOOK_MS = 200
_PROBE_MS = 30_000
_CONNECT_WAIT_MS_MAX = 10_000
_ANSWER_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class LoadPlan:
    """What a run is to do.

    Attributes:
        pace: When requests are due: "poisson", "constant" or "bursts" whatever was answered; "closed" when a
            caller's request before was answered.
        amount: Requests a second (between bursts), or how many callers there are.
        seconds: How long requests are sent that count.
        warmup_s: How long requests are sent before, which do not count.
        deadline_ms: Within how long an answer is of use; the node is told of it.
        seed: The same seed gives the same times and requests.
        bursts: By what the rate is multiplied, for how many seconds, every how many seconds.
        outstanding_max: How many requests may be without an answer; one that is due beyond that fails.
        answer_wait_s_max: How long an answer is waited for where there is no deadline.
    """

    pace: Pace
    amount: float
    seconds: int
    warmup_s: float = 0.0
    deadline_ms: int | None = None
    seed: int = 0
    bursts: tuple[float, float, float] = (4.0, 0.5, 5.0)
    outstanding_max: int = 10_000
    answer_wait_s_max: float = 30.0


@dataclass(frozen=True)
class LoadProgress:
    """How far a run is: requests that were due, were answered, failed, and are under way."""

    due: int
    ok: int
    failed: int
    outstanding: int


@dataclass(frozen=True)
class LoadFound:
    """What came of a run.

    Attributes:
        plan: What it was to do.
        seconds: For how long requests that count were sent.
        due: How many were due, whatever came of them.
        ok: Of these, how many were answered.
        in_time: Of these, how many within the deadline; all, where there is none.
        overrun: How many failed because too many were under way when they were due.
        unanswered: To how many nothing was said.
        refused: How many ended with which other code of gRPC.
        said: What was said with each code first.
        latency_ms: From when a request was due to the end of its answer, of those answered: `mean`, `p50`, `p90`,
            `p99`, `p999`, `max`; None where none was.
        lag_ms: From when a request was due to when it was sent, likewise: what the generator itself is late.
        answer_bytes: Of all answers.
        time_line: For each second how many were due, were answered, and the p99 of their latency in ms.
        own_cpu_us: What a request cost this process.
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

    @property
    def failed(self) -> int:
        """How many were not answered."""
        return self.due - self.ok

    @property
    def goodput_per_s(self) -> float:
        """Answers within the deadline, a second."""
        return self.in_time / self.seconds if self.seconds else 0.0


class Load:
    """Connections to a node, and messages for it.

    Args:
        address: HOST:PORT of one that speaks gRPC, or http://HOST:PORT/PATH where bodies are posted.
        messages: Encoded requests, or bodies; none for whoever only uses `ask_all`.
        token: What the node wants to be told to let a caller in.
        connections: How many connections there are; requests take them by turns. Of HTTP how many at most: one carries
            one request at a time.
        threads: How many threads send.

    Raises:
        ServiceError: Nobody answers there.
        UsageError: The address is none.
    """

    def __init__(
        self,
        address: str,
        messages: Sequence[bytes] = (),
        token: str | None = None,
        *,
        connections: int = 2,
        threads: int = 1,
    ) -> None:
        self._address = address
        numbers = connections, threads, _CONNECT_WAIT_MS_MAX, _ANSWER_BYTES_MAX
        place, path = _place_of(address)
        self._native = native.Load(place, path, messages, token, numbers)

    def probe(self) -> InferAnswer:
        """What the node answers to the first message.

        Raises:
            ServiceError: It refuses it, or says nothing.
            BadRecord: What it answers is not of this protocol.
        """
        return InferAnswer.decode(self.ask(0))

    def ask(self, number: int) -> bytes:
        """The bytes of what the node answers to one of the messages.

        Raises:
            ServiceError: It refuses it, or says nothing.
        """
        code, said, answer = self._native.ask(number, _PROBE_MS)
        if code is None:
            message = f"{self._address} did not answer within {_PROBE_MS // 1000} s"
            raise ServiceError(message, help="check that the node is ready")
        if answer is None:
            message = f"{self._address} refuses a request: {code}: {said}"
            raise ServiceError(message, help="check that it serves this model (--model) with these features")
        return answer

    def ask_all(self, messages: Sequence[bytes], wait_s: float = _PROBE_MS / 1_000) -> list[bytes | None]:
        """What the node answers to other messages, all sent at once; None where it refuses one, or says nothing.

        Args:
            messages: Encoded requests, or bodies.
            wait_s: How long an answer is waited for.
        """
        return [answer for _, _, answer in self._native.ask_all(messages, round(wait_s * 1_000))]

    def run(
        self, plan: LoadPlan, on_progress: Callable[[LoadProgress], None] | None = None, stop: Callable[[], bool] = bool
    ) -> LoadFound:
        """Carry a plan out.

        Args:
            plan: What to do.
            on_progress: Told a few times a second how far it is.
            stop: Asked as often whether to end early.

        Raises:
            UsageError: A number of the plan cannot be.
        """
        deadline_ms = None if plan.deadline_ms is None else int(plan.deadline_ms)
        times = plan.seconds, round(plan.warmup_s * 1000), deadline_ms, round(plan.answer_wait_s_max * 1000)
        cpu_s = time.process_time()
        run = self._native.start((plan.pace, plan.amount, plan.seed), plan.bursts, times, plan.outstanding_max)
        while not run.wait(_LOOK_MS):
            if on_progress is not None:
                on_progress(LoadProgress(*run.progress()))
            if stop():
                run.stop()
        outcome = run.outcome()
        assert outcome is not None
        return _found(plan, outcome, time.process_time() - cpu_s)


def _place_of(address: str) -> tuple[str, str | None]:
    """HOST:PORT, and the path where the address is one of HTTP."""
    if "://" not in address:
        return address, None
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.netloc or "@" in parts.netloc:
        message = f"cannot send load to {address!r}"
        raise UsageError(message, help="give HOST:PORT for gRPC, or http://HOST:PORT/PATH; TLS is not supported")
    path = parts.path or "/"
    host = parts.netloc if parts.port else f"{parts.netloc}:80"
    return host, f"{path}?{parts.query}" if parts.query else path


def _found(plan: LoadPlan, outcome: Mapping[str, Any], cpu_s: float) -> LoadFound:
    same = ("seconds", "due", "ok", "in_time", "overrun", "unanswered", "refused", "said", "answer_bytes")
    sent = outcome["due"] + outcome["warmup"] - outcome["overrun"]
    return LoadFound(
        plan=plan,
        latency_ms=_ms(outcome["latency_ns"]),
        lag_ms=_ms(outcome["lag_ns"]),
        time_line=[(due, ok, None if p99 is None else p99 / 1e6) for due, ok, p99 in outcome["time_line"]],
        own_cpu_us=cpu_s / sent * 1e6 if sent else 0.0,
        **{name: outcome[name] for name in same},
    )


def _ms(times_ns: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if one is None else one / 1e6 for name, one in times_ns.items()}

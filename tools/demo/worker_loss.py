"""WorkerLoss: a worker of a running loop is killed, and what was seen of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo.loop import Loop

__all__ = ["WorkerLoss", "lose_worker"]

_WORKER, _LEADER = "worker-1", "leader"
# How long the worker may stand still without a slice.
_SLICE_S_MAX = 3.0


@dataclass(frozen=True)
class WorkerLoss:
    """The loss of a worker.

    Attributes:
        held: Whether it held a slice when it was killed.
        continued_s: Seconds until the others had learned a whole step without it.
        back_s: Seconds until it had started again and learned a slice.
    """

    held: bool
    continued_s: float
    back_s: float


def lose_worker(loop: Loop, wait: Callable[[Callable[[], bool], str], None]) -> WorkerLoss:
    """Kill a worker while it holds a slice, unless it gets none. `wait` waits for what its second argument names."""
    killed = f":{loop.pid(_WORKER)}"

    def held() -> int:
        return sum(one["held"] for name, one in loop.learners().items() if name.endswith(killed))

    def learned() -> dict[str, int]:
        return {name: one["slices"] for name, one in loop.learners().items()}

    def is_missed() -> bool:
        names = loop.learners().keys()
        return bool(names) and not any(name.endswith(killed) for name in names)

    def is_back() -> bool:
        return any(slices for name, slices in learned().items() if name != _LEADER and not name.endswith(killed))

    # It stands still first, so that it does not finish the slice that it is given.
    loop.signal(_WORKER, signal.SIGSTOP)
    until_s = time.monotonic() + _SLICE_S_MAX
    wait(lambda: bool(held()) or time.monotonic() > until_s, "the worker to get a slice")
    has_slice, begin_s = bool(held()), time.monotonic()
    loop.kill(_WORKER)
    wait(is_missed, "the trainer to miss the worker")
    # The others may have learned the rest of the step that the worker took part in.
    enough = sum(learned().values()) + loop.folder.settings.workers.slices
    wait(lambda: sum(learned().values()) > enough, "training to continue without the worker")
    continued_s = time.monotonic() - begin_s
    wait(is_back, "the worker to learn again")
    return WorkerLoss(has_slice, continued_s, time.monotonic() - begin_s)

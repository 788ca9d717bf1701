"""Recovery of the loop: the time from a kill of a part under load, with an immediate restart, until it works again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.loops.loop_rows import first_written
from benchmarks.loops.loop_whole import Whole
from streamlearn.errors import ServiceError

__all__ = ["recoveries", "rollbacks"]

Note = Callable[[str], None]
_LEARNED = 'streamlearn_trainer_rows_total{outcome="learned"}'
_RESTORED = "streamlearn_trainer_recoveries_total"
_LOOK_S, _BACK_S_MAX, _SEEN_S_MAX = 0.05, 120.0, 60.0


def recoveries(
    whole: Whole, rate: float, events_of: Callable[[float], float], note: Note, times: int
) -> dict[str, float]:
    """Kill the kinds of parts by turns, each `times` times, while samples arrive and nodes are called.

    Args:
        whole: The loop. Without shards, their kill is left out.
        rate: Samples per second.
        events_of: Returns the rate of events for a rate of samples.
        note: Called with each recovery time.
        times: Number of kills of each kind.

    Raises:
        ServiceError: A part did not recover.
    """
    works = {"node": _node, "trainer": _trainer, "ingest": _ingest}
    if whole.shards:
        works["shard"] = _shard
    taken_s: dict[str, list[float]] = {name: [] for name in works}
    # The producer is stopped at the end.
    with whole.producing(events_of(rate), times * len(works) * 2 * _BACK_S_MAX):
        for _ in range(times):
            for name, work in works.items():
                _learns_on(whole)
                begin_s = time.monotonic()
                work(whole)
                taken_s[name].append(time.monotonic() - begin_s)
                note(f"{name}: recovered after {taken_s[name][-1]:.1f} s")
    return {f"recovery_{name}_s": statistics.median(times_s) for name, times_s in taken_s.items()} | {
        f"recovery_{name}_max_s": max(times_s) for name, times_s in taken_s.items()
    }


def rollbacks(whole: Whole, rate: float, events_of: Callable[[float], float], times: int) -> dict[str, float]:
    """Roll back by one version under load, until every node has answered with the older one. Release at the end.

    Args:
        whole: The loop.
        rate: Samples per second.
        events_of: Returns the rate of events for a rate of samples.
        times: Number of rollbacks.

    Raises:
        ServiceError: A node did not follow.
    """
    taken_ms: list[float] = []
    with whole.producing(events_of(rate), times * 2 * _BACK_S_MAX), whole.pointing() as pointing:
        _learns_on(whole)
        pointing.look()
        newest = whole.answers[0].seen[-1].version
        for _ in range(times):
            begin_ms = time.time_ns() / 1e6
            pointing.back(newest - 1)
            answered = [answers.first_after(begin_ms, _SEEN_S_MAX, newest - 1) for answers in whole.answers]
            taken_ms.append(max(_required(at, f"an answer of version {newest - 1}") for at in answered) - begin_ms)
            begin_ms = time.time_ns() / 1e6
            pointing.forward(newest)
            for answers in whole.answers:
                _required(answers.first_after(begin_ms, _SEEN_S_MAX, newest), f"an answer of version {newest}")
        pointing.release()
    return {"rollback_ms": statistics.median(taken_ms), "rollback_max_ms": max(taken_ms)}


def _node(whole: Whole) -> None:
    node, answers = whole.nodes[0], whole.answers[0]
    node.kill()
    killed_ms = time.time_ns() / 1e6
    node.restart()
    _required(answers.first_after(killed_ms, _BACK_S_MAX), "an answer of the node")


def _trainer(whole: Whole) -> None:
    whole.trainer.kill()
    whole.trainer.restart()
    _until(lambda: _learned(whole) > 0, "samples to be learned again by the trainer")


def _ingest(whole: Whole) -> None:
    """Recovery ends with a sample that was due after the kill: all events before it were then read and joined again."""
    whole.ingest.kill()
    killed_ms = time.time_ns() / 1e6
    whole.ingest.restart()
    _required(first_written(whole.folder, killed_ms, _BACK_S_MAX), "a sample that was due after ingest was killed")


def _shard(whole: Whole) -> None:
    """Recovery ends when all shards were restored and rows were learned after that."""
    before = whole.trainer.meter(_RESTORED) or 0.0
    whole.shards[-1].kill()
    whole.shards[-1].restart()
    _until(lambda: (whole.trainer.meter(_RESTORED) or 0.0) > before, "all shards to be restored")
    _learns_on(whole)


def _learns_on(whole: Whole) -> None:
    before = _learned(whole)
    _until(lambda: _learned(whole) > before, "samples to be learned")


def _learned(whole: Whole) -> float:
    return whole.trainer.meter(_LEARNED) or 0.0


def _until(is_so: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + _BACK_S_MAX
    while not is_so():
        if time.monotonic() > until_s:
            message = f"waited {_BACK_S_MAX:.0f} s for {what}"
            raise ServiceError(message, help="see the logs of the parts")
        time.sleep(_LOOK_S)


def _required(time_ms: float | None, event: str) -> float:
    if time_ms is None:
        message = f"missed within the time limit: {event}"
        raise ServiceError(message, help="see the logs of the parts")
    return time_ms

"""Recovery of the loop: a part is killed under load and started again at once; how long until its work goes on."""

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
    """Kill each kind of part so many times in turn, while samples come and nodes are asked.

    Args:
        whole: The loop; with shards, or they are left out.
        rate: Samples a second.
        events_of: Events a second that give so many samples a second.
        note: Told what was seen.
        times: How often each is killed.

    Raises:
        ServiceError: One did not come back.
    """
    works = {"node": _node, "trainer": _trainer, "ingest": _ingest}
    if whole.shards:
        works["shard"] = _shard
    taken_s: dict[str, list[float]] = {name: [] for name in works}
    # It is ended once all is measured.
    with whole.producing(events_of(rate), times * len(works) * 2 * _BACK_S_MAX):
        for _ in range(times):
            for name, work in works.items():
                _learns_on(whole)
                begin_s = time.monotonic()
                work(whole)
                taken_s[name].append(time.monotonic() - begin_s)
                note(f"{name}: back after {taken_s[name][-1]:.1f} s")
    return {f"recovery_{name}_s": statistics.median(found) for name, found in taken_s.items()} | {
        f"recovery_{name}_max_s": max(found) for name, found in taken_s.items()
    }


def rollbacks(whole: Whole, rate: float, events_of: Callable[[float], float], times: int) -> dict[str, float]:
    """Go back by a version while others are learned and published; until every node has answered with the older one.

    Args:
        whole: The loop; nothing is followed meanwhile, and again afterwards.
        rate: Samples a second.
        events_of: Events a second that give so many samples a second.
        times: How often.

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
            found = [one.first_after(begin_ms, _SEEN_S_MAX, newest - 1) for one in whole.answers]
            taken_ms.append(max(_had(at, f"version {newest - 1}") for at in found) - begin_ms)
            begin_ms = time.time_ns() / 1e6
            pointing.forward(newest)
            for one in whole.answers:
                _had(one.first_after(begin_ms, _SEEN_S_MAX, newest), f"version {newest}")
        pointing.release()
    return {"rollback_ms": statistics.median(taken_ms), "rollback_max_ms": max(taken_ms)}


def _node(whole: Whole) -> None:
    node, answers = whole.nodes[0], whole.answers[0]
    node.kill()
    killed_ms = time.time_ns() / 1e6
    node.restart()
    _had(answers.first_after(killed_ms, _BACK_S_MAX), "any version")


def _trainer(whole: Whole) -> None:
    whole.trainer.kill()
    whole.trainer.restart()
    _until(lambda: _learned(whole) > 0, "samples to be learned again by the trainer")


def _ingest(whole: Whole) -> None:
    """Back is when a row is a sample that was due after the kill: by then all before it was read and joined again."""
    whole.ingest.kill()
    killed_ms = time.time_ns() / 1e6
    whole.ingest.restart()
    _had(first_written(whole.folder, killed_ms, _BACK_S_MAX), "a sample that was due after ingest was killed")


def _shard(whole: Whole) -> None:
    """Back is when all shards were restored, and rows were learned since."""
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


def _had(found: float | None, what: str) -> float:
    if found is None:
        message = f"there was no {what} in time"
        raise ServiceError(message, help="see the logs of the parts")
    return found

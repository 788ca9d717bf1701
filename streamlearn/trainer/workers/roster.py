"""Roster: which worker learns which slice, and how far all are. It decides; it sends nothing and reads no clock."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Member", "Roster"]

_SHARE_OF_NEW = 0.2  # of the moving average of the time that a slice takes
# By how much the time of a worker comes nearer to the mean of all, with each step that it got nothing of.
_SHARE_FORGIVEN = 0.02
_GONE_S = 0.4  # so that a connection that is lost may be made again
_HELD_MAX = 2  # so that a worker has the next slice before it has finished one
_LOSSES_MAX = 3  # of one slice: it may be the reason


@dataclass
class Member:
    """A worker."""

    name: str
    seen_s: float  # when it last asked
    slice_s: float = 0.0  # the moving average of the time that it works on a slice; 0 before the first
    slices: int = 0  # how many it has learned
    held: set[tuple[int, int]] = field(default_factory=set)  # (step, slice)
    leaves: bool = False  # it finishes what it holds, and takes nothing more
    waits_s: float = 0.0  # since when it could have finished one


@dataclass
class _OpenStep:
    free: list[int]  # slices that nobody learns yet, ascending
    given: dict[str, int] = field(default_factory=dict)  # how many slices each worker was given
    losses: dict[int, int] = field(default_factory=dict)  # how often each slice was lost with its worker
    left: int = 0  # slices that are not done


class Roster:
    """The workers of a job and the slices of its open steps.

    Attributes:
        members: The workers, by id.
        complete: The newest step that is done with all before it.
        released: The newest step whose results may be given to the shards.
    """

    def __init__(self, slices: int, fixed: Mapping[str, range] | None = None) -> None:
        """Give slices to whoever would end first; with `fixed`, to each worker always the same."""
        self._slices, self._open, self._fixed = slices, dict[int, _OpenStep](), fixed
        self.members: dict[str, Member] = {}
        self.complete = self.released = self._offered = 0

    def see(self, worker: str, name: str, now_s: float, *, leaves: bool = False) -> None:
        """Note that a worker is there; a new one joins, and one that leaves takes nothing more."""
        member = self.members.setdefault(worker, Member(name, now_s))
        member.seen_s, member.leaves = now_s, leaves

    def remove(self, worker: str) -> set[tuple[int, int]]:
        """Forget a worker; returns the slices that it held, which nobody learns now."""
        member = self.members.pop(worker, None)
        return set() if member is None else member.held

    def give_back(self, slices: Iterable[tuple[int, int]]) -> bool:
        """Let others learn slices of a lost worker; returns False if one was lost too often."""
        for number, slice in slices:
            step = self._open[number]
            step.losses[slice] = step.losses.get(slice, 0) + 1
            if step.losses[slice] > _LOSSES_MAX:
                return False
            insort(step.free, slice)
        return True

    def is_begun(self, step: int) -> bool:
        """Whether a worker was given a slice of an open step."""
        return bool(self._open[step].given)

    def offer(self) -> int:
        """Open the next step and return its number."""
        self._offered += 1
        self._open[self._offered] = _OpenStep(list(range(self._slices)), left=self._slices)
        return self._offered

    def release(self, step: int, now_s: float) -> None:
        """Allow workers to give the results of a step to the shards. Until then, those who hold one had to wait."""
        self.released = step
        for member in self.members.values():
            member.waits_s = now_s

    def take(self, worker: str, now_s: float) -> tuple[int, int] | None:
        """Return the step and slice that a worker shall learn next; None if it has enough, or nothing is left for it.

        A step's slices are divided so that all workers end at about the same time: a slow one gets fewer. All slices of
        a step are given before those of the next one: a worker learns them in the order in which it got them, and one
        of a later step has to wait for all of an earlier step. Slices of a lost worker come after later ones; these
        then wait for them, and do not count.
        """
        member, opened = self.members[worker], self._open.items()
        number, step = next(((number, step) for number, step in opened if self._free(worker, step)), (0, _OpenStep([])))
        held = sum(before <= number for before, _ in member.held)
        if member.leaves or held >= _HELD_MAX or not self._share(worker, step):
            return None
        chosen = (number, self._free(worker, step)[0])
        step.free.remove(chosen[1])
        step.given[worker] = step.given.get(worker, 0) + 1
        member.waits_s = member.waits_s if self._can_finish(member) else now_s
        member.held.add(chosen)
        return chosen

    def done(self, worker: str, step: int, number: int, busy_s: float, now_s: float) -> bool:
        """Note that a worker has learned a slice; returns whether it held that slice."""
        member = self.members.get(worker)
        if member is None or (step, number) not in member.held:
            return False
        member.held.remove((step, number))
        # A first slice takes the time to compile the step, too.
        member.slice_s += (busy_s - member.slice_s) * (_SHARE_OF_NEW if member.slices > 1 else 1.0)
        member.slices += 1
        member.waits_s = now_s
        self._open[step].left -= 1
        while (first := self._open.get(self.complete + 1)) is not None and not first.left:
            self._forgive(self._open.pop(self.complete + 1))
            self.complete += 1
        return True

    def drop(self) -> None:
        """Give up all open steps; numbers continue after them."""
        self._open.clear()
        self.complete = self.released = self._offered
        for member in self.members.values():
            member.held.clear()

    def overdue(self, connected: Collection[str], limits: tuple[float, float], now_s: float) -> list[str]:
        """Return the workers that are gone, silent for too long, or too long at a slice.

        `limits` has the most seconds of silence, and of work on a slice.
        """
        silent_s, slice_s = limits
        late = []
        for worker, member in self.members.items():
            silence_s = now_s - member.seen_s
            is_gone = worker not in connected and silence_s > _GONE_S
            is_slow = self._can_finish(member) and now_s - member.waits_s > slice_s
            if is_gone or is_slow or silence_s > silent_s:
                late.append(worker)
        return late

    def _can_finish(self, member: Member) -> bool:
        """Whether a worker holds a slice that waits for nobody."""
        return any(step <= self.released for step, _ in member.held)

    def _forgive(self, step: _OpenStep) -> None:
        """Expect a little more of workers that got nothing of a step, so that they get slices again one day."""
        usual_s = self._usual_s()
        for worker, member in self.members.items():
            if worker not in step.given:
                member.slice_s += (usual_s - member.slice_s) * _SHARE_FORGIVEN

    def _usual_s(self) -> float:
        known = [member.slice_s for member in self.members.values() if member.slices > 1]
        return sum(known) / len(known) if known else 1.0

    def _free(self, worker: str, step: _OpenStep) -> list[int]:
        """Return the slices of a step that a worker might get."""
        return step.free if self._fixed is None else [slice for slice in step.free if slice in self._fixed[worker]]

    def _share(self, worker: str, step: _OpenStep) -> bool:
        """Whether a worker is among those that end first if each gets the slices that it should."""
        if self._fixed is not None:
            return bool(self._free(worker, step))
        usual_s = self._usual_s()
        staying = {one: member for one, member in self.members.items() if not member.leaves}
        seconds = {one: (member.slice_s if member.slices > 1 else usual_s) for one, member in staying.items()}
        given = dict.fromkeys(seconds, 0) | {one: count for one, count in step.given.items() if one in seconds}
        for _ in step.free:
            first = min(seconds, key=lambda one: ((given[one] + 1) * max(seconds[one], 1e-6), one))
            if first == worker:
                return True
            given[first] += 1
        return False

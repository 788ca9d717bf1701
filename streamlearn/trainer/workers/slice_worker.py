"""SliceWorker: learns slices of steps, in this process or for a leader in another. It decides nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.native import native
from streamlearn.ps import Epoch, PsClient
from streamlearn.ps.slice_part import SlicePart
from streamlearn.trainer.columns import Inputs
from streamlearn.trainer.learner import Learner, Packed, SliceGradients
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.stages import Stages, Work
from streamlearn.trainer.workers.collective import CollectiveSums
from streamlearn.trainer.workers.dense_update import DenseUpdate
from streamlearn.trainer.workers.messages import Idle, Report, SliceWork
from streamlearn.trainer.workers.slices import STRICT, SliceRule

__all__ = ["SUMS_KEPT", "Clients", "SliceWorker", "Source"]

Float32s = npt.NDArray[np.float32]
SUMS_KEPT = 4
"""How many steps back shards keep sums; a worker that is further behind must be welcomed again."""
_SUM_WAIT_S = 0.5
# How long a worker that is told to stop finishes what it holds.
_LEAVE_S_MAX = 15.0
# The stages of a worker wait for the leader, not for each other.
_STALENESS = 64


class Clients(NamedTuple):
    """Two clients of the same shards: dense sums wait for other workers, and rows must not wait behind them.

    If a group sums without shards, `sums` is the group's.
    """

    rows: PsClient
    sums: PsClient | CollectiveSums

    def join(self, epoch: Epoch) -> None:
        """Take part in an epoch."""
        for client in self:
            if isinstance(client, PsClient) and client.epoch != epoch:
                client.join(epoch)


class Source(Protocol):
    """Where slices come from."""

    def ask(self, session: int, applied: int, *, leaves: bool = False) -> tuple[Idle | SliceWork, Inputs | None] | None:
        """Wait a little for a slice or for news, or for news only; None if the session is over."""

    def report(self, report: Report, logits: Float32s) -> None:
        """Tell that all shards have a slice."""


class _Start:
    """The weights at which the slices of a step begin."""

    def __init__(self, learner: Learner, weights: Float32s) -> None:
        self.weights, self.scale, self._steps = weights, learner.rate_scale, learner.steps

    @cached_property
    def digest(self) -> int:
        """A hash of the weights."""
        digest: int = self._steps << 32 | native.crc32c(self.weights.view(np.uint8))
        return digest & ((1 << 64) - 1)


@dataclass(frozen=True, eq=False)
class _Slice:
    work: SliceWork
    inputs: Inputs
    is_early: bool  # it came after slices of later steps, which have to wait for it
    packed: Packed | None = None
    gradients: SliceGradients | None = None
    start: _Start | None = None  # where they were computed
    busy_s: float = 0.0


_Item: TypeAlias = _Slice | int  # a number is a step that all shards have, or that has nothing left to do


class _SessionOver(Exception):
    """The leader has ended the session, or this worker stops."""


class SliceWorker:
    """Learns the slices of one session, and follows the dense weights step by step.

    `sums` sends dense gradients. `changed` is notified when `applied` moves, and guards it together with the learner's
    weights. `rule` is that of all workers.

    A slice may be given to it after those of later steps, because the worker that held it is lost. The thread that
    learns is then in one of these, or will be, and waits for that slice. So it learns it as soon as it may, and pushes
    it, too.

    Attributes:
        session: The session.
        applied: The newest step that the weights have learned.
        is_finite: Whether they could learn from it.
    """

    _dense: DenseUpdate

    def __init__(
        self,
        name: str,
        learner: Learner,
        rows: Rows,
        sums: PsClient | CollectiveSums,
        source: Source,
        *,
        rule: SliceRule = STRICT,
        changed: threading.Condition | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name, self._learner, self._rows, self._sums = name, learner, rows, sums
        self._source, self._rule, self._clock = source, rule, clock
        self._changed, self._pushes = changed or threading.Condition(), threading.Lock()
        self.session = self._slices = self._released = self.applied = 0
        self.is_finite, self._is_over, self._held = True, False, 0
        self._starts, self._early = dict[int, _Start](), dict[tuple[int, int], _Slice]()
        self._error: BaseException | None = None  # the first one of any stage

    def begin(self, session: int, applied: int, slices: int) -> None:
        """Begin a session with the weights of the learner, which have learned the step `applied`; `learn` follows."""
        with self._changed:
            self.session, self._slices, self._released, self.applied = session, slices, 0, applied
            self._dense = self._learner.dense_update()
            self._starts, self._early = {applied + 1: _Start(self._learner, self._dense.whole)}, {}
            # The last number is that of the step's rows.
            self._sum = np.zeros(len(self._dense.whole) + 1, np.float32)
            self._is_over, self._error, self._held = False, None, 0

    def learn(self, stop: threading.Event) -> None:
        """Learn slices until the session is over or `stop` is set; raises what shards and the model raise."""
        stages = Stages(
            Work(self._asks(stop), lambda item: item, *map(self._guarded, (self._pull, self._learn, self._push))),
            queue_max=_STALENESS, staleness=_STALENESS, clock=self._clock,
        )  # fmt: skip
        try:
            with stages:
                for _ in stages.learned():
                    pass
        except _SessionOver:
            pass
        finally:
            self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End the session: whatever waits for the leader or for other workers stops waiting."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def state(self) -> list[Float32s]:
        """Return copies of the weights and of the optimizer's slots; the caller holds `changed`."""
        return [vector.copy() for vector in (self._dense.whole, *self._dense.slots)]

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the session if the block fails: no stage shall wait for what cannot come any more."""
        try:
            yield
        except _SessionOver:
            raise
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
            self.end()
            raise

    def _guarded(self, stage: Callable[[_Item], Any]) -> Callable[[_Item], Any]:
        def guarded(item: _Item) -> Any:
            with self._ending():
                return stage(item)

        return guarded

    def _asks(self, stop: threading.Event) -> Iterator[_Item | None]:
        complete, newest, leave_s = self.applied, 0, math.inf
        while not self._is_over:
            if leaves := stop.is_set():  # what it holds is finished, so that nobody has to begin again
                leave_s = min(leave_s, self._clock.monotonic_s() + _LEAVE_S_MAX)
                if not self._held or self._clock.monotonic_s() > leave_s:
                    break
            with self._ending():
                answer = self._source.ask(self.session, self.applied, leaves=leaves)
            if answer is None:
                break
            head, inputs = answer
            with self._changed:
                if head.released > self._released:
                    self._released = head.released
                    self._changed.notify_all()
            if inputs is not None:
                assert isinstance(head, SliceWork)
                with self._changed:
                    self._held += 1
                yield _Slice(head, inputs, head.step < newest)
                newest = max(newest, head.step)
            elif head.complete > complete:
                complete = head.complete
                yield complete
            else:
                yield None
        self.end()
        raise _SessionOver

    def _pull(self, item: _Item) -> _Item:
        if isinstance(item, int):
            return item
        begin_s = self._clock.monotonic_s()
        packed = self._rows.pack_inputs(item.inputs) if len(item.inputs) else None
        item = replace(item, packed=packed, busy_s=self._clock.monotonic_s() - begin_s)
        if item.is_early:
            with self._changed:
                self._early[item.work.step, item.work.slice] = item
                self._changed.notify_all()
        return item

    def _learn(self, item: _Item) -> _Item:
        if isinstance(item, int):
            self._catch_up(item)
            return item
        work = item.work
        self._catch_up(work.step - 1)
        if not item.is_early:
            return self._computed(item)
        while True:
            self._learn_early()
            with self._changed:
                if (work.step, work.slice) not in self._early:
                    return work.step
                if self._is_over:
                    raise _SessionOver
                if self._released < work.step:
                    self._changed.wait()

    def _learn_early(self) -> None:
        """Learn and push the early slices whose turn it is."""
        while True:
            with self._changed:
                newest = min(self._released, self.applied + 1)
                key = next((key for key in self._early if key[0] <= newest), None)
                if key is None:
                    return
                item = self._early.pop(key)
                if key[0] not in self._starts:  # others have learned it since
                    self._held -= 1
                    continue
            self._push(self._computed(item))

    def _computed(self, item: _Slice) -> _Slice:
        begin_s, work, gradients = self._clock.monotonic_s(), item.work, None
        start = self._starts[work.step]
        if item.packed is not None:
            gradients = self._learner.gradients(item.packed, work.slice, work.step_rows, start.weights)
        busy_s = item.busy_s + self._clock.monotonic_s() - begin_s
        return replace(item, packed=None, gradients=gradients, start=start, busy_s=busy_s)

    def _push(self, item: _Item) -> None:
        if isinstance(item, int):
            return
        with self._changed:
            while self._released < item.work.step and not self._is_over:
                self._changed.wait()
            if self._is_over:
                raise _SessionOver
        with self._pushes:
            self._give(item)
        with self._changed:
            self._held -= 1

    def _give(self, item: _Slice) -> None:
        """Give all shards a slice, and report it."""
        work, gradients, start = item.work, item.gradients, item.start
        assert start is not None
        begin_s, part = self._clock.monotonic_s(), SlicePart(work.step, work.slice, self._slices, *self._rule)
        values = np.zeros(len(self._sum), np.float32)
        values[-1] = len(item.inputs)
        is_finite = gradients is None or gradients.is_finite
        if gradients is not None and is_finite:
            values[:-1] = gradients.of_weights
        self._sums.reduce(part, values, digest=start.digest, is_finite=is_finite)
        keys = 0
        if gradients is None or not is_finite:
            self._rows.push_none(part, work.now_ms, start.scale, is_finite=is_finite)
        else:
            keys = self._rows.push(item.inputs, gradients.of_rows, work.now_ms, start.scale, part=part)
        busy_s = item.busy_s + self._clock.monotonic_s() - begin_s
        report = Report(
            self._name, self.session, work.step, work.slice, 0.0 if gradients is None else gradients.loss,
            is_finite, keys, busy_s,
        )  # fmt: skip
        self._source.report(report, _logits_of(gradients, item.inputs))

    def _catch_up(self, step: int) -> None:
        """Learn the sums of all steps up to one; each has to be complete."""
        while self.applied < step:
            self._learn_early()
            number = self.applied + 1
            is_finite = self._sums.reduced(number, self._slices, self._sum, wait_s=_SUM_WAIT_S)
            if self._is_over:
                raise _SessionOver
            if is_finite is None:
                continue
            with self._changed:
                if is_finite:
                    share, rate = map(float, self._learner.scalars(round(float(self._sum[-1]))))
                    self._dense.learn(self._sum[:-1], share, rate)
                    self._learner.steps += 1
                # Of a step that shards have in full, a slice may be learned again as long as it was not reported.
                before, now = self._starts[number], _Start(self._learner, self._dense.whole)
                self.applied, self.is_finite, self._starts = number, is_finite, {number: before, number + 1: now}
                self._changed.notify_all()


def _logits_of(gradients: SliceGradients | None, inputs: Inputs) -> Float32s:
    return np.zeros(inputs.targets.shape[:2], np.float32) if gradients is None else gradients.logits

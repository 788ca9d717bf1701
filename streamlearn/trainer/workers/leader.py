"""Leader: has workers learn the slices of each step, and learns from their sum. It is a worker itself."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import UsageError, WorkerLost
from streamlearn.ps import Epoch
from streamlearn.pulse import PULSE
from streamlearn.settings.workers import WorkersSettings
from streamlearn.telemetry import counter, gauge, histogram
from streamlearn.trainer.columns import Inputs, StepColumns
from streamlearn.trainer.learner import Learned, Learner
from streamlearn.trainer.learning_loop import NoWorker
from streamlearn.trainer.restore import RECOVERABLE
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.workers.assembly import Assembly
from streamlearn.trainer.workers.messages import (
    Answer,
    Array,
    Ask,
    Idle,
    Leave,
    Members,
    Report,
    Setup,
    SliceWork,
    Welcome,
    WorkerState,
    arrays_of,
)
from streamlearn.trainer.workers.roster import Roster
from streamlearn.trainer.workers.slice_worker import SUMS_KEPT, Clients, SliceWorker
from streamlearn.trainer.workers.slices import STRICT, SliceRule, cut

__all__ = ["Leader"]

Float32s = npt.NDArray[np.float32]
_LOG = logging.getLogger("streamlearn.trainer.workers")
_OWN = "leader"
_LOOK_S, _ASK_S = 0.05, 0.5
_ERROR_CHARS = 256
_SLICE_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 4.0, 15.0, 60.0)


@dataclass(frozen=True, eq=False)
class _Offered:
    """A step whose slices are given to workers."""

    number: int
    now_ms: int
    inputs: Sequence[Inputs]
    reports: dict[int, tuple[Report, Float32s]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The rows of the step."""
        return sum(map(len, self.inputs))

    def learned(self, *, is_finite: bool) -> Learned:
        """Return the result of the step, which is the same in whatever order its slices came.

        A slice that was learned twice may be finite once: `is_finite` is what the sum says.
        """
        reports = [self.reports[number] for number in range(len(self.inputs))]
        logits = np.concatenate([logits for _, logits in reports])
        loss = float(sum(report.loss for report, _ in reports))
        return Learned(logits, loss, (), is_finite and all(report.is_finite for report, _ in reports))


class Leader:
    """A `StepLearner` whose steps are learned by workers.

    `setup` is what must be equal in every process, `rule` what may happen to slices. A `group` has fixed workers, and
    sums dense gradients. `wanted` is how many processes should learn, 0 if that is not known. `on_change` is called, by
    any thread, when what workers wait for may have come.
    """

    def __init__(
        self,
        learner: Learner,
        rows: Rows,
        clients: Clients,
        settings: WorkersSettings,
        setup: Setup,
        *,
        rule: SliceRule = STRICT,
        group: Assembly | None = None,
        wanted: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._learner, self._rows, self._clients, self._settings = learner, rows, clients, settings
        self._setup, self._rule, self._group, self._clock = setup, rule, group, clock
        self._wanted, self._short_from_s = wanted, clock.monotonic_s()  # since when fewer learn, if fewer do
        self._changed = threading.Condition()
        self._roster = Roster(settings.slices, None if group is None else group.shares(_OWN))
        self._steps = dict[int, _Offered]()
        self._told, self._asked = dict[str, tuple[int, int]](), dict[str, int]()
        self._answered = dict[str, tuple[int, tuple[Answer, Sequence[Array] | Inputs]]]()
        self._session, self._lost, self._misses_workers, self._bits = 0, "", False, setup.bits
        self._stop = threading.Event()
        self._own_error: BaseException | None = None
        changed = self._changed
        self._own = SliceWorker(_OWN, learner, rows, clients.sums, self, rule=rule, changed=changed, clock=clock)
        self._count = gauge("trainer", "workers", "processes", "Processes that learn slices, the trainer among them")
        help = "Time that a worker works on a slice"
        self._slice_seconds = histogram("trainer", "slice", "seconds", help, _SLICE_S)
        self._given_again = counter("trainer", "slices_given_again", "Slices of lost workers that others were given")
        self.on_change: Callable[[], None] = lambda: None
        self.connected: Callable[[], set[str]] = set

    @property
    def steps(self) -> int:
        """The steps that the dense weights have learned."""
        return self._learner.steps

    @property
    def rate_scale(self) -> float:
        """The factor of all learning rates at the next step."""
        return self._learner.rate_scale

    @property
    def weights(self) -> Learner:
        """What is learned beside rows; see `StepLearner`."""
        return self._learner

    @property
    def workers(self) -> list[WorkerState]:
        """The workers, the leader among them if it learns."""
        with self._changed:
            return [
                WorkerState(member.name, member.slices, member.slice_s, len(member.held))
                for member in self._roster.members.values()
            ]

    def members(self) -> Members:
        """Return who learns now, without those that are gone even if no step has missed them yet."""
        with self._changed:
            now_s, known = self._clock.monotonic_s(), self._roster.members
            # Between two sessions nobody asks, and silence says nothing.
            silent_s = self._settings.worker_wait_s_max if self._session else math.inf
            gone = self._roster.overdue(self.connected() | {_OWN}, (silent_s, math.inf), now_s)
            here = [state for worker, state in zip(known, self.workers, strict=True) if worker not in gone]
            if len(here) >= self._wanted:
                return Members(here, self._wanted)
            spare, since_s = len(known) - self._wanted, self._short_from_s
            if spare >= 0:  # a step has not missed them yet
                since_s = sorted(known[worker].seen_s for worker in gone)[spare]
            return Members(here, self._wanted, max(0.0, now_s - since_s))

    @contextmanager
    def session(self, stop: threading.Event) -> Iterator[None]:
        """Let workers learn within the block; an error ends what they have begun. See `StepLearner`."""
        self._clients.join(self._epoch)
        self._stop, over = stop, threading.Event()
        with self._changed:
            self._roster.drop()
            self._steps.clear()
            self._told.clear()
            self._asked.clear()
            self._answered.clear()
            self._session, self._lost, self._own_error = secrets.randbits(62) | 1, "", None
            # Who joins before the thread runs must be welcomed at this step, too.
            self._own.begin(self._session, self._roster.complete, self._settings.slices)
        thread = threading.Thread(target=self._learn_own, args=(over,), name="streamlearn-trainer-slices", daemon=True)
        thread.start()
        try:
            yield
        except RECOVERABLE as error:
            if self._group is None:
                raise
            raise self._group.sums.lose(error.message) from error  # others may wait for sums that will not come
        finally:
            over.set()
            with self._changed:
                self._session = 0
                self._changed.notify_all()
            self._own.end()
            self.on_change()
            thread.join()

    def pack(self, columns: StepColumns, now_ms: int) -> _Offered:
        """Offer the slices of a step to workers."""
        inputs = list(cut(self._rows.inputs(columns), self._settings.slices))
        with self._changed:
            offered = _Offered(self._roster.offer(), now_ms, inputs)
            self._steps[offered.number] = offered
            self._changed.notify_all()
        self.on_change()
        return offered

    def learn(self, offered: _Offered) -> Learned:
        """Wait until the shards have all slices of a step and the weights have learned it.

        Raises:
            WorkerLost: A worker that holds a slice is gone, and no other one may learn that slice.
            NoWorker: No worker is there, and training shall stop.
        """
        with self._changed:
            self._roster.release(offered.number, self._clock.monotonic_s())
            self._count.set(len(self._roster.members))
            self._changed.notify_all()
        self.on_change()
        with self._changed:
            while min(self._own.applied, self._roster.complete) < offered.number:
                self._check(offered.number)
                self._changed.wait(_LOOK_S)
            del self._steps[offered.number]
            # The trainer scores with the learner, and saves it.
            self._learner.load_state(self._own.state(), self._learner.steps)
            is_finite = self._own.is_finite
        return offered.learned(is_finite=is_finite)

    def push(self, columns: StepColumns, offered: _Offered, learned: Learned, now_ms: int, rate_scale: float) -> int:
        """Return how many rows were pushed: workers have pushed them."""
        return sum(report.keys for report, _ in offered.reports.values())

    def answer(self, ask: Ask, *, always: bool = False) -> tuple[Answer, Sequence[Array] | Inputs] | None:
        """Return the answer to a worker; None as long as there is nothing new for it, unless `always`."""
        if self._group is not None and (other := self._group.turn_away(ask)) is not None:
            return other, ()
        if ask.setup.settings != self._setup.settings:
            message = f"worker {ask.name} has another release, other features or other settings than the trainer"
            raise UsageError(message, help="give all workers the application, settings and release of the trainer")
        with self._changed:
            self._check_bits(ask)
            if not self._session:
                return (Idle(0, 0, 0), ()) if always else None
            now_s = self._clock.monotonic_s()
            if ask.number < self._asked.setdefault(ask.worker, ask.number):
                # It took another way and was overtaken: nobody waits for the answer, so it must bring no slice.
                return Idle(self._session, self._roster.complete, self._roster.released), ()
            self._asked[ask.worker] = ask.number
            if ask.session != self._session:
                return self._welcome(ask, now_s)
            if self._rule.may_repeat and ask.worker not in self._roster.members:
                # It was lost, and others have what it holds.
                welcome = self._welcome(ask, now_s)
                self._answered[ask.worker] = (ask.number, welcome)
                return welcome
            self._roster.see(ask.worker, ask.name, now_s, leaves=ask.leaves)
            number, answer = self._answered.get(ask.worker, (0, None))
            if number != ask.number or answer is None:  # else the answer was lost
                if ask.applied + SUMS_KEPT < self._own.applied and not self._roster.members[ask.worker].held:
                    return self._welcome(ask, now_s)  # it was silent for a while, and cannot follow step by step
                answer = self._next(ask.worker, now_s, always=always)
            if answer is not None:
                self._answered[ask.worker] = (ask.number, answer)
            return answer

    def _check_bits(self, ask: Ask) -> None:
        """Refuse a worker that computes other bits than the leader, or than the workers of one that learns nothing."""
        if not self._roster.members:
            self._bits = self._setup.bits
        if self._bits and ask.setup.bits != self._bits:
            message = f"worker {ask.name} computes other numbers: its model's code or its kind of processor differs"
            raise UsageError(message, help="run one job on processors of one kind, with the same model.py everywhere")
        self._bits = ask.setup.bits

    def report(self, report: Report, logits: Float32s) -> None:
        """Take what a worker tells of a slice; what was given up since is left out."""
        with self._changed:
            offered = self._steps.get(report.step)
            if report.session != self._session or offered is None or report.slice >= len(offered.inputs):
                return
            shape = offered.inputs[report.slice].targets.shape[:2]
            if logits.shape != shape or logits.dtype != np.float32:
                message = f"predictions {logits.dtype}{logits.shape}, but slice {report.slice} has float32{shape}"
                raise UsageError(message, help="give all workers the application of the leader")
            if report.is_finite and not math.isfinite(report.loss):
                message = f"slice {report.slice} is finite, but its loss is {report.loss}"
                raise UsageError(message, help="give all workers the release of the leader")
            now_s, complete = self._clock.monotonic_s(), self._roster.complete
            if not self._roster.done(report.worker, report.step, report.slice, report.busy_s, now_s):
                return
            offered.reports[report.slice] = (report, logits)
            self._slice_seconds.observe(report.busy_s)
            if self._roster.complete == complete:
                return
            self._changed.notify_all()
        self.on_change()

    def leave(self, leave: Leave) -> None:
        """Let a worker go; if it holds slices, it is lost."""
        with self._changed:
            member = self._roster.members.get(leave.worker)
            name = leave.worker if member is None else member.name
            self._lose(leave.worker, f"{name} left with slices: {leave.error[:_ERROR_CHARS] or 'it was stopped'}")
            if self._group is not None:
                self._group.leave(leave)
            self._changed.notify_all()
        _LOG.info("worker %s left%s", name, f": {leave.error[:_ERROR_CHARS]}" if leave.error else "")

    def ask(self, session: int, applied: int, *, leaves: bool = False) -> tuple[Idle | SliceWork, Inputs | None] | None:
        """Answer the worker in this process; see `Source`."""
        deadline_s = self._clock.monotonic_s() + _ASK_S
        with self._changed:
            while session == self._session:
                now_s = self._clock.monotonic_s()
                if self._settings.leader_learns:
                    self._roster.see(_OWN, _OWN, now_s, leaves=leaves)
                found = self._next(_OWN, now_s, always=now_s >= deadline_s)
                if found is not None:
                    head, inputs = found
                    assert not isinstance(head, Welcome)
                    return head, inputs if isinstance(inputs, Inputs) else None
                self._changed.wait(_LOOK_S)
        return None

    def _next(self, worker: str, now_s: float, *, always: bool) -> tuple[Idle | SliceWork, Inputs | tuple[()]] | None:
        roster = self._roster
        member, news = roster.members.get(worker), (roster.complete, roster.released)
        taken = None if member is None else roster.take(worker, now_s)
        told = self._told.get(worker, (0, 0))
        # A worker that holds a slice waits for its release, and finds out itself when the steps before are complete.
        is_new = told[1] != news[1] or (told != news and not (member and member.held))
        if taken is None and not is_new and not always:
            return None
        self._told[worker] = news
        if taken is None:
            return Idle(self._session, *news), ()
        step, number = taken
        offered = self._steps[step]
        inputs = offered.inputs[number]
        user, item, _ = arrays_of(inputs)
        return SliceWork(
            self._session, *news, step, number, offered.rows, offered.now_ms, inputs.requests, user, item
        ), inputs  # fmt: skip

    def _welcome(self, ask: Ask, now_s: float) -> tuple[Welcome, Sequence[Float32s]]:
        """Give a worker the weights of now; one that comes again has lost the slices that it held."""
        self._lose(ask.worker, f"{ask.name} began again with slices that it had not finished")
        self._forget_overdue(now_s)  # between steps, this finds those that are gone
        self._roster.see(ask.worker, ask.name, now_s)
        _LOG.info("worker %s joins at step %d", ask.name, self._own.applied)
        state = self._own.state()
        head = Welcome(self._session, self._epoch, self._own.applied, self._learner.steps, self._settings.slices)
        return head, state

    @property
    def _epoch(self) -> Epoch:
        epoch = self._clients.rows.epoch
        assert epoch is not None  # shards were restored
        return epoch

    def _check(self, step: int) -> None:
        """Raise what keeps a released step from its end; called with the lock held."""
        if self._own_error is not None:
            raise self._own_error
        self._forget_overdue(self._clock.monotonic_s())
        if self._group is not None:
            self._group.check(self._roster.members)
        if self._lost:
            message = f"a worker was lost: {self._lost}"
            raise WorkerLost(message, help="see the log of that worker; the others go on from the newest version")
        roster = self._roster
        if not roster.members and roster.complete < step:
            if self._stop.is_set() and self._rule.may_repeat and roster.is_begun(step):
                message = f"all workers are gone, and shards may have applied a part of step {step}"
                raise WorkerLost(message, help="the next run learns what came after the newest version")
            if self._stop.is_set():
                raise NoWorker
            if not self._misses_workers:
                _LOG.warning("no worker is there: training waits for one")
        self._misses_workers = not roster.members
        if PULSE.is_due:  # it waits for workers, each of which has a deadline of its own
            PULSE.beat()

    def _forget_overdue(self, now_s: float) -> None:
        limits = (self._settings.worker_wait_s_max, self._settings.slice_wait_s_max)
        for worker in self._roster.overdue(self.connected() | {_OWN}, limits, now_s):
            how = f"{self._roster.members[worker].name} is gone, silent, or too long at a slice"
            _LOG.warning("worker %s", how)
            self._lose(worker, how)

    def _lose(self, worker: str, how: str) -> None:
        """Keep nothing of a worker. Others learn what it held; if they may not, or none is there, the step fails."""
        self._told.pop(worker, None)
        self._asked.pop(worker, None)
        self._answered.pop(worker, None)
        members = self._roster.members
        if worker in members and len(members) == self._wanted:
            self._short_from_s = members[worker].seen_s
        roster, slices = self._roster, self._roster.remove(worker)
        may_repeat = self._rule.may_repeat and worker != _OWN and roster.members
        if slices and may_repeat and roster.give_back(slices):
            self._given_again.inc(len(slices))
            _LOG.warning("others learn %d slices of a lost worker: %s", len(slices), how)
        elif slices:
            self._lost = how
        self._changed.notify_all()

    def _learn_own(self, over: threading.Event) -> None:
        try:
            self._own.learn(over)
        except BaseException as error:
            with self._changed:
                self._own_error = error
                self._changed.notify_all()

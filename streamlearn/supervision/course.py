"""Course: what is to be done with members, decided by what happened to them and by time. It starts and ends nothing.

    waiting ──START──▶ starting ──ready──▶ running ──STOP──▶ stopping ──ends──▶ ended
       ▲                  │                  │                   └─KILL─▶ (ends, or is left)
       └── wait doubles ──┴─── ends, unasked ┘
                                   or was silent: ABORT, then KILL

At so many restarts within a window, or when a member says that it was asked for something impossible, all are stopped.
Silence counts from when a member is ready, and only where somebody listened: while this process itself stood still, as
with a machine that slept, nobody did.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import EXIT_DONE, EXIT_PARTLY, EXIT_USAGE
from streamlearn.settings.up import UpSettings
from streamlearn.supervision.member import Member
from streamlearn.versions.replica.backoff import Backoff

__all__ = ["ABORTED_S_MAX", "KILLED_S_MAX", "LOOK_S_MAX", "Act", "Course", "GivenUp", "Order", "Standing", "State"]

# A killed process ends at once, unless the kernel holds it, as on a disk that hangs: it is left to it then.
KILLED_S_MAX = 10.0
# A process that hangs says where it stands, which takes no time, unless it was stopped by a signal and says nothing.
ABORTED_S_MAX = 5.0
# What is longer between two looks is time in which nobody looked.
LOOK_S_MAX = 1.0


class State(StrEnum):
    """Where a member is."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LEFT = "left"


_ALIVE = (State.STARTING, State.RUNNING, State.STOPPING)


class Act(StrEnum):
    """What is to be done with a member."""

    START = "start"
    STOP = "stop"
    ABORT = "abort"
    KILL = "kill"


@dataclass(frozen=True)
class Order:
    """One thing to be done, now and once."""

    act: Act
    name: str


@dataclass(frozen=True)
class GivenUp:
    """Why all are stopped though nobody asked for it.

    Attributes:
        name: The member.
        status: What it ended with; None where it does not even end when it is killed.
        restarts: How often it was started again lately.
        why: Why it is not once more.
    """

    name: str
    status: int | None
    restarts: int
    why: str


@dataclass
class Standing:
    """How one member stands.

    Attributes:
        member: Which.
        backoff: How long it waits before it is started again.
        state: Where it is.
        since_s: Since when, on the course's clock.
        status: What it last ended with.
        restarts: How often it was started again.
        recent_s: When it ended unasked, within the window.
        aborted_s: When it was told to say where it stands and end, while it has not ended.
        killed_s: When it was last killed, while it has not ended.
        was_killed: Whether it had to be killed to stop.
        has_spoken: Whether it said that it works since the last look.
        silent_s: How long it has been silent.
        silence_s_max: How long it may be; 0 for ever.
        hangs: How often it was silent for longer.
    """

    member: Member
    backoff: Backoff
    state: State = State.WAITING
    since_s: float = 0.0
    status: int | None = None
    restarts: int = 0
    recent_s: deque[float] = field(default_factory=deque)
    aborted_s: float | None = None
    killed_s: float | None = None
    was_killed: bool = False
    has_spoken: bool = False
    silent_s: float = 0.0
    silence_s_max: float = 0.0
    hangs: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.state in _ALIVE

    @property
    def has_hung(self) -> bool:
        """Whether it runs, and was silent for longer than it may be."""
        return self.state is State.RUNNING and 0 < self.silence_s_max <= self.silent_s

    @property
    def stopped_well(self) -> bool:
        """Whether it ended by itself, or when it was told to."""
        # SIGTERM ends it where it came before anything was under way.
        return self.state is State.ENDED and not self.was_killed and self.status in (None, 0, -signal.SIGTERM)


class Course:
    """Decides. Whoever asks for orders carries each out, and says what came of it.

    Args:
        members: Each a process.
        settings: The bounds.
        clock: What time is taken by.

    Attributes:
        given_up: Why all are stopped, where nobody asked for it.

    Examples:
        >>> from streamlearn.testing import ManualClock
        >>> clock = ManualClock()
        >>> course = Course([Member("trainer", 1, ("train",))], UpSettings(backoff_first_ms=500), clock)
        >>> [str(one.act) for one in course.orders()]
        ['start']
        >>> course.ended("trainer", -9)
        >>> course.orders()
        []
        >>> clock.sleep(0.5)
        >>> [str(one.act) for one in course.orders()]
        ['start']
    """

    def __init__(self, members: Sequence[Member], settings: UpSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings, self._clock = settings, clock
        waits = (settings.backoff_first_ms, settings.backoff_ms_max)
        self._standings = {
            one.name: Standing(one, Backoff(*waits, clock), since_s=clock.monotonic_s()) for one in members
        }
        assert len(self._standings) == len(members), "two members have the same name"
        self._is_stopping = self._is_killing = False
        self._looked_s = clock.monotonic_s()
        self.given_up: GivenUp | None = None

    @property
    def standings(self) -> list[Standing]:
        """How each member stands, in their order; to be read."""
        return list(self._standings.values())

    def standing(self, name: str) -> Standing:
        """How one member stands; to be read."""
        return self._standings[name]

    @property
    def is_stopping(self) -> bool:
        """Whether members are being stopped, or were."""
        return self._is_stopping

    @property
    def is_up(self) -> bool:
        """Whether every member is ready, or had nothing more to do."""
        return not self._is_stopping and all(one.state in (State.RUNNING, State.ENDED) for one in self.standings)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done."""
        return all(one.state in (State.ENDED, State.LEFT) for one in self.standings)

    def orders(self) -> list[Order]:
        """What is to be done now."""
        self._listen()
        self._leave()
        if self._is_stopping:
            return [*self._outlived(), *self._ends()]
        return [*self._outlived(), *self._late(), *self._silent(), *self._starts()]

    def ready(self, name: str) -> None:
        """Note that a member says that it is ready."""
        standing = self._standings[name]
        if standing.state is State.STARTING:
            self._put(standing, State.RUNNING)
            standing.has_spoken, standing.silence_s_max = True, self._settings.silence_s_max

    def beat(self, name: str) -> None:
        """Note that a member says that its work goes round."""
        self._standings[name].has_spoken = True

    def bear(self, name: str, silence_s_max: float) -> None:
        """Note that a member asks for silence to be borne for so long, from its last beat on."""
        standing = self._standings[name]
        if standing.silence_s_max:
            standing.silence_s_max = silence_s_max

    def stopping(self, name: str) -> None:
        """Note that a member says that it ends, which may take as long as if it was told to."""
        standing = self._standings[name]
        if standing.state is State.RUNNING:
            self.beat(name)
            self.bear(name, max(standing.silence_s_max, self._settings.stop_s_max))

    def ended(self, name: str, status: int) -> None:
        """Note that a member's process has ended, or could not be started.

        Args:
            name: Which.
            status: Its exit status; a signal's number below 0.
        """
        standing = self._standings[name]
        assert standing.is_alive, f"{name} ended while it was {standing.state}"
        standing.status, standing.aborted_s, standing.killed_s = status, None, None
        if self._is_stopping or (status in (EXIT_DONE, EXIT_PARTLY) and standing.member.may_end):
            self._put(standing, State.ENDED)
            return
        now_s, recent_s = self._clock.monotonic_s(), standing.recent_s
        while recent_s and now_s - recent_s[0] >= self._settings.restarts_window_s:
            recent_s.popleft()
        if not recent_s:
            standing.backoff.clear()
        if status == EXIT_USAGE:
            self._give_up(standing, "it ended with a usage error")
        elif len(recent_s) >= self._settings.restarts_max:
            why = f"up.restarts_max is {self._settings.restarts_max} in {self._settings.restarts_window_s:g} s"
            self._give_up(standing, why)
        else:
            recent_s.append(now_s)
            standing.restarts += 1
            standing.backoff.fail()
            self._put(standing, State.WAITING)

    def stop(self) -> None:
        """Have all stopped in order: one stage after another, each with its deadline."""
        if self._is_stopping:
            return
        self._is_stopping = True
        for one in self.standings:
            if one.state is State.WAITING:
                # What ended before was another matter: it is not there to be stopped.
                one.status = None
                self._put(one, State.ENDED)

    def kill(self) -> None:
        """Have all killed at once."""
        self.stop()
        self._is_killing = True

    def _starts(self) -> Iterator[Order]:
        for one in self.standings:
            is_due = one.state is State.WAITING and one.backoff.is_due
            if is_due and all(self._standings[name].state is State.RUNNING for name in one.member.needs):
                self._put(one, State.STARTING)
                yield Order(Act.START, one.member.name)

    def _late(self) -> Iterator[Order]:
        now_s = self._clock.monotonic_s()
        for one in self.standings:
            bound_s = one.member.ready_s_max
            if one.state is State.STARTING and bound_s is not None and now_s - one.since_s >= bound_s:
                yield from self._killed(one)

    def _silent(self) -> Iterator[Order]:
        for one in self.standings:
            if one.aborted_s is None and one.killed_s is None and one.has_hung:
                one.aborted_s = self._clock.monotonic_s()
                one.hangs += 1
                yield Order(Act.ABORT, one.member.name)

    def _outlived(self) -> Iterator[Order]:
        now_s = self._clock.monotonic_s()
        for one in self.standings:
            if one.aborted_s is not None and now_s - one.aborted_s >= ABORTED_S_MAX:
                yield from self._killed(one)

    def _ends(self) -> Iterator[Order]:
        alive, now_s = [one for one in self.standings if one.is_alive], self._clock.monotonic_s()
        stage = min((one.member.stage for one in alive), default=0)
        for one in alive:
            if self._is_killing:
                yield from self._killed(one)
            elif one.member.stage != stage:
                continue
            elif one.state is not State.STOPPING:
                self._put(one, State.STOPPING)
                yield Order(Act.STOP, one.member.name)
            elif now_s - one.since_s >= self._settings.stop_s_max:
                yield from self._killed(one)

    def _killed(self, one: Standing) -> Iterator[Order]:
        if one.killed_s is None:
            one.killed_s = self._clock.monotonic_s()
            one.was_killed = self._is_stopping
            yield Order(Act.KILL, one.member.name)

    def _listen(self) -> None:
        """Count silence since the last look."""
        now_s = self._clock.monotonic_s()
        for one in self.standings:
            one.silent_s = 0.0 if one.has_spoken else one.silent_s + min(now_s - self._looked_s, LOOK_S_MAX)
            one.has_spoken = False
        self._looked_s = now_s

    def _leave(self) -> None:
        now_s = self._clock.monotonic_s()
        for one in self.standings:
            if one.is_alive and one.killed_s is not None and now_s - one.killed_s >= KILLED_S_MAX:
                one.status = None
                self._put(one, State.LEFT)
                if not self._is_stopping:
                    self._give_up(one, f"it did not end within {KILLED_S_MAX:g} s of SIGKILL")

    def _give_up(self, one: Standing, why: str) -> None:
        self.given_up = GivenUp(one.member.name, one.status, len(one.recent_s), why)
        if one.state is not State.LEFT:
            self._put(one, State.ENDED)
        self.stop()

    def _put(self, one: Standing, state: State) -> None:
        one.state, one.since_s = state, self._clock.monotonic_s()

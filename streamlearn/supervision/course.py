"""Course: decides what to do with members, from what happened to them and from time. It starts and ends nothing.

    waiting ──START──▶ starting ──ready──▶ running ──STOP──▶ stopping ──ends──▶ ended
       ▲                  │                  │                   └─KILL─▶ (ends, or is left)
       └── wait doubles ──┴─ ends on its own ┘
                                   or is silent: ABORT, then KILL

All members are stopped after too many restarts of one within a window. One that ends with a usage error is given up
alone, so that nodes go on answering; only if that happens before all were ready, all are stopped. Silence counts from
when a member is ready. Time in which this process itself stood still, for example while the machine slept, does not
count.
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

# A killed process ends at once, unless the kernel holds it, for example on a disk that hangs. Then it is left.
KILLED_S_MAX = 10.0
# A hung process writes its stack traces at once, unless a signal stopped it and it can write nothing.
ABORTED_S_MAX = 5.0
# If more time passes between two calls of `orders`, this process stood still, and the rest does not count as silence.
LOOK_S_MAX = 1.0


class State(StrEnum):
    """The state of a member."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    LEFT = "left"
    GIVEN_UP = "given_up"


_ALIVE = (State.STARTING, State.RUNNING, State.STOPPING)
_OVER = (State.ENDED, State.LEFT, State.GIVEN_UP)


class Act(StrEnum):
    """An action on a member."""

    START = "start"
    STOP = "stop"
    ABORT = "abort"
    KILL = "kill"


@dataclass(frozen=True)
class Order:
    """One action to carry out now, once, on the member `name`."""

    act: Act
    name: str


@dataclass(frozen=True)
class GivenUp:
    """A member that was given up, its restarts within the window, and why it does not restart again.

    `status` is None if it did not even end when it was killed.
    """

    name: str
    status: int | None
    restarts: int
    why: str


@dataclass
class Standing:
    """The state of one member, with its history.

    Attributes:
        member: The member.
        backoff: The wait before its next start.
        state: Its state.
        since_s: The time of the last change of state, on the course's clock.
        status: Its last exit status.
        restarts: The number of its restarts.
        recent_s: The times at which it ended on its own, within the window.
        aborted_s: The time of its ABORT, until it has ended.
        killed_s: The time of its last KILL, until it has ended.
        was_killed: Whether it had to be killed to stop.
        has_spoken: Whether it sent a heartbeat since the last call of `orders`.
        silent_s: The time since its last heartbeat.
        silence_s_max: The limit of that time; 0 for no limit.
        hangs: How often it exceeded the limit.
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
        """Whether it has a process."""
        return self.state in _ALIVE

    @property
    def has_hung(self) -> bool:
        """Whether it runs and exceeded its limit of silence."""
        return self.state is State.RUNNING and 0 < self.silence_s_max <= self.silent_s

    @property
    def stopped_well(self) -> bool:
        """Whether it ended by itself, or when it was asked to."""
        # SIGTERM itself ends a process that has not begun its work.
        return self.state is State.ENDED and not self.was_killed and self.status in (None, 0, -signal.SIGTERM)


class Course:
    """The decisions about all members. The caller of `orders` carries out each order and reports the result.

    Attributes:
        given_up: The members that were given up, the first one first.

    Examples:
        >>> from streamlearn.testing import ManualClock
        >>> clock = ManualClock()
        >>> course = Course([Member("trainer", 1, ("train",))], UpSettings(backoff_first_ms=500), clock)
        >>> [str(order.act) for order in course.orders()]
        ['start']
        >>> course.ended("trainer", -9)
        >>> course.orders()
        []
        >>> clock.sleep(0.5)
        >>> [str(order.act) for order in course.orders()]
        ['start']
    """

    def __init__(self, members: Sequence[Member], settings: UpSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings, self._clock = settings, clock
        waits = (settings.backoff_first_ms, settings.backoff_ms_max)
        self._standings = {
            member.name: Standing(member, Backoff(*waits, clock), since_s=clock.monotonic_s()) for member in members
        }
        assert len(self._standings) == len(members), "two members have the same name"
        self._is_stopping = self._is_killing = False
        self._looked_s = clock.monotonic_s()
        self._was_up = False
        self.given_up: list[GivenUp] = []

    @property
    def standings(self) -> list[Standing]:
        """All members in their order; read-only."""
        return list(self._standings.values())

    def standing(self, name: str) -> Standing:
        """Return one member; read-only."""
        return self._standings[name]

    @property
    def is_stopping(self) -> bool:
        """Whether all members are being stopped, or have been."""
        return self._is_stopping

    @property
    def is_up(self) -> bool:
        """Whether every member is ready or has finished its work."""
        return not self._is_stopping and all(
            standing.state in (State.RUNNING, State.ENDED) for standing in self.standings
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        given_up = {standing.member.name for standing in self.standings if standing.state is State.GIVEN_UP}
        return all(
            standing.state in _OVER or (standing.state is State.WAITING and given_up & {*standing.member.needs})
            for standing in self.standings
        )

    def orders(self) -> list[Order]:
        """Return the actions that are due now."""
        self._was_up = self._was_up or self.is_up
        self._listen()
        self._leave()
        if self._is_stopping:
            return [*self._outlived(), *self._ends()]
        return [*self._outlived(), *self._late(), *self._silent(), *self._starts()]

    def ready(self, name: str) -> None:
        """Note that a member is ready."""
        standing = self._standings[name]
        if standing.state is State.STARTING:
            self._put(standing, State.RUNNING)
            standing.has_spoken, standing.silence_s_max = True, self._settings.silence_s_max

    def beat(self, name: str) -> None:
        """Note a heartbeat of a member."""
        self._standings[name].has_spoken = True

    def bear(self, name: str, silence_s_max: float) -> None:
        """Note that a member asks for another limit of silence, which counts from its last heartbeat."""
        standing = self._standings[name]
        if standing.silence_s_max:
            standing.silence_s_max = silence_s_max

    def stopping(self, name: str) -> None:
        """Note that a member is ending on its own. It has as much time as if it was asked to stop."""
        standing = self._standings[name]
        if standing.state is State.RUNNING:
            self.beat(name)
            self.bear(name, max(standing.silence_s_max, self._settings.stop_s_max))

    def ended(self, name: str, status: int) -> None:
        """Note that a member's process ended, or could not start; the status of a signal is its negative number."""
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
            self._give_up(standing, "it ended with a usage error", alone=self._was_up)
        elif len(recent_s) >= self._settings.restarts_max:
            why = f"up.restarts_max is {self._settings.restarts_max} in {self._settings.restarts_window_s:g} s"
            self._give_up(standing, why)
        else:
            recent_s.append(now_s)
            standing.restarts += 1
            standing.backoff.fail()
            self._put(standing, State.WAITING)

    def retry(self) -> list[str]:
        """Let members start again that were given up alone, because their cause may be mended; return their names."""
        if self._is_stopping:
            return []
        retried = [standing for standing in self.standings if standing.state is State.GIVEN_UP]
        for standing in retried:
            standing.recent_s.clear()
            standing.backoff.clear()
            standing.restarts += 1
            self._put(standing, State.WAITING)
        self.given_up.clear()
        return [standing.member.name for standing in retried]

    def stop(self) -> None:
        """Stop all members in order: stage by stage, each with its deadline."""
        if self._is_stopping:
            return
        self._is_stopping = True
        for standing in self.standings:
            if standing.state is State.WAITING:
                # An earlier failure is not a failure to stop.
                standing.status = None
                self._put(standing, State.ENDED)

    def kill(self) -> None:
        """Kill all members at once."""
        self.stop()
        self._is_killing = True

    def _starts(self) -> Iterator[Order]:
        for standing in self.standings:
            is_due = standing.state is State.WAITING and standing.backoff.is_due
            if is_due and all(self._standings[name].state is State.RUNNING for name in standing.member.needs):
                self._put(standing, State.STARTING)
                yield Order(Act.START, standing.member.name)

    def _late(self) -> Iterator[Order]:
        now_s = self._clock.monotonic_s()
        for standing in self.standings:
            bound_s = standing.member.ready_s_max
            if standing.state is State.STARTING and bound_s is not None and now_s - standing.since_s >= bound_s:
                yield from self._killed(standing)

    def _silent(self) -> Iterator[Order]:
        for standing in self.standings:
            if standing.aborted_s is None and standing.killed_s is None and standing.has_hung:
                standing.aborted_s = self._clock.monotonic_s()
                standing.hangs += 1
                yield Order(Act.ABORT, standing.member.name)

    def _outlived(self) -> Iterator[Order]:
        now_s = self._clock.monotonic_s()
        for standing in self.standings:
            if standing.aborted_s is not None and now_s - standing.aborted_s >= ABORTED_S_MAX:
                yield from self._killed(standing)

    def _ends(self) -> Iterator[Order]:
        alive, now_s = [standing for standing in self.standings if standing.is_alive], self._clock.monotonic_s()
        stage = min((standing.member.stage for standing in alive), default=0)
        for standing in alive:
            if self._is_killing:
                yield from self._killed(standing)
            elif standing.member.stage != stage:
                continue
            elif standing.state is not State.STOPPING:
                self._put(standing, State.STOPPING)
                yield Order(Act.STOP, standing.member.name)
            elif now_s - standing.since_s >= self._settings.stop_s_max:
                yield from self._killed(standing)

    def _killed(self, standing: Standing) -> Iterator[Order]:
        if standing.killed_s is None:
            standing.killed_s = self._clock.monotonic_s()
            standing.was_killed = self._is_stopping
            yield Order(Act.KILL, standing.member.name)

    def _listen(self) -> None:
        """Add the time since the last call to the silence of members without a heartbeat."""
        now_s = self._clock.monotonic_s()
        elapsed_s = min(now_s - self._looked_s, LOOK_S_MAX)
        for standing in self.standings:
            standing.silent_s = 0.0 if standing.has_spoken else standing.silent_s + elapsed_s
            standing.has_spoken = False
        self._looked_s = now_s

    def _leave(self) -> None:
        now_s = self._clock.monotonic_s()
        for standing in self.standings:
            if standing.is_alive and standing.killed_s is not None and now_s - standing.killed_s >= KILLED_S_MAX:
                standing.status = None
                self._put(standing, State.LEFT)
                if not self._is_stopping:
                    self._give_up(standing, f"it did not end within {KILLED_S_MAX:g} s of SIGKILL")

    def _give_up(self, standing: Standing, why: str, *, alone: bool = False) -> None:
        self.given_up.append(GivenUp(standing.member.name, standing.status, len(standing.recent_s), why))
        if standing.state is not State.LEFT:
            self._put(standing, State.GIVEN_UP)
        if not alone:
            self.stop()

    def _put(self, standing: Standing, state: State) -> None:
        standing.state, standing.since_s = state, self._clock.monotonic_s()

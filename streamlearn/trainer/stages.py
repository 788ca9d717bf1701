"""Stages: five threads that hand steps on in order, with bounded queues between them, and how long each took.

They know no model and no topic: what a stage does is given.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.topics.topic import pause_s_of

__all__ = ["STAGES", "Stages", "Work"]

STAGES = ("read", "gather", "pull", "learn", "push")
_LOOK_S, _QUIET_LOOK_S = 0.05, 0.25


@dataclass(frozen=True)
class Work:
    """What each stage does with what the one before gave.

    Attributes:
        read: Gives steps, or None while there is nothing.
        gather: A step to its columns.
        pull: Columns to packed inputs.
        learn: Packed inputs to gradients; called by whoever takes `Stages.learned`.
        push: Gradients to rows.
    """

    read: Iterable[Any]
    gather: Callable[[Any], Any]
    pull: Callable[[Any], Any]
    learn: Callable[[Any], Any]
    push: Callable[[Any], Any]


class Stages:
    """Runs a pipeline; `learn` runs in the thread that iterates.

    A step is pulled once the step `staleness + 1` before it was pushed. An error of any stage ends all of them, and is
    raised to whoever iterates.

    Args:
        work: What the stages do.
        queue_max: How many steps may wait between two stages.
        staleness: By how many steps pulling may be ahead of pushing.
        clock: How long a stage takes.
    """

    def __init__(self, work: Work, *, queue_max: int, staleness: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._work, self._staleness, self._clock = work, staleness, clock
        self._gathered: queue.Queue[Any] = queue.Queue(queue_max)
        self._pulled: queue.Queue[Any] = queue.Queue(queue_max)
        self._to_push: queue.Queue[Any] = queue.Queue(queue_max)
        self._stepped: queue.Queue[Any] = queue.Queue(queue_max)
        self._error: BaseException | None = None
        self._has_ended = threading.Event()
        self._moved = threading.Condition()
        self._pushed = self._handed = 0
        self._went_round = set[int | None]()
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._threads = [
            threading.Thread(target=self._guarded, args=(stage,), name=f"streamlearn-trainer-{name}", daemon=True)
            for name, stage in (
                ("read", self._read), ("gather", self._gather), ("pull", self._pull), ("push", self._push),
            )
        ]  # fmt: skip

    def __enter__(self) -> Stages:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all threads; what waits is forgotten."""
        self._has_ended.set()
        for thread in self._threads:
            thread.join()

    def learned(self) -> Generator[Any | None, None, None]:
        """What `learn` gave, step by step, each handed to `push`; None where there is nothing to learn for a while."""
        try:
            yield from self._learned()
        except _Ended:
            self._check()

    def _learned(self) -> Generator[Any | None, None, None]:
        came_s = self._clock.monotonic_s()
        while True:
            silence_s = self._clock.monotonic_s() - came_s
            found = self._get(self._pulled, pause_s_of(silence_s, _LOOK_S, _QUIET_LOOK_S))
            if found is _NOTHING:
                self._check()
                yield None
                continue
            if found is _END:
                break
            came_s = self._clock.monotonic_s()
            done = self._timed("learn", self._work.learn, found)
            self._handed += 1
            self._put(self._to_push, done)
            self._check()
            yield done
        self.drain()

    def drain(self) -> None:
        """Wait until all that was learned is pushed."""
        with self._moved:
            while self._pushed < self._handed and self._error is None:
                self._moved.wait(_LOOK_S)
        self._check()

    @property
    def has_gone_round(self) -> bool:
        """Whether each thread has taken a step or waited for others since this was last so.

        One that has a step in hand for long, or waits for something else than the others, has not.
        """
        if not all(thread.ident in self._went_round for thread in self._threads if thread.is_alive()):
            return False
        self._went_round.clear()
        return True

    def _go_round(self) -> None:
        self._went_round.add(threading.get_ident())

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        steps = iter(self._work.read)
        while not self._has_ended.is_set():
            self._go_round()
            begin_s = self._clock.monotonic_s()
            step = next(steps, _END)
            if step is None:
                continue
            self.seconds["read"] += self._clock.monotonic_s() - begin_s
            self._put(self._stepped, step)
            if step is _END:
                return

    def _gather(self) -> None:
        self._pass_on(self._stepped, "gather", self._work.gather, self._gathered)

    def _pull(self) -> None:
        number = 0

        def pull(columns: Any) -> Any:
            nonlocal number
            number += 1
            with self._moved:
                while self._pushed < number - 1 - self._staleness and not self._has_ended.is_set():
                    self._go_round()
                    self._moved.wait(_LOOK_S)
            if self._has_ended.is_set():
                raise _Ended
            return self._timed("pull", self._work.pull, columns)

        self._pass_on(self._gathered, "", pull, self._pulled)

    def _push(self) -> None:
        while (done := self._get(self._to_push)) is not _END:
            self._timed("push", self._work.push, done)
            with self._moved:
                self._pushed += 1
                self._moved.notify_all()

    def _pass_on(self, source: queue.Queue[Any], name: str, do: Callable[[Any], Any], target: queue.Queue[Any]) -> None:
        while (found := self._get(source)) is not _END:
            self._put(target, self._timed(name, do, found) if name else do(found))
        self._put(target, _END)

    def _timed(self, name: str, do: Callable[[Any], Any], given: Any) -> Any:
        begin_s = self._clock.monotonic_s()
        try:
            return do(given)
        finally:
            self.seconds[name] += self._clock.monotonic_s() - begin_s

    def _get(self, source: queue.Queue[Any], wait_s: float | None = None) -> Any:
        """The next of a queue; with a wait, nothing where it brought none."""
        while not self._has_ended.is_set():
            self._go_round()
            try:
                return source.get(timeout=_QUIET_LOOK_S if wait_s is None else wait_s)
            except queue.Empty:
                if wait_s is not None:
                    return _NOTHING
        raise _Ended

    def _put(self, target: queue.Queue[Any], given: Any) -> None:
        while not self._has_ended.is_set():
            self._go_round()
            try:
                return target.put(given, timeout=_LOOK_S)
            except queue.Full:
                continue
        raise _Ended

    def _guarded(self, stage: Callable[[], None]) -> None:
        try:
            stage()
        except _Ended:
            pass
        # Whatever it is, whoever iterates is told; a thread has nobody else to tell.
        except BaseException as error:
            with self._moved:
                self._error = self._error or error
                self._has_ended.set()
                self._moved.notify_all()


class _Ended(Exception):
    """The stages were ended."""


_END, _NOTHING = object(), object()

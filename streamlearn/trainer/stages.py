"""Stages: five threads that pass steps on in order through bounded queues, and the time each stage takes.

They know no model and no topic: the caller supplies the work of each stage.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.topics.topic import pause_s_of

__all__ = ["STAGES", "Stages", "Work"]

STAGES = ("read", "gather", "pull", "learn", "push")
_LOOK_S, _QUIET_LOOK_S = 0.05, 0.5


@dataclass(frozen=True)
class Work:
    """The work of each stage."""

    read: Iterable[Any]  # steps, or None while there is nothing to read
    gather: Callable[[Any], Any]  # turns a step into columns
    pull: Callable[[Any], Any]  # turns columns into packed inputs
    learn: Callable[[Any], Any]  # turns packed inputs into gradients, in the thread that iterates over `Stages.learned`
    push: Callable[[Any], Any]  # applies gradients to rows


class Stages:
    """A pipeline of five stages; `learn` runs in the thread that iterates.

    Before a step is pulled, the step `staleness + 1` before it has been pushed. At most `queue_max` steps wait between
    two stages. An error in any stage ends all of them, and the iterating thread raises it.
    """

    def __init__(self, work: Work, *, queue_max: int, staleness: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._work, self._staleness, self._clock = work, staleness, clock
        self._stepped, self._gathered, self._pulled, self._to_push = (queue.Queue[Any](queue_max) for _ in range(4))
        self._error: BaseException | None = None
        self._has_ended = threading.Event()
        self._moved = threading.Condition()
        self._pushed = self._learned_steps = 0
        self._active_threads = set[int | None]()
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
        """End all threads and drop the steps that wait."""
        self._end()
        for thread in self._threads:
            thread.join()

    def learned(self) -> Generator[Any | None, None, None]:
        """Yield the result of `learn` for each step and pass it on to `push`; None while there is nothing to learn."""
        try:
            yield from self._learned()
        except _Ended:
            self._check()

    def _learned(self) -> Generator[Any | None, None, None]:
        last_step_s = self._clock.monotonic_s()
        while True:
            silence_s = self._clock.monotonic_s() - last_step_s
            packed = self._get(self._pulled, pause_s_of(silence_s, _LOOK_S, _QUIET_LOOK_S))
            if packed is _NOTHING:
                self._check()
                yield None
                continue
            if packed is _END:
                break
            last_step_s = self._clock.monotonic_s()
            done = self._timed("learn", self._work.learn, packed)
            self._learned_steps += 1
            self._put(self._to_push, done)
            self._check()
            yield done
        self.drain()

    def drain(self) -> None:
        """Wait until all learned steps are pushed."""
        with self._moved:
            while self._pushed < self._learned_steps and self._error is None:
                self._moved.wait(_LOOK_S)
        self._check()

    @property
    def is_moving(self) -> bool:
        """Whether each thread took a step or waited for another stage since this last returned True.

        A thread that works on one step for long, or waits for something outside of the stages, did not.
        """
        if not all(thread.ident in self._active_threads for thread in self._threads if thread.is_alive()):
            return False
        self._active_threads.clear()
        return True

    def _note_active(self) -> None:
        self._active_threads.add(threading.get_ident())

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        steps = iter(self._work.read)
        while not self._has_ended.is_set():
            self._note_active()
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
                    self._note_active()
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
        while (item := self._get(source)) is not _END:
            self._put(target, self._timed(name, do, item) if name else do(item))
        self._put(target, _END)

    def _timed(self, name: str, do: Callable[[Any], Any], item: Any) -> Any:
        begin_s = self._clock.monotonic_s()
        try:
            return do(item)
        finally:
            self.seconds[name] += self._clock.monotonic_s() - begin_s

    def _get(self, source: queue.Queue[Any], wait_s: float | None = None) -> Any:
        """Return the next item; with a wait, `_NOTHING` if it brought none."""
        while not self._has_ended.is_set():
            self._note_active()
            try:
                item = source.get(timeout=_QUIET_LOOK_S if wait_s is None else wait_s)
            except queue.Empty:
                if wait_s is not None:
                    return _NOTHING
            else:
                if not self._has_ended.is_set():
                    return item
        raise _Ended

    def _end(self) -> None:
        """End all threads; those that wait for a step wake."""
        self._has_ended.set()
        for steps in (self._stepped, self._gathered, self._pulled, self._to_push):
            with suppress(queue.Full):
                steps.put_nowait(_NOTHING)

    def _put(self, target: queue.Queue[Any], item: Any) -> None:
        while not self._has_ended.is_set():
            self._note_active()
            try:
                return target.put(item, timeout=_LOOK_S)
            except queue.Full:
                continue
        raise _Ended

    def _guarded(self, stage: Callable[[], None]) -> None:
        try:
            stage()
        except _Ended:
            pass
        # The iterating thread raises the error, since a thread has no caller to raise it to.
        except BaseException as error:
            with self._moved:
                self._error = self._error or error
                self._end()
                self._moved.notify_all()


class _Ended(Exception):
    """The stages have ended."""


_END, _NOTHING = object(), object()

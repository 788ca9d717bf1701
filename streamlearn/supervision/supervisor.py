"""Supervisor: carries out the orders of its course and reports the results to it. It decides nothing itself."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PartlyDone, ServiceError
from streamlearn.given_up import GivenUpFile, GivenUpProcess
from streamlearn.process_exit import how_ended
from streamlearn.pulse import PULSE
from streamlearn.settings.up import UpSettings
from streamlearn.supervision.course import Act, Course, Standing, State
from streamlearn.supervision.file_watch import FileWatch
from streamlearn.supervision.log import MemberLog
from streamlearn.supervision.member import Member
from streamlearn.supervision.meters import Meters
from streamlearn.supervision.node_sockets import NodeSockets
from streamlearn.supervision.process import MemberProcess

__all__ = ["Seen", "Signals", "Supervisor"]

_LOG = logging.getLogger("streamlearn.up")
_LOOK_S, _QUIET_LOOK_S = 0.1, 0.5
_NOT_STARTED = 127
_LINES_SHOWN = 2  # `error:` and `help:`
_DIGITS_MAX = 20  # of 64 bits


@dataclass(frozen=True)
class Seen:
    """A member for display: its state since `age_s`, its process and the last line of its log.

    `standing` belongs to the course, which changes it later.
    """

    standing: Standing
    pid: int | None
    age_s: float
    said: str


@dataclass(frozen=True)
class Signals:
    """Requests from outside: `stop` stops all members in order, `kill` kills them."""

    stop: Event
    kill: Event


class Supervisor:
    """Runs members until they have ended; use it in the main thread. `logs` is an existing folder for their logs.

    A change of `files`, which each member reads when it starts, is logged once. Members that were given up then start
    again. Nodes get `sockets`, which are given to the `up` of another application that asks for them. The file
    `given_up` says at any time who was given up.
    """

    def __init__(
        self,
        members: Sequence[Member],
        settings: UpSettings,
        logs: Path,
        files: Sequence[Path] = (),
        clock: Clock = SYSTEM_CLOCK,
        *,
        sockets: NodeSockets | None = None,
        given_up: GivenUpFile | None = None,
    ) -> None:
        self._clock, self._settings = clock, settings
        self._sockets = sockets or NodeSockets({})
        self._course = Course(members, settings, clock)
        self._logs = {member.name: MemberLog(logs, member.name, settings) for member in members}
        self._meters = Meters(settings)
        self._processes: dict[str, MemberProcess] = {}
        self._watch = FileWatch(files, clock)
        self._given_up_file = given_up
        self._told: list[str] | None = None

    def run(
        self,
        signals: Signals,
        show: Callable[[Sequence[Seen]], None] = lambda _: None,
        when_up: Callable[[], None] = lambda: None,
    ) -> list[dict[str, Any]]:
        """Run until all members have ended, and return a row with the result of each.

        `show` is called several times a second with the state of all; `when_up` once, when all are ready.

        Raises:
            ServiceError: A member was given up.
            PartlyDone: Some members did not stop cleanly.
        """
        was_up = False
        try:
            while not self._course.is_over:
                self._pass_on(signals)
                self._receive()
                self._reap()
                self._notice_changes()
                self._sockets.share()
                PULSE.beat()
                for order in self._course.orders():
                    self._obey(order.act, self._course.standing(order.name).member)
                self._tell_given_up()
                self._meters.tell(self._course.standings, self._logs, self._clock.monotonic_s())
                show(self._seen())
                if not was_up and self._course.is_up:
                    was_up = True
                    when_up()
                if not self._course.is_over:
                    next_signal = signals.kill if self._course.is_stopping else signals.stop
                    next_signal.wait(_QUIET_LOOK_S if self._course.is_up else _LOOK_S)
        finally:
            self._kill_all()
            if self._given_up_file is not None:
                self._given_up_file.write([])
        return self._report()

    def _pass_on(self, signals: Signals) -> None:
        if signals.stop.is_set() and not self._course.is_stopping:
            _LOG.info("stopping: ingest, then the trainer, then nodes, then shards")
            PULSE.stopping()
            self._course.stop()
        if signals.kill.is_set():
            self._course.kill()

    def _notice_changes(self) -> None:
        different = self._watch.news()
        if different is None:
            return
        if different:
            names = " and ".join(path.name for path in different)
            _LOG.warning(
                "%s changed since the start: each process takes the change when it restarts; "
                "`streamlearn doctor --app %s` says whether it fits", names, shlex.quote(str(different[0].parent)),
            )  # fmt: skip
        else:
            _LOG.info("the application's files are as at the start again")
        for name in self._course.retry():
            _LOG.info("starting %s again, because the application's files changed", name)

    def _receive(self) -> None:
        """Pass the messages of all processes on to the course."""
        for name, process in self._processes.items():
            for message, value in process.messages():
                if message == "READY" and self._course.standing(name).state is State.STARTING:
                    self._course.ready(name)
                    _LOG.info("%s is ready", name, extra=dict(self._course.standing(name).member.where))
                elif message == "WATCHDOG":
                    self._course.beat(name)
                elif message == "WATCHDOG_USEC" and value.isdecimal() and len(value) < _DIGITS_MAX:
                    self._course.bear(name, int(value) / 1e6)
                elif message == "STOPPING":
                    self._course.stopping(name)

    def _reap(self) -> None:
        for name, process in list(self._processes.items()):
            status = process.poll()
            if status is not None:
                del self._processes[name]
                self._end(name, status)

    def _end(self, name: str, status: int) -> None:
        """Report the end of a member to the course, and log the course's decision."""
        self._course.ended(name, status)
        standing, how = self._course.standing(name), how_ended(status)
        if standing.state is State.WAITING:
            wait_s, times = standing.backoff.left_s, len(standing.recent_s)
            count = f"{times} of {self._settings.restarts_max} restarts in {self._settings.restarts_window_s:g} s"
            _LOG.warning("%s ended with %s; it restarts in %.1f s (%s)", name, how, wait_s, count)
        elif standing.state is State.GIVEN_UP and self._course.is_stopping:
            _LOG.error("%s ended with %s; giving it up and stopping all processes", name, how)
        elif standing.state is State.GIVEN_UP:
            log = self._logs[name]
            _LOG.error(
                "%s ended with %s; giving it up, the others go on. It starts again when the application's files change."
                " The end of its log, %s: %s", name, how, log.path, " / ".join(list(log.tail)[-_LINES_SHOWN:]),
            )  # fmt: skip
        elif not self._course.is_stopping:
            _LOG.info("%s ended: its work is done", name)
        else:
            _LOG.info("%s ended with %s", name, how)

    def _obey(self, act: Act, member: Member) -> None:
        name = member.name
        if act is Act.START:
            self._start(member)
        elif act is Act.STOP:
            _LOG.info("stopping %s", name)
            self._sockets.release(name)
            self._processes[name].stop()
        elif act is Act.ABORT:
            silent_s = self._course.standing(name).silent_s
            _LOG.error("%s hangs: it gave no sign of life for %.1f s; ending it and starting it again", name, silent_s)
            self._processes[name].abort()
        else:
            _LOG.warning("killing %s: it took too long to stop, or a second signal asked to stop at once", name)
            self._processes[name].kill()

    def _start(self, member: Member) -> None:
        log = self._logs[member.name]
        try:
            process = MemberProcess(
                member, log, self._settings.silence_s_max, self._clock, sockets=self._sockets.of(member.name)
            )
        except OSError as error:
            log.take(f"it could not be started: {error.strerror or error}".encode())
            self._end(member.name, _NOT_STARTED)
            return
        self._processes[member.name] = process
        _LOG.info("started %s", member.name, extra={"pid": process.pid, "log": str(log.path)})

    def _tell_given_up(self) -> None:
        names = [one.name for one in self._course.given_up]
        if self._given_up_file is not None and names != self._told:
            self._told, now_ms = names, self._clock.wall_ms()
            told = []
            for one in self._course.given_up:
                log = str(self._logs[one.name].path.resolve())
                told.append(GivenUpProcess(one.name, how_ended(one.status), log, now_ms, os.getpid()))
            self._given_up_file.write(told)

    def _seen(self) -> list[Seen]:
        now_s, seen = self._clock.monotonic_s(), []
        for standing in self._course.standings:
            process, tail = self._processes.get(standing.member.name), self._logs[standing.member.name].tail
            pid = None if process is None else process.pid
            seen.append(Seen(standing, pid, now_s - standing.since_s, tail[-1] if tail else ""))
        return seen

    def _report(self) -> list[dict[str, Any]]:
        if self._course.given_up:
            raise self._failure()
        standings = self._course.standings
        odd = [standing for standing in standings if not standing.stopped_well]
        if odd:
            ends = "; ".join(f"{standing.member.name} ended with {how_ended(standing.status)}" for standing in odd)
            message = f"{len(odd)} of {len(standings)} processes did not stop cleanly: {ends}"
            raise PartlyDone(
                message,
                help="see their logs; raise up.stop_s_max if one was killed for taking too long. Unfinished "
                "work continues after the next start",
            )
        return [
            {
                "process": standing.member.name,
                "ended": "" if standing.status is None else how_ended(standing.status),
                "restarts": standing.restarts,
                "log": str(self._logs[standing.member.name].path),
            }
            for standing in standings
        ]

    def _failure(self) -> ServiceError:
        messages, paths = [], []
        for given_up in self._course.given_up:
            log = self._logs[given_up.name]
            lines = "\n".join(f"  {line}" for line in log.tail) or "  (its log is empty)"
            messages.append(
                f"{given_up.name} ended with {how_ended(given_up.status)} after {given_up.restarts} restarts, and "
                f"was given up: {given_up.why}. The end of its log:\n{lines}"
            )
            paths.append(str(log.path))
        help = f"fix the cause, then run `streamlearn up APP` again; the whole log is {' and '.join(paths)}"
        return ServiceError("\n".join(messages), help=help)

    def _kill_all(self) -> None:
        """Kill the processes that are left after an error in this process, and close all logs."""
        for process in self._processes.values():
            process.kill()
        for log in self._logs.values():
            log.close()

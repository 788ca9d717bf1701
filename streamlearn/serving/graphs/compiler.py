"""Compiler: makes executables for frequent shapes while lanes go on.

A process of the lowest priority compiles into the cache; then this process loads the executable from there in a few
hundredths of a second. Compiling here would delay lanes for the whole time.
"""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ServiceError, StreamlearnError
from streamlearn.serving.graphs.compile_cache import CompileCache
from streamlearn.serving.graphs.compile_process import CompileAnswer, CompileRequest
from streamlearn.serving.graphs.executables import Executables
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.serving.graphs.ladder import Bucket
from streamlearn.settings import ServingSettings
from streamlearn.struct_decoder import from_json

__all__ = ["Compiler"]

_LOG = logging.getLogger("streamlearn.serving.Compiler")
_ANSWER_BYTES_MAX = 1 << 20


class Compiler:
    """A queue of shapes, a thread that works it off, and the process that compiles for it.

    The process starts with the first shape, and again after it died. A shape is given up if the process died or took
    too long. After `compile_failures_max` failures in a row nothing more is compiled. Tests replace the command.
    """

    def __init__(
        self,
        settings: ServingSettings,
        cache: CompileCache,
        *,
        command: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings, self._cache, self._clock = settings, cache, clock
        arguments = ("-m", "streamlearn.serving.graphs.compile_process", msgspec.json.encode(settings).decode())
        self._command = tuple(command) or (sys.executable, *arguments)
        self._meters = ExecutionMeters()
        self._waiting: deque[tuple[Executables, Path, Bucket]] = deque()
        self._changed = threading.Condition()
        self._is_open, self._failures = True, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="compiler", daemon=True)
        self._thread.start()

    def ask(self, executables: Executables, graphs: Path, bucket: Bucket) -> bool:
        """Queue a shape of graphs that were exported to the folder `graphs`, and return whether it was queued."""
        with self._changed:
            task = (executables, graphs, bucket)
            if executables.has(bucket) or task in self._waiting:
                outcome = "known"
            elif executables.budget.is_used_up:
                outcome = "too_many"
            elif not self._is_open or self._failures >= self._settings.compile_failures_max:
                outcome = "given_up"
            elif len(self._waiting) >= self._settings.compile_queue_max:
                outcome = "refused"
            else:
                outcome = "taken"
                self._waiting.append(task)
                self._changed.notify_all()
            self._meters.asked.labels(outcome).inc()
            self._meters.queue.set(len(self._waiting) / self._settings.compile_queue_max)
        return outcome == "taken"

    def compile_all(self, executables: Executables, graphs: Path, buckets: Iterable[Bucket]) -> None:
        """Queue shapes and wait until each was compiled or has failed; failed shapes have no executables then."""
        tasks = [(executables, graphs, bucket) for bucket in buckets]
        for task in tasks:
            with self._changed:
                self._changed.wait_for(
                    lambda: not self._is_open or len(self._waiting) < self._settings.compile_queue_max
                )
            self.ask(*task)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or not any(task in self._waiting for task in tasks))

    def close(self) -> None:
        """End the process and drop the queue."""
        with self._changed:
            self._is_open = False
            self._waiting.clear()
            self._changed.notify_all()
            process = self._process
        if process:
            process.kill()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._is_open)
                if not self._is_open:
                    break
                # It stays in the queue while it is compiled, so that it is not queued twice.
                executables, graphs, bucket = self._waiting[0]
            self._try(executables, graphs, bucket)
            with self._changed:
                if self._waiting:
                    self._waiting.popleft()
                self._changed.notify_all()
        self._end()

    def _try(self, executables: Executables, graphs: Path, bucket: Bucket) -> None:
        try:
            self._compile(CompileRequest(str(graphs.absolute()), bucket))
            self._cache.seal()
            is_made = executables.compile(bucket)
        except (StreamlearnError, OSError) as error:
            if not self._is_open:
                return
            self._failures += 1
            self._meters.asked.labels("failed").inc()
            _LOG.warning("%s of %d candidates or users stays uncompiled: %s", bucket.graph, bucket.rows, error)
            if self._failures >= self._settings.compile_failures_max:
                _LOG.error("compiling failed %d times in a row: further shapes stay uncompiled", self._failures)
            self._end()
        else:
            self._failures = 0
            self._meters.asked.labels("compiled" if is_made else "too_many").inc()

    def _compile(self, request: CompileRequest) -> None:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            message = f"the compile process ended with status {self._process.wait()}"
            raise ServiceError(message, help="see its messages on stderr") from None
        answer = self._answer()
        if answer.error:
            message = f"the compile process reports {answer.error}"
            raise ServiceError(message)

    def _start(self) -> None:
        with self._changed:
            if not self._is_open:
                message = "the compiler is closed"
                raise ServiceError(message)
            # In its own process group, so that Ctrl-C does not reach it; not in its own session, because Linux may
            # share processors between sessions before it considers niceness.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
        self._answer()

    def _answer(self) -> CompileAnswer:
        """Read the next line of the process, for at most `compile_s_max`."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        until_s, line = self._clock.monotonic_s() + self._settings.compile_s_max, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(until_s - self._clock.monotonic_s(), 0)):
                    message = f"the compile process did not answer within {self._settings.compile_s_max} s"
                    raise ServiceError(message, help="the machine is too busy, or the model is too large for it")
                chunk = os.read(process.stdout.fileno(), _ANSWER_BYTES_MAX)
                if not chunk or len(line) > _ANSWER_BYTES_MAX:
                    message = f"the compile process ended with status {process.wait()}"
                    raise ServiceError(message, help="see its messages on stderr")
                line += chunk
        try:
            return from_json(line, CompileAnswer)
        except msgspec.DecodeError:
            message = f"cannot decode the answer of the compile process: {line[:200]!r}"
            raise ServiceError(message) from None

    def _end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    assert pipe is not None
                    pipe.close()

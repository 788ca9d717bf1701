"""Prism: the embedded runner's process, started for one job, watched while the job runs, and ended with it.

It knows nothing of the job. Beam can start Prism too, but in our process group, where the Ctrl-C that stops a run would
end its runner first; and Beam leaves it running if its parent process is killed.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_fn_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.job_server import JobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer, PrismRunner, PrismRunnerLogFilter
from apache_beam.runners.worker.sdk_worker import SdkWorker

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PipelineFailed

__all__ = ["Prism"]

_LOG = logging.getLogger(__name__)
_STARTS_MAX, _START_S_MAX, _POLL_S, _END_S_MAX, _REACH_S = 3, 60.0, 0.1, 5.0, 1.0
# The guard reads one line, which `stop` writes. If its input ends instead, our process is gone, and it kills Prism.
_GUARD = 'read -r word || kill -9 "$1"'
_FATAL = ("panic: ", "fatal error: ", "runtime: ")
_CHANNEL = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_timeout_ms", 600_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
)


class Prism(JobServer):
    """Prism's process, and Beam's runner that uses it.

    Guaranteed: once this process is gone, however it ended, so is Prism; a terminal's signals do not reach it;
    `failure` reports if it ended by itself. `options` are Beam's; they name the binary and what it logs. While it runs,
    workers of this process answer questions about the progress of a bundle without figures.
    """

    def __init__(self, options: PipelineOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options, self._clock = options, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._channel: Any = None
        self._log: threading.Thread | None = None
        self._fatal = ""

    @classmethod
    def of(cls, options: PipelineOptions) -> Prism | None:
        """Return the Prism of a job with these options; None if they name another runner."""
        runner = options.view_as(StandardOptions).runner
        return cls(options) if runner == "PrismRunner" else None

    def pipeline(self) -> beam.Pipeline:
        """Return a new pipeline that runs here."""
        return beam.Pipeline(runner=_Runner(self), options=self._options)

    def start(self) -> Any:
        """Start it unless it runs; return a stub of its job service. Raises `PipelineFailed` if it does not answer."""
        for number in range(1, _STARTS_MAX + 1):
            if self._channel is None:
                try:
                    self._start()
                except PipelineFailed:
                    self.stop()
                    if number == _STARTS_MAX:
                        raise
                    # Its port was free when it was chosen; another process may have taken it.
                    _LOG.warning("prism did not start; trying again")
        return beam_job_api_pb2_grpc.JobServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def failure(self, error: Exception | None = None) -> PipelineFailed | None:
        """Return the failure if it ended by itself; None while it runs, and after `stop`.

        `error` is what its job raised: a lost connection may be noticed before the end of the process.
        """
        if self._process is None:
            return None
        try:
            status = self._process.wait(_END_S_MAX if isinstance(error, grpc.RpcError) else 0.0)
        except subprocess.TimeoutExpired:
            return None
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        detail = f": {self._fatal}" if self._fatal else ""
        hint = (
            "start it again: nothing is learned twice. If the machine killed it because memory ran out, "
            "lower ingest.read_ahead_bytes, or ingest.stretch_s for a backfill"
        )
        return PipelineFailed(f"prism, the runner (pid {self._process.pid}), ended {how}{detail}", help=hint)

    def stop(self) -> None:
        """End it. Its state is in memory only, so there is nothing to write."""
        SdkWorker.process_bundle_progress = _ANSWER  # type: ignore[method-assign]
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._log is not None:
                self._log.join()  # it ends at the end of Prism's output
                self._log = None
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(b"done\n")
                self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def _start(self) -> None:
        SdkWorker.process_bundle_progress = _answer_briefly  # type: ignore[assignment, method-assign]
        server: Any = PrismJobServer(self._options)  # type: ignore[no-untyped-call]
        command, endpoint = server.subprocess_cmd_and_endpoint()
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._log_output(self._process)
        self._channel = self._connect(endpoint, self._process)
        port = int(endpoint.rpartition(":")[2])
        if _is_open(port):
            _LOG.warning(
                "prism, %s, listens on all networks: a program that reaches port %d of this machine can run commands "
                "as this user. Install Go and run `python -m tools.services fetch prism` in the source tree of "
                "streamlearn. Then remove ingest.prism_location, or set it to what was built",
                command[0],
                port,
            )

    def _connect(self, endpoint: str, process: subprocess.Popen[bytes]) -> Any:
        channel = grpc.insecure_channel(endpoint, options=_CHANNEL)
        ready, begun_s = grpc.channel_ready_future(channel), self._clock.monotonic_s()
        while self._clock.monotonic_s() - begun_s < _START_S_MAX:
            with suppress(grpc.FutureTimeoutError):
                ready.result(timeout=_POLL_S)
                return channel
            if process.poll() is not None:
                message = f"{process.args!r} ended with status {process.returncode}: {self._fatal or 'see the log'}"
                raise PipelineFailed(message)
        message = f"prism does not answer at {endpoint} after {_START_S_MAX:g} s"
        raise PipelineFailed(message)

    def _log_output(self, process: subprocess.Popen[bytes]) -> None:
        """Log its output, and keep the first line of a crash."""
        logger = logging.getLogger("PrismJobServer")
        if not any(isinstance(known, PrismRunnerLogFilter) for known in logger.filters):
            logger.addFilter(PrismRunnerLogFilter())
        logger.setLevel(logging.INFO)  # the filter applies the level of each line

        def log_stdout() -> None:  # the filter recognizes Prism's lines by this function's name
            for line in process.stdout or ():
                text = line.decode(errors="backslashreplace").rstrip()
                if text.startswith(_FATAL) and not self._fatal:
                    self._fatal = text
                logger.info(text)

        self._log = threading.Thread(target=log_stdout, name="streamlearn-prism-log", daemon=True)
        self._log.start()


_ANSWER = SdkWorker.process_bundle_progress


def _answer_briefly(_: SdkWorker, request: Any, instruction_id: str) -> Any:
    """Answer that a bundle goes on. Ten times a second Prism asks for all figures of each bundle, only to split it."""
    progress = beam_fn_api_pb2.ProcessBundleProgressResponse()
    return beam_fn_api_pb2.InstructionResponse(instruction_id=instruction_id, process_bundle_progress=progress)


def _is_open(port: int) -> bool:
    """Whether the server of a port listens on more than 127.0.0.1: if so, it answers on 127.0.0.2 too."""
    try:
        socket.create_connection(("127.0.0.2", port), _REACH_S).close()
    except OSError:
        return False
    return True


class _Runner(PrismRunner):
    def __init__(self, prism: Prism) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._prism = prism

    def default_job_server(self, options: PipelineOptions) -> Prism:
        """See Beam."""
        return self._prism

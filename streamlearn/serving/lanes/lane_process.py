"""LaneProcess: a lane process as its node sees it, from its start to its end."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import msgspec
import numpy as np
import numpy.typing as npt

from streamlearn.errors import ExecutionFailed, LaneLost
from streamlearn.process_exit import how_ended
from streamlearn.serving.lanes.lane_orders import PACKET_BYTES_MAX, LaneAnswer, LaneStart, Order, read_scored
from streamlearn.settings import ServingSettings
from streamlearn.struct_decoder import from_json

__all__ = ["LaneProcess", "environment_of"]

_LOG = logging.getLogger("streamlearn.serving.LaneProcess")
# A process that was ended or killed has nothing left to do.
_END_S_MAX = 10.0
_REPLY_BYTES_MAX = 1 << 13


class LaneProcess:
    """One process. `score` and `obey` may run at the same time, but each for one caller at a time.

    The settings `compile_s_max` and `lane_answer_s_max` bound the waits for it. The file `slabs` holds the tensors of
    work, and one execution writes at most `scores_bytes`.

    Attributes:
        graphs: Ids of the graphs that it has made.
        weights: Numbers of the weights that it has loaded.
        updating: The lock for giving it orders.
        is_ended_here: Whether this node ended or killed it.
    """

    def __init__(self, lane: int, settings: ServingSettings, slabs: int, scores_bytes: int) -> None:
        self._lane, self._settings = lane, settings
        self.graphs: set[str] = set()
        self.weights: set[int] = set()
        self.updating = threading.Lock()
        self.is_ended_here = False
        self._is_over = threading.Event()
        # The process inherits its ends of the sockets and the file of scores; they are closed here.
        with ExitStack() as inherited:
            self._orders, orders = _socket_pair(inherited)
            self._work, work = _socket_pair(inherited)
            scores = os.memfd_create("streamlearn-scores")
            inherited.callback(os.close, scores)
            os.ftruncate(scores, scores_bytes)
            self._scores: npt.NDArray[np.float32] = np.frombuffer(mmap.mmap(scores, scores_bytes), np.float32)
            start = LaneStart(settings, orders.fileno(), work.fileno(), slabs, scores)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streamlearn.serving.lanes.lane_main", msgspec.json.encode(start).decode()],
                env=environment_of(os.environ, settings, lane),
                pass_fds=(start.orders, start.work, slabs, scores),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        # With SO_RCVTIMEO a receive is one system call; with a timeout of Python's socket it would be two.
        self._work.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(settings.lane_answer_s_max))
        self._orders.settimeout(settings.compile_s_max)

    @property
    def process_id(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._is_over.is_set() or self._process.poll() is not None

    def wait_up(self) -> None:
        """Wait until the process takes orders and work; raises LaneLost if it ended or took too long."""
        answer = self._answer()
        assert not answer.error

    def obey(self, order: Order, shapes: int = 1, files: Sequence[int] = ()) -> LaneAnswer:
        """Send an order with its files and wait for the answer, for at most `compile_s_max` for each of `shapes`.

        Raises:
            ExecutionFailed: The process could not carry out the order.
            LaneLost: The process ended, or took too long.
        """
        self._orders.settimeout(self._settings.compile_s_max * shapes)
        with suppress(OSError):
            socket.send_fds(self._orders, [msgspec.json.encode(order)], files)
        answer = self._answer()
        if answer.error:
            message = f"lane process {self._lane} failed to obey an order: {answer.error}"
            raise ExecutionFailed(message)
        return answer

    def score(self, packet: bytes) -> npt.NDArray[np.float32]:
        """Score a packet of work and return float32[candidates, labels].

        Raises:
            ExecutionFailed: It could not be scored.
            LaneLost: The process ended, or took too long.
        """
        with suppress(OSError):
            self._work.send(packet)
        late = f"it did not answer within {self._settings.lane_answer_s_max} s"
        shape = read_scored(self._receive(self._work, _REPLY_BYTES_MAX, late))
        if isinstance(shape, str):
            message = f"lane process {self._lane}: {shape}"
            raise ExecutionFailed(message)
        rows, columns = shape
        return self._scores[: rows * columns].reshape(shape).copy()

    def end(self) -> None:
        """End the process; the work that it scores is lost."""
        self.is_ended_here = True
        for connection in (self._orders, self._work):
            # Callers that wait for an answer get LaneLost.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self._kill("it did not stop when asked")
            self._process.wait()
        self._is_over.set()
        self._orders.close()
        self._work.close()

    def _answer(self) -> LaneAnswer:
        late = "it did not start, compile or load in time"
        return from_json(self._receive(self._orders, PACKET_BYTES_MAX, late), LaneAnswer)

    def _receive(self, connection: socket.socket, bytes_max: int, late: str) -> bytes:
        """Return the next packet; raise LaneLost if the process ended, or kill it if it is late."""
        packet = b""
        try:
            packet = connection.recv(bytes_max)
        except (TimeoutError, BlockingIOError):
            self._kill(late)
        except OSError:
            pass
        if not packet:
            raise self._lost()
        return packet

    def _kill(self, reason: str) -> None:
        _LOG.error("killing lane process %d (%d): %s", self._lane, self._process.pid, reason)
        self.is_ended_here = True
        self._process.kill()

    def _lost(self) -> LaneLost:
        """Wait for the end of the process, which closed its sockets, and return the error with its exit status."""
        is_ended_here = self.is_ended_here
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S_MAX)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._is_over.set()
        status = self._process.returncode
        message = f"lane process {self._lane} ({self._process.pid}) ended with {how_ended(status)}"
        if not is_ended_here:
            _LOG.error("%s", message)
        # If something else killed the process, its work is not the cause, so another lane may try it.
        return LaneLost(message, is_innocent=not is_ended_here and status == -signal.SIGKILL)


def environment_of(base: Mapping[str, str], settings: ServingSettings, lane: int) -> dict[str, str]:
    """Return the environment of a lane process; TensorFlow and CUDA read it when they are loaded.

    Examples:
        >>> settings = ServingSettings(lane_gpus=["0", "1"])
        >>> environment_of({"HOME": "/"}, settings, 3)
        {'HOME': '/', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    gpus = settings.lane_gpus
    return {**base, **({"CUDA_VISIBLE_DEVICES": gpus[lane % len(gpus)]} if gpus else {})}


def _socket_pair(inherited: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection; `inherited` closes the second one here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inherited.callback(theirs.close)
    return ours, theirs


def _timeval(wait_s: float) -> bytes:
    return struct.pack("ll", int(wait_s), round(wait_s % 1 * 1e6) % 1_000_000)

"""LaneLife: a lane process as its node sees it, from its start to its end, however that comes."""

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
from streamlearn.serving.lanes.lane_orders import PACKET_BYTES_MAX, Birth, LaneAnswer, Order, read_scored
from streamlearn.settings import ServingSettings
from streamlearn.struct_decoder import from_json

__all__ = ["LaneLife", "environment_of"]

_LOG = logging.getLogger("streamlearn.serving.LaneLife")
# A process that was told to end, or was killed, has no more to do.
_END_S_MAX = 10.0
_SCORED_BYTES_MAX = 1 << 13


class LaneLife:
    """One process. Whoever calls `score` or `obey` does so one at a time each; both may be called at once.

    Args:
        lane: The number of its lane.
        settings: Its settings; `compile_s_max` and `lane_answer_s_max` bound what it is waited for.
        slabs: The file that work lies in.
        scores_bytes: How large the scores of one execution may be.

    Attributes:
        graphs: Graphs that it has made.
        weights: Weights that it has.
        bringing: Held by whoever gives it orders.
        was_told: Whether it was ended by its node.
    """

    def __init__(self, lane: int, settings: ServingSettings, slabs: int, scores_bytes: int) -> None:
        self._lane, self._settings = lane, settings
        self.graphs: set[str] = set()
        self.weights: set[int] = set()
        self.bringing = threading.Lock()
        self.was_told = False
        self._is_over = threading.Event()
        with ExitStack() as theirs:
            self._orders, orders = _pair(theirs)
            self._work, work = _pair(theirs)
            scores = os.memfd_create("streamlearn-scores")
            theirs.callback(os.close, scores)
            os.ftruncate(scores, scores_bytes)
            self._scores: npt.NDArray[np.float32] = np.frombuffer(mmap.mmap(scores, scores_bytes), np.float32)
            birth = Birth(settings, orders.fileno(), work.fileno(), slabs, scores)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streamlearn.serving.lanes.lane_process", msgspec.json.encode(birth).decode()],
                env=environment_of(os.environ, settings, lane),
                pass_fds=(birth.orders, birth.work, slabs, scores),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        # One call of the system's waits and gives up; a timeout of Python's own would be two of them.
        self._work.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(settings.lane_answer_s_max))
        self._orders.settimeout(settings.compile_s_max)

    @property
    def process_id(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._is_over.is_set() or self._process.poll() is not None

    def wait_up(self) -> None:
        """Wait until it takes orders and work.

        Raises:
            LaneLost: It ended, or took too long.
        """
        answer = self._answer()
        assert not answer.error

    def obey(self, order: Order, shapes: int = 1, files: Sequence[int] = ()) -> LaneAnswer:
        """Have an order done.

        Args:
            order: The order.
            shapes: How many executables it may be about, each of which takes its time.
            files: What goes with it.

        Raises:
            ExecutionFailed: It could not be done.
            LaneLost: The process ended of it, or took too long.
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
        """The scores of a packet of work, float32[candidates, labels].

        Raises:
            ExecutionFailed: It could not be scored.
            LaneLost: The process ended, or took too long.
        """
        try:
            self._work.send(packet)
            said = self._work.recv(_SCORED_BYTES_MAX)
        except BlockingIOError:
            self._kill(f"it did not answer within {self._settings.lane_answer_s_max} s")
            said = b""
        except OSError:
            said = b""
        if not said:
            raise self._lost()
        found = read_scored(said)
        if isinstance(found, str):
            message = f"lane process {self._lane}: {found}"
            raise ExecutionFailed(message)
        rows, columns = found
        return self._scores[: rows * columns].reshape(found).copy()

    def end(self) -> None:
        """End it; what it has in hand is lost."""
        self.was_told = True
        for one in (self._orders, self._work):
            # Who waits for an answer hears that there is none.
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            self._kill("it did not stop when asked")
            self._process.wait()
        self._is_over.set()
        self._orders.close()
        self._work.close()

    def _answer(self) -> LaneAnswer:
        try:
            said = self._orders.recv(PACKET_BYTES_MAX)
        except TimeoutError:
            self._kill("it did not start, compile or load in time")
            said = b""
        except OSError:
            said = b""
        if not said:
            raise self._lost()
        return from_json(said, LaneAnswer)

    def _kill(self, why: str) -> None:
        _LOG.error("killing lane process %d (%d): %s", self._lane, self._process.pid, why)
        self.was_told = True
        self._process.kill()

    def _lost(self) -> LaneLost:
        """It has closed its sockets, so it is about to end; why, as its status says."""
        is_by_us = self.was_told
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S_MAX)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._is_over.set()
        status = self._process.returncode
        said = _named(status)
        message = f"lane process {self._lane} ({self._process.pid}) ended with {said}"
        if not is_by_us:
            _LOG.error("%s", message)
        # What was killed from without did not die of its work, which another lane may therefore try.
        return LaneLost(message, is_innocent=not is_by_us and status == -signal.SIGKILL)


def environment_of(base: Mapping[str, str], settings: ServingSettings, lane: int) -> dict[str, str]:
    """What a lane's process has as its environment: TensorFlow and CUDA read it when they are loaded.

    Examples:
        >>> settings = ServingSettings(lane_gpus=["0", "1"])
        >>> environment_of({"HOME": "/"}, settings, 3)
        {'HOME': '/', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    found = dict(base)
    if settings.lane_gpus:
        found["CUDA_VISIBLE_DEVICES"] = settings.lane_gpus[lane % len(settings.lane_gpus)]
    return found


def _named(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _pair(theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection; the second is closed here once the process has it."""
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.callback(other.close)
    return ours, other


def _timeval(wait_s: float) -> bytes:
    return struct.pack("ll", int(wait_s), round(wait_s % 1 * 1e6) % 1_000_000)

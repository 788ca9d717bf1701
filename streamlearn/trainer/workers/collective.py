"""CollectiveSums: sums of dense gradients over the processes of a group, by TensorFlow's collective operation."""

from __future__ import annotations

import logging
import math
import queue
import struct
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamlearn.clock import Clock
from streamlearn.errors import GroupLost
from streamlearn.loopback import is_loopback
from streamlearn.models.tf_calls import abort_collectives, join_cluster
from streamlearn.ps.slice_part import SlicePart
from streamlearn.resource import Resource
from streamlearn.trainer.workers.port_filter import filter_port

__all__ = ["CollectiveSums"]

Float32s = npt.NDArray[np.float32]
_LOG = logging.getLogger("streamlearn.trainer.workers")
# TensorFlow's names of the group and of its operation. It keeps something of each name that it ever met.
_GROUP, _OPERATION = 1, 1
_SUMS_KEPT, _END_S_MAX = 4, 5.0
# The weights' hash and the step, which must be equal in all processes.
_CHECK = struct.Struct("<QI")


class CollectiveSums(Resource):
    """Has the methods of the shards' client that give and take sums of dense gradients; see `PsClient`.

    A process adds its own slices in their order, and gives the group one vector a step. Behind the values it has a
    number that is above 0 if a slice is not finite, then the bytes of `_CHECK`, then their squares: the mean of the
    squares is the square of the mean only if all are equal, so that all processes notice a difference in the same step.

    TensorFlow's own time limit of an operation costs a thread for as long as it lasts. So a thread of this object
    waits for the operation, `reduced` has the limit, and `close` ends an operation that waits.
    """

    def __init__(
        self, addresses: Sequence[str], own: int, slices: int, *, device: str, wait_s_max: float, clock: Clock
    ) -> None:
        """Make this process the one at the place `own` in a group, where each learns as many slices of a step."""
        self._members, self._slices, self._device = len(addresses), slices, device
        self._wait_s_max, self._clock = wait_s_max, clock
        self._changed, self._full = threading.Condition(), queue.SimpleQueue[tuple[int, Float32s] | None]()
        self._step, self._given, self._vector = 0, set[int](), np.zeros(0, np.float32)
        self._sums, self._waits_s, self._lost = dict[int, tuple[Float32s, bool]](), math.inf, ""
        join_cluster(addresses, own)
        hosts, port = {one.rpartition(":")[0] for one in addresses}, int(addresses[own].rpartition(":")[2])
        filter_port(port, hosts)
        way = "NCCL" if "GPU" in device else "TensorFlow's ring, for want of a GPU"
        _LOG.info("%d processes sum dense gradients by %s; this one is at %s", len(addresses), way, addresses[own])
        if not all(map(is_loopback, hosts)):
            _LOG.warning("dense gradients pass between machines without encryption: keep others off this network")
        self._thread = threading.Thread(target=self._run, name="streamlearn-trainer-group", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str:
        """Why the group cannot sum any more; empty if it can."""
        return self._lost

    def lose(self, reason: str) -> GroupLost:
        """End the group for the life of this process, and return the error that ends the process."""
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()
        self._full.put(None)
        abort_collectives(reason)
        message = f"the group of {self._members} processes is lost: {self._lost}"
        return GroupLost(message, help="see the logs of the others; all begin again at the newest version")

    def close(self) -> None:
        """End the group, and wait for its thread: Python must not end while that is inside TensorFlow."""
        self.lose("this process ends")
        self._thread.join(_END_S_MAX)

    def reduce(self, part: SlicePart, values: Float32s, *, digest: int, is_finite: bool) -> None:
        """Give one slice's values, after those of all steps before and of this process's slices before it.

        Raises:
            GroupLost: See `reduced`.
        """
        with self._changed:
            if self._lost:
                raise self.lose(self._lost)
            if part.step != self._step:
                self._step, self._given, self._waits_s = part.step, set(), math.inf
                check = np.frombuffer(_CHECK.pack(digest, part.step & 0xFFFFFFFF), np.uint8).astype(np.float32)
                self._vector = np.concatenate([np.zeros(len(values) + 1, np.float32), check, check * check])
            if part.slice in self._given:
                return
            self._given.add(part.slice)
            if is_finite:
                self._vector[: len(values)] += values
            else:
                self._vector[len(values)] += 1.0
            if len(self._given) == self._slices:
                self._waits_s = self._clock.monotonic_s()
                self._full.put((part.step, self._vector))

    def reduced(self, step: int, slices: int, out: Float32s, *, wait_s: float) -> bool | None:
        """Wait for the sum of a step, and write it into `out`; see `PsClient.reduced`.

        Raises:
            GroupLost: A process is gone or began the step at other weights, or the time is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost or step in self._sums, wait_s)
            if step in self._sums:
                total, is_finite = self._sums.pop(step)
                out[:] = total
                return is_finite
            is_late = self._clock.monotonic_s() - self._waits_s > self._wait_s_max
        if self._lost or is_late:
            late = f"step {step} had no sum after {self._wait_s_max:g} s"
            raise self.lose(late)
        return None

    def _run(self) -> None:
        while (full := self._full.get()) is not None:
            step, vector = full
            try:
                total = self._total(vector)
            except Exception as error:
                # TensorFlow's messages begin with the name of the operation, in braces.
                self.lose(f"the sum of step {step} failed: {str(error).rpartition('}} ')[2]}")
                return
            length = len(vector) - 1 - 2 * _CHECK.size
            sums, squares = np.split(total[length + 1 :].astype(np.int64), 2)
            if (self._members * squares != sums * sums).any():
                self.lose(f"two processes began step {step} at different weights")
                return
            with self._changed:
                self._sums[step] = (total[:length], bool(total[length] == 0))
                for old in [known for known in self._sums if known <= step - _SUMS_KEPT]:
                    del self._sums[old]
                self._changed.notify_all()

    def _total(self, vector: Float32s) -> Float32s:
        with tf.device(self._device):
            total: Float32s = tf.raw_ops.CollectiveReduceV2(
                input=tf.constant(vector), group_size=self._members, group_key=_GROUP, instance_key=_OPERATION,
                ordering_token=[], merge_op="Add", final_op="Id", timeout_seconds=0.0,
                communication_hint="nccl" if "GPU" in self._device else "ring",
            ).numpy()  # fmt: skip
        return total

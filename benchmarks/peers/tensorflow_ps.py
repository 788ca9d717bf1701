"""The peer in TensorFlow: its native parameter server over gRPC, with gather and scatter on a variable.

An id is a row of the variable: without lookups, the server has less work than a table.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.keys import DIM
from benchmarks.peers.answer import Order, Turn, Wrong, answer_in_turns
from benchmarks.peers.remote import RATE, START, cores_apart, remote

__all__ = ["VariableServer"]

_PS = "/job:ps/task:0/cpu:0"
_CHIEF = "/job:chief/task:0/cpu:0"
_LISTEN_S_MAX = 60.0


class VariableServer:
    """A variable and its accumulators on the server's device."""

    def __init__(self, rows: int) -> None:
        with tf.device(_PS):
            variable = tf.Variable(tf.random.stateless_normal([rows, DIM], [1, 2]))
            accumulators = tf.Variable(tf.fill([rows, DIM], START))

        def pull(ids: Any) -> Any:
            with tf.device(_PS):
                return tf.gather(variable, ids)

        def push(ids: Any, gradients: Any) -> Any:
            with tf.device(_PS):
                tf.raw_ops.ResourceSparseApplyAdagrad(
                    var=variable.handle, accum=accumulators.handle, lr=RATE, grad=gradients, indices=ids
                )
                return tf.constant(0)

        ids, rows_of_ids = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, DIM], tf.float32)
        self._pull = tf.function(pull, input_signature=[ids])
        self._push = tf.function(push, input_signature=[ids, rows_of_ids])
        self._kept = (variable, accumulators)

    def ready(self, array: NDArray[Any]) -> Any:
        """Return a tensor of this process."""
        with tf.device(_CHIEF):
            return tf.constant(array)

    def pull(self, ids: Any) -> NDArray[np.float32]:
        """Gather rows on the server and copy them here."""
        rows: NDArray[np.float32] = self._pull(ids).numpy()
        return rows

    def push(self, ids: Any, gradients: Any) -> None:
        """Send gradients to the server and apply them."""
        self._push(ids, gradients).numpy()


def _remote(order: Order, turn: Turn) -> dict[str, float]:
    server_core, _ = cores_apart()
    jobs = {"ps": [_free_address()], "chief": [_free_address()]}
    command = [sys.executable, "-m", "benchmarks.peers.tensorflow_ps", "serve", jobs["ps"][0], jobs["chief"][0]]
    server = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {server_core}),
    )
    try:
        _wait_for(jobs["ps"][0], server)
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(jobs), job_name="chief", protocol="grpc")
        return remote(VariableServer(order.keys_count), order, turn)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait(10)


def _free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + _LISTEN_S_MAX
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    message = f"no server listened on {address} within {_LISTEN_S_MAX:g} s"
    raise Wrong(message)


def _serve(ps: str, chief: str) -> None:
    signal.alarm(900)
    tf.distribute.Server({"ps": [ps], "chief": [chief]}, job_name="ps", task_index=0, protocol="grpc").join()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(*sys.argv[2:4])
    else:
        answer_in_turns({"remote": _remote})

"""The main program of a lane process: it scores the work of one lane with the graphs and weights its node orders.

`LaneProcess` starts it, with an environment for one device. It ends whenever its node does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from streamlearn.models.tensorflow_load import load_tensorflow
from streamlearn.niceness import give_way
from streamlearn.serving.lanes.lane_orders import PACKET_BYTES_MAX, LaneAnswer, LaneStart, read_order
from streamlearn.struct_decoder import from_json

if TYPE_CHECKING:
    from streamlearn.serving.lanes.lane_scoring import LaneScoring

__all__ = ["main"]


def main() -> None:
    """Run a lane; the first argument is a `LaneStart` as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A node that drains still needs its lanes; they end with it.
        signal.signal(number, signal.SIG_IGN)
    start = from_json(sys.argv[1], LaneStart)
    give_way(start.settings.lane_nice)
    orders, work = socket.socket(fileno=start.orders), socket.socket(fileno=start.work)
    queue: SimpleQueue[tuple[bytes, list[int]]] = SimpleQueue()
    threading.Thread(target=_receive, args=(orders, queue), daemon=True).start()
    load_tensorflow()  # takes a while; `_receive` notices if the node ends meanwhile
    from streamlearn.serving.lanes.lane_scoring import LaneScoring

    lane = LaneScoring(start)
    threading.Thread(target=_obey, args=(lane, orders, queue), daemon=True).start()
    orders.send(msgspec.json.encode(LaneAnswer()))
    with lane.place.entered():
        while packet := work.recv(PACKET_BYTES_MAX):
            work.send(lane.score(packet))
    # Skip TensorFlow's shutdown.
    os._exit(0)


def _receive(orders: socket.socket, queue: SimpleQueue[tuple[bytes, list[int]]]) -> None:
    """Queue orders, and end this process when the node ends."""
    while True:
        data, files, _, _ = socket.recv_fds(orders, PACKET_BYTES_MAX, 1)
        if not data:
            os._exit(0)
        queue.put((data, files))


def _obey(lane: LaneScoring, orders: socket.socket, queue: SimpleQueue[tuple[bytes, list[int]]]) -> None:
    with lane.place.entered():
        while True:
            data, files = queue.get()
            try:
                answer = lane.obey(read_order(data), files)
            except Exception as error:
                answer = LaneAnswer(f"{type(error).__name__}: {error}"[:4_000])
            finally:
                for file in files:
                    os.close(file)
            orders.send(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()

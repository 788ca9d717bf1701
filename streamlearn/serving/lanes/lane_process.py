"""The lane process: scores the work of one lane, with the graphs and weights that its node has it make and load.

`LaneLife` starts it, its environment set for one device. It ends when its node does, in the midst of anything.
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
from streamlearn.serving.lanes.lane_orders import PACKET_BYTES_MAX, Birth, LaneAnswer, read_order
from streamlearn.struct_decoder import from_json

if TYPE_CHECKING:
    from streamlearn.serving.lanes.lane_scoring import LaneScoring

__all__ = ["main"]


def main() -> None:
    """Be a lane; the first argument is a `Birth` as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # The node that drains needs its lanes, and they end with it.
        signal.signal(number, signal.SIG_IGN)
    birth = from_json(sys.argv[1], Birth)
    give_way(birth.settings.lane_nice)
    orders, work = socket.socket(fileno=birth.orders), socket.socket(fileno=birth.work)
    told: SimpleQueue[tuple[bytes, list[int]]] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders, told), daemon=True).start()
    load_tensorflow()  # takes a while, in which the node may end
    from streamlearn.serving.lanes.lane_scoring import LaneScoring

    lane = LaneScoring(birth)
    threading.Thread(target=_obey, args=(lane, orders, told), daemon=True).start()
    orders.send(msgspec.json.encode(LaneAnswer()))
    with lane.place.entered():
        while packet := work.recv(PACKET_BYTES_MAX):
            work.send(lane.score(packet))
    # Not by way of TensorFlow's own end, which nobody waits for.
    os._exit(0)


def _listen(orders: socket.socket, told: SimpleQueue[tuple[bytes, list[int]]]) -> None:
    """Hear orders, and the node's end."""
    while True:
        data, files, _, _ = socket.recv_fds(orders, PACKET_BYTES_MAX, 1)
        if not data:
            os._exit(0)
        told.put((data, files))


def _obey(lane: LaneScoring, orders: socket.socket, told: SimpleQueue[tuple[bytes, list[int]]]) -> None:
    with lane.place.entered():
        while True:
            data, files = told.get()
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

"""Messages brought to a topic aside: in order, bounded, and what fails is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from streamlearn.errors import NotDelivered, Oversize
from streamlearn.ingest.output.sample_sender import Courier
from streamlearn.testing import wait_until


class Sent:
    """A writer that notes what it is asked, and goes on only when it may."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.may = threading.Event()
        self.may.set()
        self.fails: Exception | None = None

    def send(self, partition: int, value: bytes) -> None:
        assert self.may.wait(240)
        if len(value) > 100:
            message = f"too large: {len(value)} bytes"
            raise Oversize(message, help="make it smaller")
        self.said.append(f"{partition}:{value.decode()}")

    def flush(self) -> None:
        assert self.may.wait(240)
        self.said.append("flush")
        if self.fails is not None:
            raise self.fails


def courier_of(writer: Any, held_bytes_max: int = 1_000) -> Courier:
    return Courier(writer, held_bytes_max)


def test_messages_keep_their_order_and_are_there_after_a_flush() -> None:
    writer = Sent()
    courier = courier_of(writer)
    for number in range(50):
        courier.send(number % 3, b"%d" % number)
    courier.flush()
    assert writer.said == [f"{number % 3}:{number}" for number in range(50)] + ["flush"]
    courier.close()


def test_whoever_gives_waits_at_the_bound_and_only_there() -> None:
    writer = Sent()
    writer.may.clear()
    courier = courier_of(writer, 10)
    courier.send(0, bytes(50).replace(b"\0", b"x"))  # one is always taken, however large
    given = threading.Event()

    def give() -> None:
        courier.send(0, b"more")
        given.set()

    thread = threading.Thread(target=give)
    thread.start()
    wait_until(lambda: courier._held_bytes == 50, "the first to be held")
    assert not given.wait(0.05)
    writer.may.set()
    thread.join(240)
    assert given.is_set()
    courier.flush()
    courier.close()


def test_what_could_not_be_sent_is_told_by_the_next_flush_and_the_courier_goes_on() -> None:
    writer = Sent()
    courier = courier_of(writer)
    courier.send(0, b"x" * 200)
    with pytest.raises(Oversize, match="too large"):
        courier.flush()
    writer.fails = NotDelivered("away", help="wait")
    with pytest.raises(NotDelivered, match="away"):
        courier.flush()
    writer.fails = None
    courier.send(0, b"after")
    courier.flush()
    assert writer.said[-2:] == ["0:after", "flush"]
    courier.close()


def test_a_courier_that_is_closed_leaves_no_thread_and_nobody_waiting() -> None:
    writer = Sent()
    writer.may.clear()
    courier = courier_of(writer)
    courier.send(0, b"stuck")
    failed: list[BaseException] = []

    def flush() -> None:
        try:
            courier.flush()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=flush)
    thread.start()
    wait_until(lambda: len(courier._errands) == 2, "the flush to be asked for")
    closing = threading.Thread(target=courier.close)
    closing.start()
    wait_until(lambda: courier._closing, "the courier to be closed")
    writer.may.set()
    closing.join(240)
    thread.join(240)
    assert [str(error) for error in failed] == ["the sender was closed before all samples were acknowledged"]
    assert not courier._thread.is_alive()

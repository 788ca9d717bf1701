"""What a writer says of records that were not delivered, whatever stopped it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import NotDelivered, TopicUnreachable
from streamlearn.topics import TopicSettings, Writer, WriterSettings
from streamlearn.topics.records import Outgoing

NO_DOUBT = TopicUnreachable("nobody there")


class Failing(Writer):
    """Appends to a list, until it is told to raise."""

    def __init__(self) -> None:
        super().__init__("memory://failing", TopicSettings(partitions=4), WriterSettings(), SYSTEM_CLOCK)
        self.values: list[bytes | None] = []
        self.error: BaseException | None = None

    def _append(self, partition: int, outgoing: Outgoing) -> NDArray[np.int64]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.values += outgoing.values
        return np.arange(len(outgoing))

    def _close(self) -> None:
        pass


@pytest.fixture
def writer() -> Iterator[Failing]:
    with Failing() as writer:
        yield writer


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("anything"), MemoryError()])
def test_what_any_exception_stopped_is_named_by_the_next_flush(writer: Failing, error: BaseException) -> None:
    for partition in (2, 0, 2):
        writer.send(partition, b"a")
    writer.error = error
    with pytest.raises(type(error)):
        writer.flush()
    with pytest.raises(NotDelivered, match=r"partition 0: 1 \(.*\); partition 2: 2 \(") as caught:
        writer.flush()
    assert caught.value.failures == [(0, 1, error), (2, 2, error)]
    assert caught.value.unsure
    writer.flush()
    assert writer.values == []


def test_what_was_not_tried_is_told_from_what_failed(writer: Failing) -> None:
    for partition in (1, 0, 1):
        writer.send(partition, b"a")
    writer.error = NO_DOUBT
    with pytest.raises(
        NotDelivered, match=r"partition 0: 1 \(not tried .*\); partition 1: 2 \(nobody there\)"
    ) as caught:
        writer.flush()
    failures = {partition: (records, error) for partition, records, error in caught.value.failures}
    assert failures[1] == (2, NO_DOUBT)
    assert isinstance(failures[0][1], NotDelivered)
    assert not caught.value.unsure
    copied = pickle.loads(pickle.dumps(caught.value))
    assert [failure[:2] for failure in copied.failures] == [(0, 1), (1, 2)]
    assert (str(copied), copied.unsure) == (str(caught.value), False)


def test_an_append_never_overtakes_what_was_sent(writer: Failing) -> None:
    writer.send(0, b"first")
    writer.send(1, b"elsewhere")
    writer.append(0, [b"second"])
    assert writer.values == [b"first", b"second"]
    writer.send(0, b"third")
    writer.error = NO_DOUBT
    with pytest.raises(NotDelivered, match="1 records not tried after an earlier failure"):
        writer.append(0, [b"fourth"])
    writer.append(2, [b"of another partition"])
    with pytest.raises(NotDelivered, match=r"partition 0: 1 .*"):
        writer.flush()
    writer.append(0, [b"fifth"])
    assert b"fourth" not in writer.values
    assert writer.values[-1] == b"fifth"

"""InteractionSink: interactions as messages of their topic, each in the partition of its user, or of its item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.ingest.output.sample_sender import Courier
from streamlearn.ingest.output.sink_counts import count_interactions
from streamlearn.interactions import InteractionBatch, encode_interactions

__all__ = ["InteractionSink"]

# Bytes of an interaction beside the values of sources, of one value, and at most of the names in a message.
_ROW_BYTES, _VALUE_BYTES, _NAMES_BYTES = 49, 8, 16_384
# Rows of a message, and bytes of interactions that wait until they are sent.
_ROWS_MAX, _WAITING_BYTES = 4_096, 8 << 20


class InteractionSink:
    """Writes the interactions of one instance of ingest.

    Guaranteed: everything given is acknowledged when `flush` returns. Not guaranteed: that an interaction comes once.
    If columns of items are computed, each interaction is written twice, once for its user and once for its item.
    """

    def __init__(self, folder: AppFolder) -> None:
        entities = folder.app.features.entities
        # Readers of the whole stream take those of users.
        self._sides = ("user", "item") if any(entity.side == "item" for entity in entities) else ("user",)
        self._topic = folder.open_topic("interactions")
        settings, self._bytes_max = folder.writer_settings, folder.settings.events.record_bytes_max
        self._courier = Courier(self._topic.writer(settings), settings.buffer_bytes_max)
        self._waiting: list[InteractionBatch] = []
        self._waiting_bytes = 0

    def give(self, batches: Sequence[InteractionBatch]) -> None:
        """Take interactions; `flush` writes them at the latest."""
        for batch in batches:
            self._waiting.append(batch)
            self._waiting_bytes += len(batch) * self._row_bytes(batch)
        if self._waiting_bytes >= _WAITING_BYTES:
            self._send()

    def flush(self) -> None:
        """Wait until everything given is acknowledged."""
        self._send()
        self._courier.flush()

    def _send(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        whole = InteractionBatch.concatenated(waiting)
        whole = whole.take(np.argsort(whole.event_time_ms, kind="stable"))
        count_interactions(len(whole))
        rows_max = min(_ROWS_MAX, max(1, (self._bytes_max - _NAMES_BYTES) // self._row_bytes(whole)))
        for side in self._sides:
            for partition, rows in _by_partition(whole, side, self._topic.partitions, rows_max):
                self._courier.send(partition, encode_interactions(whole.take(rows, side)))

    def _row_bytes(self, batch: InteractionBatch) -> int:
        return _ROW_BYTES + _VALUE_BYTES * len(batch.sources)

    def close(self) -> None:
        """Close the topic; what was not flushed belongs to failed work."""
        self._courier.close()
        self._topic.close()


def _by_partition(
    whole: InteractionBatch, side: str, partitions: int, rows_max: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield partitions, each with the rows of a message for it; the rows of an entity are in one, in their order."""
    keys = whole.user if side == "user" else whole.item
    partition_of = (keys % np.uint64(partitions)).astype(np.int64)
    order = np.argsort(partition_of, kind="stable")
    bounds = np.searchsorted(partition_of[order], np.arange(partitions + 1))
    for partition in range(partitions):
        begin, end = int(bounds[partition]), int(bounds[partition + 1])
        for at in range(begin, end, rows_max):
            yield partition, order[at : min(at + rows_max, end)]

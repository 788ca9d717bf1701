"""ItemFeed: what a trainer tells its library: items of steps that were learned, and those in the topic of items."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET, UnsetType

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import PositionLost, TopicMissing, TopicReplaced
from streamlearn.features import FeatureSpec
from streamlearn.library.columns import columns_of
from streamlearn.library.item_decoder import ItemDecoder
from streamlearn.library.items import ItemUpdates, LibraryCut
from streamlearn.library.library import Library
from streamlearn.publisher.case import Check
from streamlearn.publisher.retrieval_hits import RetrievalHits
from streamlearn.resource import Resource
from streamlearn.samples.item_ids import ItemIds
from streamlearn.telemetry import counter, gauge
from streamlearn.topics import Position as TopicPosition
from streamlearn.topics import Records, Topic
from streamlearn.trainer.columns import StepColumns
from streamlearn.trainer.quarantine import Quarantine
from streamlearn.trainer.towers.item_vectors import Tower
from streamlearn.versions import Chain
from streamlearn.versions.format.manifest import Position, RetrievalRecord

if TYPE_CHECKING:
    from streamlearn.trainer.towers.version_hits import VersionHits

__all__ = ["ItemFeed", "learn_shown"]

_LOG = logging.getLogger("streamlearn.trainer.ItemFeed")
# What is read at most before a version while learning waits; the rest is read before the next one.
_POLL_BYTES, _POLL_S = 16 << 20, 0.5
_READ_RECORDS, _READ_BYTES = 4_096, 1 << 20
_END_WAIT_MS = 1_000


class ItemFeed(Resource):
    """Feeds a library. Only `learn` may run beside the other methods."""

    def __init__(self, folder: AppFolder, topic: Topic, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.library = Library(folder.app)
        self._spec, self._topic, self._clock = folder.app.features, topic, clock
        self._decoder, self._quarantine = ItemDecoder(folder, clock=clock), Quarantine.of(folder)
        self._reader = topic.reader()
        self._next: dict[int, int] = {}  # by partition, the next offset
        self._epochs: dict[int, int] = {}  # by partition, Kafka's leader epoch of the record before it
        self._tower: Tower | None = None
        self._record: RetrievalRecord | UnsetType = UNSET
        self._hits: VersionHits | None = None
        self._size = gauge("trainer", "library", "items", "Items in the library")
        self._records = counter("trainer", "item_records", "Records of items by outcome", labels=["outcome"])

    @classmethod
    def open(cls, folder: AppFolder, *, clock: Clock = SYSTEM_CLOCK) -> ItemFeed:
        """Open the topic of items of an application; raises TopicMissing before it exists."""
        try:
            return cls(folder, folder.open_topic("items"), clock=clock)
        except TopicMissing as error:
            help = "`streamlearn topics APP --create 4` creates the topics that are missing"
            raise TopicMissing(error.message, help=help) from None

    def close(self) -> None:
        """Close the topic."""
        self._reader.close()
        self._topic.close()

    @property
    def positions(self) -> tuple[Position, ...]:
        """The offsets at which items continue, as a version keeps them."""
        of_topic = {"topic": self._topic.url, "topic_id": self._topic.topic_id}
        return tuple(
            Position(partition=partition, offset=offset, leader_epoch=self._epochs[partition], **of_topic)
            for partition, offset in sorted(self._next.items())
        )

    def retrieve_by(self, tower: Tower, record: RetrievalRecord, hits: VersionHits) -> None:
        """Let versions have the vectors of items that a tower makes, this record, and hit rates."""
        self._tower, self._record, self._hits = tower, record, hits

    @property
    def checks(self) -> tuple[Check, ...]:
        """What the judge of versions checks beside ranking."""
        return () if self._hits is None else (RetrievalHits(self._hits),)

    def learn(self, columns: StepColumns) -> None:
        """Take the items and the positives of a step that was learned."""
        learn_shown(self.library, self._spec, columns)
        if self._hits is not None:
            self._hits.learn(columns)

    def poll(self) -> None:
        """Take what has come to the topic, as much as a version may wait for."""
        left, deadline_s = _POLL_BYTES, self._clock.monotonic_s() + _POLL_S
        while left > 0 and self._clock.monotonic_s() < deadline_s:
            batches = self._read(self._next, 0)
            if not any(map(len, batches)):
                return
            left -= sum(len(value or b"") for records in batches for value in records.values)

    def catch_up(self) -> None:
        """Take all that is in the topic now."""
        ends = {partition: self._reader.end(partition) for partition in self._next}
        while wanted := {partition: offset for partition, offset in self._next.items() if offset < ends[partition]}:
            self._read(wanted, _END_WAIT_MS)

    def note(self) -> LibraryCut:
        """Take what has come, and return what changed since the newest committed version."""
        self.poll()
        cut = self.library.cut()
        self._size.set(cut.size)
        if self._tower is None or self._hits is None:
            return cut
        vectors, hits = self._hits.vectors.note(self._tower, self.library.view(), cut.upserted), self._hits.note()

        def committed() -> None:
            cut.committed()
            vectors.committed()

        return replace(
            cut, vectors=vectors.tensors, record=self._record, committed=committed,
            metrics=lambda: vectors.metrics | hits(),
        )  # fmt: skip

    def restore(self, chain: Chain | None) -> None:
        """Restore the library of a version, and continue where it ends in the topic.

        If that place is gone, the topic is read from its beginning: it has the newest record of each item, and records
        that come again change nothing.
        """
        self.library.restore(chain)
        if self._tower is not None and self._hits is not None:
            self._hits.vectors.restore(chain, self._tower)
            self._hits.restart()
        known = () if chain is None else chain.manifest.positions
        mine = {entry.partition: entry for entry in known if entry.topic_id == self._topic.topic_id}
        for partition in range(self._topic.partitions):
            entry = mine.get(partition)
            self._next[partition], self._epochs[partition] = self._reader.earliest(partition), -1
            if entry is None:
                continue
            try:
                self._reader.check(TopicPosition(entry.topic_id, partition, entry.offset, entry.leader_epoch))
            except (PositionLost, TopicReplaced) as error:
                _LOG.warning("partition %d of the items is read from its beginning: %s", partition, error.message)
                continue
            self._next[partition], self._epochs[partition] = entry.offset, entry.leader_epoch

    def _read(self, wanted: Mapping[int, int], wait_ms: int) -> list[Records]:
        batches = self._reader.read_many(
            dict(wanted), max_records=_READ_RECORDS, max_bytes=_READ_BYTES, wait_ms=wait_ms
        )
        for records in batches:
            self._take(records)
        return batches

    def _take(self, records: Records) -> None:
        updates, failures = self._decoder.decode(records)
        for statements in updates:
            self.library.apply(statements)
        partition = records.partition
        self._next[partition] = records.next_offset
        if len(records):
            self._epochs[partition] = records.leader_epoch
        self._records.labels("taken").inc(len(records) - len(failures))
        self._records.labels("refused").inc(len(failures))
        for index, _ in failures:
            offset = int(records.offsets[index])
            self._quarantine.add(f"item-{partition}-{offset}.avro", records.values[index] or records.keys[index] or b"")
        if failures:
            first = int(records.offsets[failures[0][0]])
            message = "%d records of items are skipped and put into quarantine; the first, partition %d, offset %d: %s"
            _LOG.error(message, len(failures), partition, first, failures[0][1])


def learn_shown(library: Library, spec: FeatureSpec, columns: StepColumns) -> None:
    """Take the items that a step shows into a library, and let items go whose time is over."""
    pieces = [(piece.batch.item_ids, piece.rows) for piece in columns.step.pieces]
    ids = ItemIds.joined([given.take(rows) for given, rows in pieces if given is not None])
    if ids is None:
        return
    updates = ItemUpdates(
        key=columns.item.slots[spec.item_id].keys,
        ids=ids,
        event_ms=columns.event_time_ms,
        origin=columns.identity >> np.uint64(1),
        is_removal=np.zeros(len(columns), np.bool_),
        features=columns_of(spec, columns.item),
    )
    library.apply(updates)
    clock_ms = columns.step.reached.clock_ms
    if clock_ms is not None:
        library.expire(clock_ms)

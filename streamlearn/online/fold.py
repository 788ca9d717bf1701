"""Fold: takes the interactions of one partition into the states of their users, or of their items."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamlearn.clock import SYSTEM_CLOCK
from streamlearn.errors import DataError
from streamlearn.features import Entity
from streamlearn.interactions import InteractionBatch, decode_interactions
from streamlearn.interactions.evaluation import fold_columns, kind_numbers
from streamlearn.native import native
from streamlearn.online.state_store import Standing, StateGroup, StatePlace, StateStore
from streamlearn.settings.features import FeatureSettings
from streamlearn.topics import Reader, Records
from streamlearn.topics.topic import replaced

__all__ = ["PLACE_BITS", "Fold", "FoldCounts"]

_LOG = logging.getLogger(__name__)

# What the native code says of a state that the store does not have.
_MISSING = 1
# A position in the log has the offset of its message and its place within.
PLACE_BITS = 20
# A step reads more while there is more, so that a state with many interactions is read and written once for all of
# them. Its time, its states, and their bytes (each counted as the largest possible) are bounded.
_READ_BYTES, _READ_BYTES_MAX = 256 << 10, 32 << 20
_STATES_MAX, _STATES_BYTES_MAX = 1 << 16, 256 << 20
_STEP_S = 1.0
# Keys of one call of the store, which has a deadline.
_KEYS_MAX = 4_096


@dataclass(slots=True)
class FoldCounts:
    """Counts of a fold since it began.

    Attributes:
        folded: Interactions that were folded.
        repeated: Those that had come before.
        unknown: Those without a user.
        left_out: Those of times that a rebuild leaves out.
        messages_bad: Messages that could not be read.
        states_bad: Stored states that could not be read; they began again from nothing.
    """

    folded: int = 0
    repeated: int = 0
    unknown: int = 0
    left_out: int = 0
    messages_bad: int = 0
    states_bad: int = 0


class Fold:
    """Folds one partition for one entity. For one thread.

    Guaranteed: each interaction counts once, whatever process was killed, for as long as the log keeps interactions
    from `Standing.seen_from` on. States and position change together.

    `repeats_max` interactions are remembered, so that one which comes again does not count twice. Interactions of the
    event times `without`, from the first up to the second, are left out.
    """

    def __init__(
        self,
        store: StateStore,
        entity: Entity,
        group: StateGroup,
        reader: Reader,
        partition: int,
        *,
        repeats_max: int,
        settings: FeatureSettings,
        without: tuple[int, int] = (0, 0),
    ) -> None:
        self._without = without
        self._store, self.entity, self.group, self._reader = store, entity, group, reader
        self.partition, self._settings = partition, settings
        self._features = native.Features(entity.definition)
        self._read_bytes = _READ_BYTES
        self._states_max = min(_STATES_MAX, _STATES_BYTES_MAX // self._features.bytes_max)
        self._repeats, self._repeats_max = native.Repeats(repeats_max), repeats_max
        # Messages that are needed to tell what comes again: their offsets, and numbers of new interactions.
        self._seen: deque[tuple[int, int]] = deque()
        self._seen_rows = 0
        self._state_ms = max(round(1_000 * settings.keep_s), entity.longest_window_ms)
        self.counts = FoldCounts()
        # Where the store will be and the states that change, until they are written.
        self._unwritten: tuple[Standing, dict[int, bytes]] | None = None
        # As the store has it.
        self._stored = store.claim(group, partition)
        self.standing = self._begin(self._stored)

    def step(self, wait_ms: int = 0) -> bool:
        """Fold what comes next, a part at a time; return whether anything came in time.

        Raises:
            FoldOver: Another process folds this partition now.
            StatesLost: The store has lost what was written: make another fold, which goes on from what it holds.
            StatesUnreachable: The store does not answer; the next call goes on.
            TopicError: The topic cannot be read.
        """
        began_s, next_bytes = SYSTEM_CLOCK.monotonic_s(), _READ_BYTES
        if self._unwritten is None:
            at = self.standing.position
            # Little again, should this step fail.
            read_bytes, self._read_bytes = self._read_bytes, _READ_BYTES
            records = self._reader.read(self.partition, at, max_bytes=read_bytes, wait_ms=wait_ms)
            if records.next_offset == at:
                return False
            is_full = sum(len(value or b"") for value in records.values) > read_bytes // 2
            next_bytes = min(2 * read_bytes, _READ_BYTES_MAX) if is_full else read_bytes
            decoded, keys, next_offset = self._fitting(self._decoded(records), records.next_offset)
            # The last that may fail before anything is noted.
            known = self._states(keys)
            states, newest_ms = self._fold(*self._new(decoded), known)
            standing = self._moved(next_offset, max(newest_ms, self.standing.newest_ms))
            self._unwritten = standing, states
        standing, states = self._unwritten
        self._store.write(self.group, self.partition, (self._stored, standing), states, self._state_ms)
        self._unwritten, self._stored = None, standing
        self.standing = standing
        taken_s = SYSTEM_CLOCK.monotonic_s() - began_s
        self._read_bytes = max(next_bytes // 4, _READ_BYTES) if taken_s > _STEP_S else next_bytes
        return True

    def check(self) -> None:
        """Check that the store still holds what this fold wrote; raises as `step`."""
        if self._unwritten is None:
            self._store.write(self.group, self.partition, (self._stored, self._stored), {}, self._state_ms)

    @property
    def is_first(self) -> bool:
        """Whether nothing was folded before this fold, and there is something to fold."""
        return not self._stored.topic_id and self.behind > 0

    @property
    def behind(self) -> int:
        """The number of messages that are not folded yet."""
        return max(0, self._reader.end(self.partition) - self.standing.position)

    def _begin(self, standing: Standing) -> Standing:
        """Read again what is needed to tell which interactions come again; return where to begin."""
        if standing.topic_id and standing.topic_id != self._reader.topic_id:
            raise replaced(self._reader.url, standing.topic_id, self._reader.topic_id)
        earliest = self._reader.earliest(self.partition)
        if not standing.topic_id:
            standing = replace(standing, position=earliest, seen_from=earliest, topic_id=self._reader.topic_id)
        if standing.position < earliest:
            message = "%s partition %d: interactions from %d to %d were deleted before they were folded"
            _LOG.error(message, self._reader.url, self.partition, standing.position, earliest)
            standing = replace(standing, position=earliest)
        offset = max(standing.seen_from, earliest)
        while offset < standing.position:
            records = self._reader.read(self.partition, offset, max_bytes=_READ_BYTES, wait_ms=1_000)
            for at, batch in self._decoded(records):
                if at < standing.position:
                    self._note(at, batch)
            offset = max(records.next_offset, offset)
        return standing

    def _decoded(self, records: Records) -> list[tuple[int, InteractionBatch]]:
        """Return the messages that are of this side, with their offsets."""
        found = []
        for offset, value in zip(records.offsets.tolist(), records.values, strict=True):
            try:
                batch = decode_interactions(value or b"")
            except DataError:
                self.counts.messages_bad += 1
                continue
            if batch.side == self.entity.side and len(batch):
                found.append((offset, batch))
        return found

    def _fitting(
        self, decoded: list[tuple[int, InteractionBatch]], next_offset: int
    ) -> tuple[list[tuple[int, InteractionBatch]], set[int], int]:
        """Return the messages of one step, whose states fit into memory; their entities; and the offset after them."""
        keys: set[int] = set()
        for number, (offset, batch) in enumerate(decoded):
            keys.update(batch.entity.tolist())
            if len(keys) > self._states_max and number + 1 < len(decoded):
                return decoded[: number + 1], keys, offset + 1
        return decoded, keys, next_offset

    def _note(self, offset: int, batch: InteractionBatch) -> npt.NDArray[np.bool_]:
        """Return which interactions of a message are new."""
        is_new = self._repeats.note(np.ascontiguousarray(batch.identity, np.uint64))
        count = int(np.count_nonzero(is_new))
        self._seen.append((offset, count))
        self._seen_rows += count
        return is_new

    def _new(
        self, decoded: Sequence[tuple[int, InteractionBatch]]
    ) -> tuple[list[InteractionBatch], list[npt.NDArray[np.int64]]]:
        """Return the interactions that are to be folded, with their positions."""
        batches, positions = [], []
        for offset, batch in decoded:
            is_new = self._note(offset, batch)
            of_kind = kind_numbers(self.entity, batch) >= 0
            is_known = batch.entity != 0
            begin_ms, end_ms = self._without
            is_out = (batch.event_time_ms >= begin_ms) & (batch.event_time_ms < end_ms)
            rows = np.flatnonzero(is_new & of_kind & is_known & ~is_out)
            self.counts.folded += len(rows)
            self.counts.repeated += int(np.count_nonzero(~is_new))
            self.counts.unknown += int(np.count_nonzero(~is_known))
            self.counts.left_out += int(np.count_nonzero(is_out))
            if len(rows):
                batches.append(batch.take(rows))
                positions.append((offset << PLACE_BITS) + rows)
        return batches, positions

    def _fold(
        self,
        batches: Sequence[InteractionBatch],
        positions: Sequence[npt.NDArray[np.int64]],
        known: Mapping[int, bytes | None],
    ) -> tuple[dict[int, bytes], int]:
        """Return the new states of the entities of some interactions, and the newest event time."""
        if not batches:
            return {}, 0
        keys, numbers = np.unique(np.concatenate([batch.entity for batch in batches]), return_inverse=True)
        named: list[int] = keys.tolist()
        times, identities, *others = fold_columns(self.entity, batches)
        read, states, _ = self._features.fold(
            [known[key] for key in named],
            (
                numbers.astype(np.uint32),
                times,
                identities,
                np.concatenate(positions),
                *others[:-1],
                others[-1].reshape(-1),
            ),
        )
        self.counts.states_bad += int(np.count_nonzero(read > _MISSING))
        return dict(zip(named, states, strict=True)), int(times.max())

    def _states(self, keys: Set[int]) -> dict[int, bytes | None]:
        """Return the states of entities. They are read each time, so that one which is removed is gone."""
        named, found = list(keys), dict[int, bytes | None]()
        for begin in range(0, len(named), _KEYS_MAX):
            part = named[begin : begin + _KEYS_MAX]
            found |= zip(part, self._store.read([StatePlace(self.group, key) for key in part]), strict=True)
        return found

    def _moved(self, position: int, newest_ms: int) -> Standing:
        while self._seen and self._seen_rows - self._seen[0][1] >= self._repeats_max:
            self._seen_rows -= self._seen.popleft()[1]
        seen_from = self._seen[0][0] if self._seen else position
        return replace(self.standing, position=position, seen_from=seen_from, newest_ms=newest_ms)

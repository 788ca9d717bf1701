"""Checks that computed columns were served as their interactions say: each is folded and evaluated again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.errors import DataError
from streamlearn.events import EventColumns, EventDecoder
from streamlearn.events.columns import ids_of
from streamlearn.features import Dense, Entity, FeatureSpec, Slot, keys_of
from streamlearn.features.column_values import row_values
from streamlearn.features.entity import states_id
from streamlearn.interactions import InteractionBatch, decode_interactions
from streamlearn.interactions.evaluation import evaluated, kind_numbers
from streamlearn.native import native
from streamlearn.online.fold import PLACE_BITS
from streamlearn.online.fold_loop import computed_entities
from streamlearn.topics import Reader

__all__ = ["ServedCheck", "check_served"]

_READ_BYTES, _WAIT_MS = 4 << 20, 1_000
_EXAMPLES_MAX = 5


@dataclass
class ServedCheck:
    """The outcome of a check.

    Attributes:
        impressions: Those that were read.
        values: Values that were computed again: one for each column of each user and item.
        differences: Values that were served otherwise.
        unavailable: Impressions that were served while the store was away, with defaults.
        sent: Impressions whose columns callers sent.
        other: Impressions that another application served, or this one with other computed columns.
        unchecked: Values whose interactions the topic does not have from the beginning.
        examples: The first differences.
    """

    impressions: int = 0
    values: int = 0
    differences: int = 0
    unavailable: int = 0
    sent: int = 0
    other: int = 0
    unchecked: int = 0
    examples: list[str] = field(default_factory=list)


class _Wanted:
    """The users or the items of impressions: where each was evaluated, and what was served."""

    def __init__(self, spec: FeatureSpec, entity: Entity, states: int) -> None:
        self.entity, self._slot, self._states = entity, spec.slot(entity.slot), states
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._served: dict[str, list[Any]] = {column.name: [] for column in entity.columns}

    def add(self, found: EventColumns) -> None:
        """Take what impressions say."""
        columns, is_user = found.columns, self.entity.side == "user"
        path = "user" if is_user else "items"
        at_ms, has_time = columns["served_at_ms"], (columns["served_at_ms?"] == 1) & _is_of(columns, self._states)
        positions = "served_position" if is_user else "items.served_position"
        if not is_user:
            counts = np.diff(columns["items[]"])
            at_ms, has_time = np.repeat(at_ms, counts), np.repeat(has_time, counts)
        rows = np.flatnonzero(has_time & (columns[f"{positions}?"] == 1))
        keys = keys_of(self._slot, ids_of(columns, f"{path}.{self._slot.name}"))
        self._parts.append((keys[rows], columns[positions][rows], at_ms[rows]))
        for column in self.entity.columns:
            values = _values_of(columns, f"{path}.{column.name}")
            self._served[column.name] += [values[row] for row in rows.tolist()]

    def check(self, reader: Reader, partitions: int, repeats_max: int, result: ServedCheck) -> None:
        """Fold the interactions up to each position, and compare."""
        if not self._parts:
            return
        keys, positions, at_ms = map(np.concatenate, zip(*self._parts, strict=True))
        for partition in range(partitions):
            here = np.flatnonzero(keys % np.uint64(partitions) == partition)
            if len(here) and reader.earliest(partition):
                result.unchecked += len(here) * len(self.entity.columns)
            elif len(here):
                until = int(positions[here].max()) >> PLACE_BITS
                log = _Log(self.entity, reader, partition, repeats_max).of(set(keys[here].tolist()), until)
                asked = keys[here], at_ms[here], positions[here]
                found = evaluated(self.entity, native.MemoryStates(self.entity.definition), log, asked)
                for column, arrays in zip(self.entity.columns, found, strict=True):
                    self._compare(column, row_values(arrays), here.tolist(), result)

    def _compare(self, column: Slot | Dense, values: list[Any], rows: list[int], result: ServedCheck) -> None:
        served = self._served[column.name]
        result.values += len(rows)
        for row, value in zip(rows, values, strict=True):
            if served[row] != value:
                result.differences += 1
                if len(result.examples) < _EXAMPLES_MAX:
                    text = f"{self.entity.side} column {column.name}: served {served[row]}, interactions say {value}"
                    result.examples.append(text)


class _Log:
    """The interactions of one partition, as folding takes them."""

    def __init__(self, entity: Entity, reader: Reader, partition: int, repeats_max: int) -> None:
        self._entity, self._reader, self._partition = entity, reader, partition
        self._repeats = native.Repeats(repeats_max)

    def of(self, keys: set[int], until: int) -> tuple[list[InteractionBatch], npt.NDArray[np.int64]]:
        """Return those of some entities, up to an offset, and their positions."""
        batches, positions = [InteractionBatch.empty()], [np.zeros(0, np.int64)]
        wanted = np.array(sorted(keys), np.uint64)
        for offset, batch in self._messages(until):
            is_new = self._repeats.note(np.ascontiguousarray(batch.identity, np.uint64))
            of_kind = kind_numbers(self._entity, batch) >= 0
            rows = np.flatnonzero(is_new & of_kind & np.isin(batch.entity, wanted))
            if len(rows):
                batches.append(batch.take(rows))
                positions.append((offset << PLACE_BITS) + rows)
        return batches, np.concatenate(positions)

    def _messages(self, until: int) -> Iterator[tuple[int, InteractionBatch]]:
        offset = self._reader.earliest(self._partition)
        while offset <= until:
            records = self._reader.read(self._partition, offset, max_bytes=_READ_BYTES, wait_ms=_WAIT_MS)
            for at, value in zip(records.offsets.tolist(), records.values, strict=True):
                try:
                    batch = decode_interactions(value or b"")
                except DataError:
                    continue  # as folding does
                if at <= until and batch.side == self._entity.side and len(batch):
                    yield at, batch
            if records.next_offset == offset:
                return
            offset = records.next_offset


def check_served(folder: AppFolder, since_ms: int) -> ServedCheck:
    """Check the impressions since an event time against the topic of interactions.

    Differences are 0, whatever process was killed. Impressions differ whose states were made otherwise: by a rebuild
    without some interactions, of another definition, or after a state had expired or was removed.

    Raises:
        UsageError: The application has no computed columns.
        TopicError: A topic cannot be read.
    """
    entities, result = computed_entities(folder), ServedCheck()
    states = states_id(folder.app.samples_name, entities)
    wanted = [_Wanted(folder.app.features, entity, states) for entity in entities]
    decoder = EventDecoder.of(folder)
    with folder.open_topic("impressions") as topic, topic.reader() as reader:
        for partition in range(topic.partitions):
            offset, end = reader.offset_for_time(partition, since_ms), reader.end(partition)
            while offset < end:
                records = reader.read(partition, offset, max_bytes=_READ_BYTES, wait_ms=_WAIT_MS)
                _take(decoder.decode(records.values).impressions, wanted, states, result)
                if records.next_offset == offset:
                    break
                offset = records.next_offset
    with folder.open_topic("interactions") as topic, topic.reader() as reader:
        for one in wanted:
            one.check(reader, topic.partitions, folder.settings.features.repeats_max, result)
    return result


def _take(found: EventColumns, wanted: Sequence[_Wanted], states: int, result: ServedCheck) -> None:
    result.impressions += len(found)
    outcomes = found.texts("served_features")
    result.unavailable += outcomes.count("unavailable")
    result.sent += outcomes.count("")
    is_served = found.columns["served_states?"] == 1
    result.other += int(np.count_nonzero(is_served & ~_is_of(found.columns, states)))
    if len(found):
        for one in wanted:
            one.add(found)


def _is_of(columns: Any, states: int) -> npt.NDArray[np.bool_]:
    """Return which impressions were served from states with this number."""
    is_of: npt.NDArray[np.bool_] = (columns["served_states?"] == 1) & (columns["served_states"] == states)
    return is_of


def _values_of(columns: Any, path: str) -> list[Any]:
    """Return the value of each row, as events carry it."""
    return row_values((columns[path], columns.get(f"{path}[]")))

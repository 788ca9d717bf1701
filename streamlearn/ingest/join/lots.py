"""LotCutter: decodes a blob's records once and cuts them into the events of each lot, in arrays.

Unusable records and events become failures with their origins. It knows neither topics nor runners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.events import EventColumns, EventDecoder, Failure, Origin, take_rows
from streamlearn.events.span import Spans, joined_spans
from streamlearn.features import keys_of
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.ingest.join.lot_events import DTYPES, LotEvents
from streamlearn.ingest.reading.blob import Blob, Section
from streamlearn.native import native
from streamlearn.schemas import action_schema, impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES

__all__ = ["Cut", "LotCutter", "lots_of"]

Int64s = npt.NDArray[np.int64]
_SALT = native.slot_salt("streamlearn.lot")
_NO_CODE = 255
_IMPRESSION, _ACTION = 0, 1
_TIME_MS_MAX = (1 << 52) - 1  # the latest that a join takes


@dataclass(frozen=True)
class Cut:
    """The events of a blob.

    Attributes:
        lots: The events of each lot that has some; of every lot if the blob opens or closes a reader.
        failures: Unusable records and events, with their origins.
        before_start: Impressions from before reading begins, whose samples are acknowledged.
        of_no_label: Actions without a label.
    """

    lots: tuple[LotEvents, ...]
    failures: tuple[tuple[Failure, Origin], ...]
    before_start: int
    of_no_label: int

    @property
    def events(self) -> int:
        """Events that could be read."""
        return sum(map(len, self.lots)) + self.before_start + self.of_no_label


def lots_of(offsets: npt.NDArray[np.int32], ids: npt.NDArray[np.uint8], lots_count: int) -> Int64s:
    """Return the lot of each request; int32[n+1] `offsets` say where each request id begins in `ids`.

    Examples:
        >>> lots_of(np.array([0, 2, 4, 6], np.int32), np.frombuffer(b"q1q2q1", np.uint8), 16).tolist()
        [0, 11, 0]
    """
    return (native.hash_strings(offsets, ids, _SALT) % np.uint64(lots_count)).astype(np.int64)


class LotCutter:
    """Cuts blobs of one application, without impressions before `start_ms`, where reading begins.

    `topics` has name and id of the impressions and the actions topic, the origins of dead letters.
    """

    def __init__(
        self, folder: AppFolder, lots_count: int, topics: Sequence[tuple[str, str]], start_ms: int | None
    ) -> None:
        self._decoder = EventDecoder.of(folder)
        self._lots_count, self._topics = lots_count, tuple(topics)
        self._start_ms = start_ms
        self._item_slot = folder.app.features.slot(folder.app.features.item_id)
        self._codes = {action.encode(): code for code, action in enumerate(folder.app.actions)}
        schemas = (impression_schema(folder.app), action_schema(folder.app))
        self._current = np.uint64(schemas[_IMPRESSION].fingerprint)
        path = f"items.{self._item_slot.name}"
        # The other columns of an impression travel in its bytes.
        self._needed = {"request_id", "request_id$", "event_time_ms", "items[]", path, f"{path}$"}
        self._writers = [(native.AvroPlan(schema.text, schema.text), schema.prefix) for schema in schemas]

    def cut(self, blob: Blob) -> Cut:
        """Cut one blob."""
        spans, unreadable = self._decoder.tell_apart(blob.impressions.values)
        shown, done = self._decoder.decode_spans(spans), self._decoder.decode(blob.actions.values)
        impressions, impossible_impressions = self._possible(_IMPRESSION, blob.impressions, shown.impressions)
        actions, impossible_actions = self._possible(_ACTION, blob.actions, done.actions)
        misplaced = self._misplaced(_ACTION, shown.actions), self._misplaced(_IMPRESSION, done.impressions)
        failures = [(_IMPRESSION, failure) for failure in (*unreadable, *shown.failures)]
        failures += [(_ACTION, failure) for failure in done.failures]
        failures += [(topic, failure) for topic in (_IMPRESSION, _ACTION) for failure in misplaced[topic]]
        failures += [(_IMPRESSION, failure) for failure in impossible_impressions]
        failures += [(_ACTION, failure) for failure in impossible_actions]
        impressions, before_start = self._after_start(impressions)
        codes = self._codes_of(actions)
        known = np.flatnonzero(codes != _NO_CODE)
        of_no_label = len(actions) - len(known)
        if of_no_label:
            actions, codes = _take(actions, known), codes[known]
        impressions_of = self._impressions(blob, impressions, spans)
        actions_of = self._actions(blob, actions, codes)
        is_edge = blob.opens or blob.closes
        lots = range(self._lots_count) if is_edge else sorted(impressions_of.keys() | actions_of.keys())
        times = (blob.partition, blob.closes, blob.watermark_ms)
        events = []
        for lot in lots:
            columns = impressions_of.get(lot, _NO_IMPRESSIONS), actions_of.get(lot, _NO_ACTIONS)
            events.append(LotEvents(lot, *times, *columns, blob.after_ms))
        letters = tuple((failure, self._origin(blob, topic, failure.record_index)) for topic, failure in failures)
        return Cut(tuple(events), letters, before_start, of_no_label)

    def _possible(self, kind: int, section: Section, events: EventColumns) -> tuple[EventColumns, list[Failure]]:
        """Return events with a possible time, and the others as failures."""
        if not len(events):
            return events, []
        times = events.columns["event_time_ms"]
        # In event time, a partition's first record may have any time: there is no other clock yet.
        limits = np.minimum(section.limits_ms[events.record_index], _TIME_MS_MAX)
        is_impossible = times > limits
        if not is_impossible.any():
            return events, []
        rows = np.flatnonzero(is_impossible)
        details = [
            f"event time {time_ms} ms, above the highest possible time of {limit_ms} ms"
            for time_ms, limit_ms in zip(times[rows].tolist(), limits[rows].tolist(), strict=True)
        ]
        failures = self._failures(kind, _take(events, rows), "impossible_time", details)
        return _take(events, np.flatnonzero(~is_impossible)), failures

    def _misplaced(self, kind: int, events: EventColumns) -> list[Failure]:
        if not len(events):
            return []
        what = ("an impression in the actions topic", "an action in the impressions topic")[kind]
        return self._failures(kind, events, "other", [what] * len(events))

    def _failures(self, kind: int, events: EventColumns, reason: str, details: Sequence[str]) -> list[Failure]:
        """Return events as failures, each with its own bytes, not those of its record."""
        data, at = self._encode(kind, events)
        indexes = zip(events.record_index.tolist(), events.event_index.tolist(), details, strict=True)
        return [
            Failure(record, event, reason, detail, data[at[row] : at[row + 1]].tobytes())
            for row, (record, event, detail) in enumerate(indexes)
        ]

    def _encode(self, kind: int, events: EventColumns) -> tuple[npt.NDArray[np.uint8], Int64s]:
        plan, prefix = self._writers[kind]
        data, at = plan.encode(events.columns, len(events), prefix)
        return data, at.astype(np.int64)

    def _after_start(self, impressions: EventColumns) -> tuple[EventColumns, int]:
        if self._start_ms is None or not len(impressions):
            return impressions, 0
        needed = np.flatnonzero(impressions.columns["event_time_ms"] >= self._start_ms)
        left_out = len(impressions) - len(needed)
        return (_take(impressions, needed) if left_out else impressions), left_out

    def _codes_of(self, actions: EventColumns) -> npt.NDArray[np.uint8]:
        """Return the code of each action; each distinct name is looked up once."""
        names, offsets = actions.columns["action"], actions.columns["action$"]
        hashes = native.hash_strings(offsets, names, _SALT)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        distinct = (names[offsets[row] : offsets[row + 1]].tobytes() for row in first.tolist())
        return np.array([self._codes.get(name, _NO_CODE) for name in distinct], np.uint8)[inverse]

    def _by_lot(self, events: EventColumns) -> tuple[Int64s, list[tuple[int, int, int]]]:
        """Return the order of events by lot, and each lot's (lot, begin, end) in that order."""
        lots = lots_of(events.columns["request_id$"], events.columns["request_id"], self._lots_count)
        order = np.argsort(lots.astype(np.uint16), kind="stable")  # of so few bits, NumPy sorts by radix
        lots = lots[order]
        cuts = [0, *(np.flatnonzero(np.diff(lots)) + 1).tolist(), len(lots)]
        return order, [(int(lots[begin]), begin, stop) for begin, stop in pairwise(cuts)]

    def _payloads(
        self, events: EventColumns, order: Int64s, spans: Sequence[Spans]
    ) -> tuple[npt.NDArray[np.uint8], Int64s]:
        """Return impressions in some order as bytes of the current schema: unchanged if all were written by it."""
        joined = joined_spans(spans)
        at = joined.places(events.record_index[order], events.event_index[order])
        is_current = (joined.fingerprints[at] == self._current) & (
            joined.starts[at] - joined.begins[at] == PREFIX_BYTES
        )
        if not is_current.all():
            return self._encode(_IMPRESSION, _take(events, order))
        edges = np.stack((joined.begins, joined.ends), axis=1).reshape(-1)
        data, offsets = native.take_spans(joined.buffer, edges, 2 * at)
        return data, offsets.astype(np.int64)

    def _impressions(self, blob: Blob, events: EventColumns, spans: Sequence[Spans]) -> dict[int, ImpressionColumns]:
        if not len(events):
            return {}
        order, bounds = self._by_lot(events)
        payloads, payloads_at = self._payloads(events, order, spans)
        needed = {name: column for name, column in events.columns.items() if name in self._needed}
        events = _take(replace(events, columns=needed), order)
        columns = events.columns
        items = self._item_keys(columns, f"items.{self._item_slot.name}")
        items_at, impressions = columns["items[]"].astype(np.int64), {}
        for lot, begin, stop, shared in _shared_columns(events, blob.partition, blob.impressions, bounds):
            cut = slice(begin, stop + 1)
            impressions[lot] = ImpressionColumns(
                *shared,
                first_item=events.item_base[begin:stop],
                items=items[items_at[begin] : items_at[stop]],
                items_at=items_at[cut] - items_at[begin],
                payload=payloads[payloads_at[begin] : payloads_at[stop]],
                payload_at=payloads_at[cut] - payloads_at[begin],
            )
        return impressions

    def _actions(self, blob: Blob, events: EventColumns, codes: npt.NDArray[np.uint8]) -> dict[int, ActionColumns]:
        if not len(events):
            return {}
        order, bounds = self._by_lot(events)
        events, codes = _take(events, order), codes[order]
        indexes, items = events.event_index, self._item_keys(events.columns, "item_id")
        weights, values, actions = events.columns["weight"], _values(events), {}
        for lot, begin, stop, shared in _shared_columns(events, blob.partition, blob.actions, bounds):
            rows = slice(begin, stop)
            actions[lot] = ActionColumns(*shared, indexes[rows], items[rows], codes[rows], weights[rows], values[rows])
        return actions

    def _item_keys(self, columns: Any, path: str) -> npt.NDArray[np.uint64]:
        return keys_of(self._item_slot, columns[path], offsets=columns.get(f"{path}$"))

    def _origin(self, blob: Blob, topic: int, record: int) -> Origin:
        section = (blob.impressions, blob.actions)[topic]
        name, topic_id = self._topics[topic]
        offset, timestamp_ms = int(section.offsets[record]), int(section.timestamps_ms[record])
        return Origin(name, topic_id, blob.partition, offset, timestamp_ms, section.keys[record])


def _shared_columns(
    events: EventColumns, partition: int, section: Section, bounds: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int, tuple[Any, Any, Any, Any, Any]]]:
    """Yield each lot's bounds, and the columns of its events that impressions and actions both begin with."""
    columns, offsets = events.columns, section.offsets[events.record_index]
    ids_at = columns["request_id$"].astype(np.int64)
    for lot, begin, stop in bounds:
        ids = columns["request_id"][ids_at[begin] : ids_at[stop]], ids_at[begin : stop + 1] - ids_at[begin]
        partitions = np.full(stop - begin, partition, np.int32)
        yield lot, begin, stop, (*ids, columns["event_time_ms"][begin:stop], partitions, offsets[begin:stop])


def _values(events: EventColumns) -> npt.NDArray[np.float32]:
    """Return the values of actions, NaN for those without one."""
    if "value" not in events.columns:
        return np.full(len(events), np.nan, np.float32)
    return np.where(events.columns["value?"] == 1, events.columns["value"], np.float32(np.nan))


def _take(events: EventColumns, rows: Int64s) -> EventColumns:
    return EventColumns(
        take_rows(events.columns, rows), events.record_index[rows], events.event_index[rows], events.item_base[rows]
    )


def _empty(kind: type, offsets: Sequence[str]) -> Any:
    """Return columns of no events; offsets have a single 0."""
    names = [field.name for field in fields(kind)]
    return kind(*(np.zeros(int(name in offsets), dtype) for name, dtype in zip(names, DTYPES[kind], strict=True)))


_NO_IMPRESSIONS: ImpressionColumns = _empty(ImpressionColumns, ("request_at", "items_at", "payload_at"))
_NO_ACTIONS: ActionColumns = _empty(ActionColumns, ("request_at",))

"""LotCutter: a blob's records decoded once and cut into the events of each lot, in arrays.

What cannot be used is set aside with its origin and the reason. It knows neither topics nor runners.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A blob cut up.

    Attributes:
        lots: The events of each lot that has some; of every lot, when the blob opens or closes a reader.
        failures: What could not be used, with where it came from.
        before_start: Impressions before T0, whose samples are acknowledged already.
        of_no_label: Actions that no label is made of.
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
    """The lot of each request.

    Args:
        offsets: int32[n+1]. Where each request id begins.
        ids: uint8. All of them, end to end.
        lots_count: How many lots there are.

    Examples:
        >>> lots_of(np.array([0, 2, 4, 6], np.int32), np.frombuffer(b"q1q2q1", np.uint8), 16).tolist()
        [0, 11, 0]
    """
    return (native.hash_strings(offsets, ids, _SALT) % np.uint64(lots_count)).astype(np.int64)


class LotCutter:
    """Cuts blobs of one application.

    Args:
        folder: The application.
        lots_count: How many lots there are.
        topics: Name and id of the impressions topic, then of the actions topic: where dead letters come from.
        start_ms: T0: impressions before it are left out. None: none are.
    """

    def __init__(
        self,
        folder: AppFolder,
        lots_count: int,
        topics: Sequence[tuple[str, str]],
        start_ms: int | None,
    ) -> None:
        self._decoder = EventDecoder.of(folder)
        self._lots_count, self._topics = lots_count, tuple(topics)
        self._start_ms = start_ms
        self._item_slot = folder.app.features.slot(folder.app.features.item_id)
        self._codes = {action.encode(): code for code, action in enumerate(folder.app.actions)}
        schemas = (impression_schema(folder.app), action_schema(folder.app))
        self._todays = np.uint64(schemas[_IMPRESSION].fingerprint)
        path = f"items.{self._item_slot.name}"
        # All else of an impression goes on within its bytes.
        self._needed = {"request_id", "request_id$", "event_time_ms", "items[]", path, f"{path}$"}
        self._writers = [(native.AvroPlan(one.text, one.text), one.prefix) for one in schemas]

    def cut(self, blob: Blob) -> Cut:
        """Cut one blob."""
        spans, untold = self._decoder.tell_apart(blob.impressions.values)
        shown, done = self._decoder.decode_spans(spans), self._decoder.decode(blob.actions.values)
        failures = [(0, one) for one in untold]
        failures += [(0, one) for one in shown.failures] + [(1, one) for one in done.failures]
        failures += [(0, one) for one in self._misplaced(_ACTION, shown.actions)]
        failures += [(1, one) for one in self._misplaced(_IMPRESSION, done.impressions)]
        impressions, future = self._possible(_IMPRESSION, blob.impressions, shown.impressions)
        failures += [(0, one) for one in future]
        actions, future = self._possible(_ACTION, blob.actions, done.actions)
        failures += [(1, one) for one in future]
        impressions, before_start = self._after_start(impressions)
        codes = self._codes_of(actions)
        known = np.flatnonzero(codes != _NO_CODE)
        of_no_label = len(actions) - len(known)
        if of_no_label:
            actions, codes = _take(actions, known), codes[known]
        found_impressions = self._impressions(blob, impressions, spans)
        found_actions = self._actions(blob, actions, codes)
        lots = (
            range(self._lots_count)
            if blob.opens or blob.closes
            else sorted(found_impressions.keys() | found_actions.keys())
        )
        cut = tuple(
            LotEvents(
                lot,
                blob.partition,
                blob.closes,
                blob.watermark_ms,
                found_impressions.get(lot, _NO_IMPRESSIONS),
                found_actions.get(lot, _NO_ACTIONS),
                blob.after_ms,
            )
            for lot in lots
        )
        letters = tuple((one, self._origin(blob, topic, one.record_index)) for topic, one in failures)
        return Cut(cut, letters, before_start, of_no_label)

    def _possible(self, kind: int, section: Section, events: EventColumns) -> tuple[EventColumns, list[Failure]]:
        """Events that are not from a future, and the others as failures."""
        if not len(events):
            return events, []
        times = events.columns["event_time_ms"]
        # The first record of a partition may have any time: a topic whose time is its events' has no other clock yet.
        limits = np.minimum(section.limits_ms[events.record_index], _TIME_MS_MAX)
        impossible = times > limits
        if not impossible.any():
            return events, []
        rows = np.flatnonzero(impossible)
        details = [
            f"event time {time_ms} ms, above the highest possible time of {limit_ms} ms"
            for time_ms, limit_ms in zip(times[rows].tolist(), limits[rows].tolist(), strict=True)
        ]
        failures = self._failures(kind, _take(events, rows), "impossible_time", details)
        return _take(events, np.flatnonzero(~impossible)), failures

    def _misplaced(self, kind: int, events: EventColumns) -> list[Failure]:
        if not len(events):
            return []
        what = ("an impression in the actions topic", "an action in the impressions topic")[kind]
        return self._failures(kind, events, "other", [what] * len(events))

    def _failures(self, kind: int, events: EventColumns, reason: str, details: Sequence[str]) -> list[Failure]:
        """Events as failures, each with its own bytes and not with those of its record."""
        data, at = self._encode(kind, events)
        return [
            Failure(
                int(events.record_index[row]),
                int(events.event_index[row]),
                reason,
                detail,
                data[at[row] : at[row + 1]].tobytes(),
            )
            for row, detail in enumerate(details)
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
        """The code of each action; of few distinct names each is looked up once."""
        names, offsets = actions.columns["action"], actions.columns["action$"]
        codes = np.full(len(actions), _NO_CODE, np.uint8)
        hashes = native.hash_strings(offsets, names, _SALT)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        table = np.array(
            [self._codes.get(names[offsets[row] : offsets[row + 1]].tobytes(), _NO_CODE) for row in first.tolist()],
            np.uint8,
        )
        if len(actions):
            codes = table[inverse]
        return codes

    def _by_lot(self, events: EventColumns) -> tuple[Int64s, list[tuple[int, int, int]]]:
        """The order of events by their lots, and (lot, first, behind the last) of each lot in that order."""
        lots = lots_of(events.columns["request_id$"], events.columns["request_id"], self._lots_count)
        order = np.argsort(lots, kind="stable")
        lots = lots[order]
        cuts = [0, *(np.flatnonzero(np.diff(lots)) + 1).tolist(), len(lots)]
        return order, [(int(lots[begin]), begin, stop) for begin, stop in pairwise(cuts)]

    def _payloads(
        self, events: EventColumns, order: Int64s, spans: Sequence[Spans]
    ) -> tuple[npt.NDArray[np.uint8], Int64s]:
        """Impressions in an order, as bytes of today's schema: as they came, where all were written by it."""
        whole = joined_spans(spans)
        at = whole.places(events.record_index[order], events.event_index[order])
        is_todays = (whole.fingerprints[at] == self._todays) & (whole.starts[at] - whole.begins[at] == PREFIX_BYTES)
        if not is_todays.all():
            return self._encode(_IMPRESSION, _take(events, order))
        edges = np.stack((whole.begins, whole.ends), axis=1).reshape(-1)
        data, offsets = native.take_spans(whole.buffer, edges, 2 * at)
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
        ids_at, items_at = columns["request_id$"].astype(np.int64), columns["items[]"].astype(np.int64)
        offsets = blob.impressions.offsets[events.record_index]
        found = {}
        for lot, begin, stop in bounds:
            rows, cut = slice(begin, stop), slice(begin, stop + 1)
            found[lot] = ImpressionColumns(
                request_ids=columns["request_id"][ids_at[begin] : ids_at[stop]],
                request_at=ids_at[cut] - ids_at[begin],
                event_time_ms=columns["event_time_ms"][rows],
                partition=np.full(stop - begin, blob.partition, np.int32),
                offset=offsets[rows],
                first_item=events.item_base[rows],
                items=items[items_at[begin] : items_at[stop]],
                items_at=items_at[cut] - items_at[begin],
                payload=payloads[payloads_at[begin] : payloads_at[stop]],
                payload_at=payloads_at[cut] - payloads_at[begin],
            )
        return found

    def _actions(self, blob: Blob, events: EventColumns, codes: npt.NDArray[np.uint8]) -> dict[int, ActionColumns]:
        if not len(events):
            return {}
        order, bounds = self._by_lot(events)
        events, codes = _take(events, order), codes[order]
        columns = events.columns
        items = self._item_keys(columns, "item_id")
        ids_at = columns["request_id$"].astype(np.int64)
        offsets = blob.actions.offsets[events.record_index]
        found = {}
        for lot, begin, stop in bounds:
            rows = slice(begin, stop)
            found[lot] = ActionColumns(
                request_ids=columns["request_id"][ids_at[begin] : ids_at[stop]],
                request_at=ids_at[begin : stop + 1] - ids_at[begin],
                event_time_ms=columns["event_time_ms"][rows],
                partition=np.full(stop - begin, blob.partition, np.int32),
                offset=offsets[rows],
                event_index=events.event_index[rows],
                items=items[rows],
                codes=codes[rows],
                weights=columns["weight"][rows],
            )
        return found

    def _item_keys(self, columns: Any, path: str) -> npt.NDArray[np.uint64]:
        return keys_of(self._item_slot, columns[path], offsets=columns.get(f"{path}$"))

    def _origin(self, blob: Blob, topic: int, record: int) -> Origin:
        section = (blob.impressions, blob.actions)[topic]
        name, topic_id = self._topics[topic]
        offset, timestamp_ms = int(section.offsets[record]), int(section.timestamps_ms[record])
        return Origin(name, topic_id, blob.partition, offset, timestamp_ms, section.keys[record])


def _take(events: EventColumns, rows: Int64s) -> EventColumns:
    return EventColumns(
        take_rows(events.columns, rows), events.record_index[rows], events.event_index[rows], events.item_base[rows]
    )


def _empty(kind: type, offsets: Sequence[str]) -> Any:
    """Columns of no events: offsets begin with their one 0."""
    names = [field.name for field in fields(kind)]
    return kind(*(np.zeros(int(name in offsets), dtype) for name, dtype in zip(names, DTYPES[kind], strict=True)))


_NO_IMPRESSIONS: ImpressionColumns = _empty(ImpressionColumns, ("request_at", "items_at", "payload_at"))
_NO_ACTIONS: ActionColumns = _empty(ActionColumns, ("request_at",))

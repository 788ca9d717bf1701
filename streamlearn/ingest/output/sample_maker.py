"""SampleMaker: rows that a join gave, with the bytes of their impressions, become samples.

It knows neither runners nor where samples go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError
from streamlearn.events import EventColumns, EventDecoder, Failure, Origin
from streamlearn.events.span import spans_of_events
from streamlearn.features import FeatureSpec
from streamlearn.ingest.join.columns import Joined, JoinedRequests, JoinedRows, Letters
from streamlearn.ingest.join.letters import letters_of
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.read_back import ReadBack, ReadBackLimits
from streamlearn.ingest.output.sample_cuts import cut_rows, feature_bytes
from streamlearn.ingest.output.sample_features import TextCodes, features_of, take_features, text_codes
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleCodec,
    SampleHeader,
    SegmentColumns,
)
from streamlearn.schemas.events import score_field
from streamlearn.settings.events import SampleSettings

__all__ = ["SampleMaker"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
# What a message's key and the lengths of its columns may cost beside an empty message.
_SPARE_BYTES, _COLUMN_BYTES, _TEXT_BYTES = 64, 8, 5
_REQUEST_BYTES, _ROW_BYTES, _LABEL_BYTES = 36, 16, 14

Letter = tuple[Failure, Origin]


@dataclass(frozen=True, eq=False)
class _WholeRequests:
    """Everything a take gives, before it is cut into messages; U requests, N rows.

    Attributes:
        requests: Of each request.
        user: Of each request.
        request_index: int32[N].
        item: Of each row.
        rows: The rows of the join.
        scores: What serving answered, by label; float32[N].
        segments: By name, of each row.
    """

    requests: RequestColumns
    user: FeatureColumns
    request_index: Int32s
    item: FeatureColumns
    rows: JoinedRows
    scores: Mapping[str, npt.NDArray[np.float32]]
    segments: Mapping[str, TextCodes]


class SampleMaker:
    """Makes the samples of one worker, of all its lots.

    Guaranteed: every row becomes a row of a sample, or is set aside with its origin and the reason; no batch is larger
    than a message may be; the same rows make the same samples. Not guaranteed: that a row whose bytes are read again
    finds them, for topics let go of old records.
    The classic mistake is to take the batches and to forget `set_aside`.

    Args:
        folder: The application.
        lineage: What the rows were joined by.
        run: The run of ingest.
        clock: For how long a broker has given nothing.

    Raises:
        ConfigError: The rows were joined for other features or windows than the application has; a message holds none.
    """

    def __init__(self, folder: AppFolder, lineage: Lineage, run: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        app, settings = folder.app, folder.settings
        found = (app.samples_fingerprint, app.window_settings)
        if found != (lineage.feature_fingerprint, lineage.window_settings):
            message = f"app {app.name!r} has other features or windows than the app that joined its events"
            raise ConfigError(
                message, help="workers run different versions of the application; run the same one everywhere"
            )
        self._app, self._lineage, self._run = app, lineage, run
        self._decoder = EventDecoder.of(folder)
        limits = ReadBackLimits(
            held_bytes=settings.ingest.read_back_bytes,
            read_bytes=settings.ingest.blob_bytes,
            wait_ms=max(1, round(settings.ingest.fetch_wait_s * 1_000)),
        )
        url, access = folder.topic_url("impressions"), folder.access
        self._read_back = ReadBack(url, lineage.events_topic_id, self._decoder, access, limits=limits, clock=clock)
        names = [folder.topic_url(topic).rpartition("/")[2] for topic in ("impressions", "actions")]
        self._topics = list(zip(names, (lineage.events_topic_id, lineage.actions_topic_id), strict=True))
        self._limits = self._limits_of(settings.samples)
        self._set_aside: list[Letter] = []

    def make(self, lot: int, joined: Joined, watermark_ms: int) -> list[SampleBatch]:
        """Samples of rows, in the order of the rows; none of no rows.

        A batch says no later watermark than the times of rows that follow it: who reads it refuses rows that are long
        before the watermark.

        Args:
            lot: The lot of the join.
            joined: What was taken out of it.
            watermark_ms: Ingest's watermark once all rows of the join are written, event time.

        Raises:
            TopicReplaced: Rows are to be read again, and the impressions topic was deleted and created again.
            TopicUnreachable: Rows are to be read again, and the topic gave nothing for too long.
        """
        if not len(joined.rows):
            return []
        whole = self._whole(joined)
        cuts, too_large = cut_rows(whole.request_index, *self._costs(whole), self._limits)
        if too_large:
            why = f"larger than the message limit ({self._app.name!r} has no message for it)"
            self._refuse(whole.rows, np.array(too_large), _origins(whole), ("oversize", why))
        settled_ms = np.append(whole.rows.settle_time_ms, min(watermark_ms, joined.complete_ms))
        follow_ms = np.minimum.accumulate(settled_ms[::-1])[::-1]
        return [self._batch(self._header(lot, int(follow_ms[end])), whole, begin, end) for begin, end in cuts]

    def empty(self, lot: int, watermark_ms: int) -> SampleBatch:
        """A batch of no samples, which says how far a lot is."""
        return self._batch(self._header(lot, watermark_ms), self._whole(_nothing(len(self._app.labels))), 0, 0)

    def letters_of(self, letters: Letters) -> list[Letter]:
        """What `LetterBox.give` takes of a join's letters."""
        return letters_of(self._app, self._topics, letters)

    def set_aside(self) -> list[Letter]:
        """What `LetterBox.give` takes of rows that became no samples since this was last asked."""
        found, self._set_aside = self._set_aside, []
        return found

    def close(self) -> None:
        """Let go of the impressions topic."""
        self._read_back.close()

    def _limits_of(self, settings: SampleSettings) -> tuple[int, int]:
        """Rows of a message, and bytes of all of them."""
        features, labels = self._app.features, len(self._app.labels)
        empty = len(SampleCodec(self._app, SampleSettings()).encode(self.empty(0, 0)))
        columns = 16 + 8 * labels + 4 * (len(features.slots) + len(features.dense) + len(features.segments))
        overhead = empty + _SPARE_BYTES + _COLUMN_BYTES * columns
        if overhead >= settings.message_bytes_max:
            message = f"message_bytes_max is {settings.message_bytes_max}"
            raise ConfigError(message, help=f"a message of this application without rows already has {overhead} bytes")
        return settings.message_rows_max, settings.message_bytes_max - overhead

    def _header(self, lot: int, watermark_ms: int) -> SampleHeader:
        lineage = self._lineage
        return SampleHeader(
            feature_fingerprint=lineage.feature_fingerprint,
            window_settings=lineage.window_settings,
            events_topic_id=lineage.events_topic_id,
            lot=lot,
            lots_count=lineage.lots_count,
            ingest_run=self._run,
            watermark_ms=watermark_ms,
        )

    def _whole(self, joined: Joined) -> _WholeRequests:
        requests, rows = joined.requests, joined.rows
        events, place_of = self._impressions(requests)
        columns, spec = events.columns, self._app.features
        items, items_at = features_of(spec, "item", columns), columns["items[]"].astype(np.int64)
        request = place_of[rows.request_index]
        at = items_at[request] + rows.position
        there = (request >= 0) & (at < items_at[request + 1])
        # What was joined is what is there: what is read again is held against its key.
        there[there] = items.slots[spec.item_id].keys[at[there]] == rows.item[there]
        if not there.all():
            lost = np.flatnonzero(~there)
            origins = tuple(getattr(requests, name)[rows.request_index] for name in _ORIGIN)
            self._refuse(
                rows, lost, origins, ("gone", "its impression could not be read again: the topic no longer has it")
            )
            kept = np.flatnonzero(there)
            rows, request, at = _rows_at(rows, kept), request[kept], at[kept]
        source = events.record_index
        version, is_served = columns["served_version"], columns["served_version?"]
        return _WholeRequests(
            requests=RequestColumns(
                partition=requests.partition[source],
                offset=requests.offset[source],
                event_time_ms=requests.event_time_ms[source],
                shown_wall_ms=columns["shown_wall_ms"],
                served_version=np.where(is_served == 1, version, -1),
            ),
            user=features_of(spec, "user", columns),
            request_index=request.astype(np.int32),
            item=take_features(items, at),
            rows=rows,
            scores={label.name: _scores(columns, label.name, at) for label in self._app.labels},
            segments=_segments(spec, columns, request, at),
        )

    def _impressions(self, requests: JoinedRequests) -> tuple[EventColumns, Int64s]:
        """Each impression decoded once, and for each request which of them it is; -1: it is not there any more.

        The impressions' `record_index` is a request that brought it.
        """
        first, number = _distinct(requests)
        brought = requests.reads_back[first] == 0
        spans = [spans_of_events(requests.payload, requests.payload_at).take(first[brought])]
        asked = first[~brought]
        if len(asked):
            origins = (requests.partition[asked], requests.offset[asked], requests.first_item[asked])
            found = self._read_back.find(*origins)
            spans += [replace(one, record_index=asked[one.record_index].astype(np.int32)) for one in found]
        # Whoever cut them into lots has judged them.
        events = self._decoder.decode_spans(spans, is_judged=True).impressions
        place = np.full(len(requests), -1, np.int64)
        place[events.record_index] = np.arange(len(events))
        return events, place[first[number]]

    def _costs(self, whole: _WholeRequests) -> tuple[Int64s, Int64s]:
        """Bytes of each row and of each request in a message, if anything too many."""
        rows = feature_bytes(whole.item, len(whole.rows)) + _ROW_BYTES + _LABEL_BYTES * len(self._app.labels)
        for segment in whole.segments.values():
            rows += segment.size_bytes + _TEXT_BYTES + 4
        return rows, feature_bytes(whole.user, len(whole.requests)) + _REQUEST_BYTES

    def _batch(self, header: SampleHeader, whole: _WholeRequests, begin: int, end: int) -> SampleBatch:
        part = np.arange(begin, end)
        index, used = _renumbered(whole.request_index[begin:end], len(whole.requests))
        rows = _rows_at(whole.rows, slice(begin, end))
        requests, user = whole.requests, whole.user
        if len(used) < len(requests):
            requests = RequestColumns(**{name: column[used] for name, column in vars(requests).items()})
            user = take_features(user, used)
        labels = tuple(
            LabelColumns(
                name=label.name,
                value=_bit(rows.labels, bit),
                settles=_bit(rows.settles, bit),
                sample_rate=np.full(end - begin, label.sample_rate, np.float32),
                weight=np.ascontiguousarray(rows.weights[:, bit]),
                served_score=whole.scores[label.name][begin:end],
            )
            for bit, label in enumerate(self._app.labels)
        )
        segments = [(name, codes.take(part)) for name, codes in whole.segments.items()]
        return SampleBatch(
            header=header,
            requests=requests,
            user=user,
            request_index=index,
            item_index=rows.item_index,
            settle_time_ms=rows.settle_time_ms,
            item=whole.item if end - begin == len(whole.rows) else take_features(whole.item, part),
            labels=labels,
            segments=tuple(SegmentColumns(name, codes.texts, codes.codes) for name, codes in segments),
        )

    def _refuse(
        self, rows: JoinedRows, places: Int64s, origins: Sequence[npt.NDArray[Any]], why: tuple[str, str]
    ) -> None:
        """Set rows aside.

        Args:
            rows: All of them.
            places: Which.
            origins: Of each row: the partition, the offset and the event time of its impression.
            why: The reason, and what exactly was found.
        """
        reason, what = why
        name, topic_id = self._topics[0]
        for row in places.tolist():
            partition, offset, time_ms = (int(column[row]) for column in origins)
            settles, labels = int(rows.settles[row]), int(rows.labels[row])
            said = [
                f"{label.name} {'positive' if labels >> bit & 1 else 'negative'}"
                for bit, label in enumerate(self._app.labels)
                if settles >> bit & 1
            ]
            settled = f"settled {', '.join(said)} at {int(rows.settle_time_ms[row])} ms"
            detail = f"item {int(rows.item_index[row])} of the record, {settled}: {what}"
            origin = Origin(name, topic_id, partition, offset, time_ms, None)
            self._set_aside.append((Failure(row, -1, reason, detail, b""), origin))


_ORIGIN = ("partition", "offset", "event_time_ms")


def _origins(whole: _WholeRequests) -> tuple[npt.NDArray[Any], ...]:
    """The origin of each row's impression."""
    return tuple(getattr(whole.requests, name)[whole.request_index] for name in _ORIGIN)


def _distinct(requests: JoinedRequests) -> tuple[Int64s, Int64s]:
    """For each distinct impression a request of it, with its bytes if one has them; and the impression of each."""
    keys = (requests.reads_back, requests.first_item, requests.offset, requests.partition)
    order = np.lexsort(keys)
    begins = np.ones(len(order), bool)
    for key in keys[1:]:
        begins[1:] &= key[order][1:] == key[order][:-1]
    begins[1:] = ~begins[1:]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(begins) - 1
    return order[begins], number


def _renumbered(request_index: Int32s, requests: int) -> tuple[Int32s, Int64s]:
    """The requests of some rows by their place among those that have any, and which those are."""
    used = np.flatnonzero(np.bincount(request_index, minlength=requests))
    number = np.zeros(requests, np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return number[request_index], used


def _rows_at(rows: JoinedRows, places: Int64s | slice) -> JoinedRows:
    return JoinedRows(**{name: column[places] for name, column in vars(rows).items()})


def _bit(masks: npt.NDArray[np.uint32], bit: int) -> npt.NDArray[np.uint8]:
    return (masks >> np.uint32(bit) & np.uint32(1)).astype(np.uint8)


def _scores(columns: Mapping[str, npt.NDArray[Any]], label: str, at: Int64s) -> npt.NDArray[np.float32]:
    path = f"items.{score_field(label)}"
    return np.where(columns[f"{path}?"] == 1, columns[path], np.float32(np.nan))[at]


def _segments(
    spec: FeatureSpec, columns: Mapping[str, npt.NDArray[Any]], request: Int64s, at: Int64s
) -> dict[str, TextCodes]:
    found = {}
    for segment in spec.segments:
        if segment.side == "user":
            found[segment.name] = text_codes(columns, f"segments.{segment.name}").take(request)
        else:
            found[segment.name] = text_codes(columns, f"items.segment_{segment.name}").take(at)
    return found


def _nothing(labels: int) -> Joined:
    """What is taken out of a join that has nothing."""
    i4, i8, one = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(1, np.int64)
    u1, u4, u8 = np.zeros(0, np.uint8), np.zeros(0, np.uint32), np.zeros(0, np.uint64)
    f4, weights = np.zeros(0, np.float32), np.zeros((0, labels), np.float32)
    return Joined(
        JoinedRequests(i4, i8, i4, i8, u1, u1, one),
        JoinedRows(i4, i4, i4, u8, u1, u4, u4, i8, weights),
        Letters(u1, u4, u1, i4, i8, i4, i8, u8, f4, u1, one, u1, one),
        complete_ms=0,
    )

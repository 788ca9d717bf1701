"""SampleMaker: makes samples of joined rows and the bytes of their impressions.

It knows neither runners nor the topics of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import ConfigError
from streamlearn.events import EventColumns, EventDecoder, Failure, Origin
from streamlearn.events.span import spans_of_events
from streamlearn.features import FeatureSpec
from streamlearn.ingest.join.columns import Joined, JoinedInteractions, JoinedRequests, JoinedRows, Letters
from streamlearn.ingest.join.letters import letters_of
from streamlearn.ingest.join.meters import count_unavailable
from streamlearn.ingest.output.impression_features import ImpressionFeatures, Places
from streamlearn.ingest.output.interaction_maker import interactions_of
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.read_back import ReadBack
from streamlearn.ingest.output.sample_cuts import cut_rows, feature_bytes
from streamlearn.ingest.output.sample_features import TextCodes, text_codes
from streamlearn.interactions import InteractionBatch
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleCodec,
    SampleHeader,
    SegmentColumns,
    renumbered,
)
from streamlearn.samples.item_ids import ItemIds
from streamlearn.schemas.events import score_field
from streamlearn.settings.events import SampleSettings

__all__ = ["SampleMaker"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
# Upper bounds for a message's key and the lengths of its columns, besides an empty message.
_SPARE_BYTES, _COLUMN_BYTES, _TEXT_BYTES = 64, 8, 5
_MINUTE_MS = 60_000
_REQUEST_BYTES, _ROW_BYTES, _LABEL_BYTES = 36, 16, 18

Letter = tuple[Failure, Origin]
AnyRows = TypeVar("AnyRows", JoinedRows, JoinedInteractions)


@dataclass(frozen=True, eq=False)
class _WholeRequests:
    """Everything of one join output, before it is cut into messages; U requests, N rows.

    Attributes:
        requests: Of each request.
        user: Of each request.
        request_index: int32[N].
        item: Of each row.
        scores: The served score of each row, by label; float32[N].
        segments: Of each row, by name.
        item_ids: Of each row; None without retrieval.
    """

    requests: RequestColumns
    user: FeatureColumns
    request_index: Int32s
    item: FeatureColumns
    rows: JoinedRows
    scores: Mapping[str, npt.NDArray[np.float32]]
    segments: Mapping[str, TextCodes]
    item_ids: ItemIds | None


class SampleMaker:
    """Makes the samples of one worker, for all its lots.

    Guaranteed: every row becomes a row of a sample, or is set aside with its origin and the reason; no batch is larger
    than a message may be; the same rows make the same samples. Not guaranteed: that bytes that are read again are
    found: topics delete old records. The classic mistake is to take the batches and to forget `set_aside`, or
    `interactions`.

    Raises:
        ConfigError: The rows were joined for other features or windows; or a message cannot hold a row.
    """

    def __init__(self, folder: AppFolder, lineage: Lineage, run: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        app, settings = folder.app, folder.settings
        if (app.samples_fingerprint, app.window_settings) != (lineage.feature_fingerprint, lineage.window_settings):
            message = f"app {app.name!r} has other features or windows than the app that joined its events"
            hint = "workers run different versions of the application; run the same one everywhere"
            raise ConfigError(message, help=hint)
        self._app, self._lineage, self._run = app, lineage, run
        self._decoder = EventDecoder.of(folder)
        url, topic_id = folder.topic_url("impressions"), lineage.events_topic_id
        self._read_back = ReadBack(url, topic_id, self._decoder, folder.access, settings=settings.ingest, clock=clock)
        names = [folder.topic_url(topic).rpartition("/")[2] for topic in ("impressions", "actions")]
        self._topics = list(zip(names, (lineage.events_topic_id, lineage.actions_topic_id), strict=True))
        self._limits = self._limits_of(settings.samples)
        self._set_aside: list[Letter] = []
        self._interactions: list[InteractionBatch] = []

    def make(self, lot: int, joined: Joined, watermark_ms: int) -> list[SampleBatch]:
        """Return the samples of a lot's rows, in the order of the rows.

        `watermark_ms` is ingest's watermark once all rows are written. A batch carries no later watermark than the
        times of the rows after it: consumers refuse rows long before the watermark.

        Raises:
            TopicReplaced: Impressions have to be read again, and their topic was deleted and created again.
            TopicUnreachable: Impressions have to be read again, and the topic returned nothing for too long.
        """
        if not len(joined.rows) and not len(joined.interactions):
            return []
        shown = self._shown(joined.requests)
        if len(joined.interactions):
            made, places = self._there(shown, joined.requests, joined.interactions)
            self._interactions.append(interactions_of(self._app, self._run, shown, made, places))
        if not len(joined.rows):
            return []
        whole = self._whole(shown, joined)
        # Of a history that is read at once, trainers take the messages of all lots in the order of time.
        minutes = np.flatnonzero(np.diff(whole.rows.settle_time_ms // _MINUTE_MS)) + 1
        cuts, too_large = cut_rows(whole.request_index, *self._costs(whole), self._limits, minutes)
        if too_large:
            why = ("oversize", f"larger than the message limit ({self._app.name!r} has no message for it)")
            self._refuse(whole.rows, np.array(too_large), _origins(whole.requests, whole.request_index), why)
        settled_ms = np.append(whole.rows.settle_time_ms, min(watermark_ms, joined.complete_ms))
        follow_ms = np.minimum.accumulate(settled_ms[::-1])[::-1]
        return [self._batch(self._header(lot, int(follow_ms[end])), whole, begin, end) for begin, end in cuts]

    def empty(self, lot: int, watermark_ms: int) -> SampleBatch:
        """Return a batch without samples, which carries a lot's watermark."""
        nothing = _nothing(len(self._app.labels))
        return self._batch(self._header(lot, watermark_ms), self._whole(self._shown(nothing.requests), nothing), 0, 0)

    def letters_of(self, letters: Letters) -> list[Letter]:
        """Return a join's letters for `LetterBox.give`."""
        return letters_of(self._app, self._topics, letters)

    def set_aside(self) -> list[Letter]:
        """Return the rows that became no samples since the last call, for `LetterBox.give`."""
        letters, self._set_aside = self._set_aside, []
        return letters

    def interactions(self) -> list[InteractionBatch]:
        """Return the interactions of the joins' output since the last call."""
        made, self._interactions = self._interactions, []
        return made

    def close(self) -> None:
        """Close the impressions topic."""
        self._read_back.close()

    def _limits_of(self, settings: SampleSettings) -> tuple[int, int]:
        """Return the most rows of a message, and the most bytes of its rows and requests."""
        features, labels = self._app.features, len(self._app.labels)
        empty = len(SampleCodec(self._app, SampleSettings()).encode(self.empty(0, 0)))
        columns = 16 + 8 * labels + 4 * (len(features.slots) + len(features.dense) + len(features.segments))
        columns += 0 if self._app.retrieval is None else 2
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

    def _shown(self, requests: JoinedRequests) -> ImpressionFeatures:
        events, place_of = self._impressions(requests)
        return ImpressionFeatures.of(self._app.features, requests, events, place_of)

    def _there(self, shown: ImpressionFeatures, requests: JoinedRequests, rows: AnyRows) -> tuple[AnyRows, Places]:
        """Return the rows whose impression is there, with their places; set the others aside."""
        places = shown.find(rows)
        if places.is_there.all():
            return rows, places
        why = ("gone", "its impression could not be read again: the topic no longer has it")
        self._refuse(rows, np.flatnonzero(~places.is_there), _origins(requests, rows.request_index), why)
        kept = np.flatnonzero(places.is_there)
        return rows.take(kept), places.take(kept)

    def _whole(self, shown: ImpressionFeatures, joined: Joined) -> _WholeRequests:
        rows, places = self._there(shown, joined.requests, joined.rows)
        is_away = shown.is_unavailable[places.request]
        if is_away.any():
            # Learned, they would teach that users have no history.
            count_unavailable(int(np.count_nonzero(is_away)))
            kept = np.flatnonzero(~is_away)
            rows, places = rows.take(kept), places.take(kept)
        request, at, columns = places.request, places.item, shown.columns
        return _WholeRequests(
            requests=shown.requests,
            user=shown.user,
            request_index=request.astype(np.int32),
            item=shown.items.take(at),
            rows=rows,
            scores={label.name: _scores(columns, label.name, at) for label in self._app.labels},
            segments=_segments(self._app.features, columns, request, at),
            item_ids=None if self._app.retrieval is None else _item_ids(self._app.features, columns, at),
        )

    def _impressions(self, requests: JoinedRequests) -> tuple[EventColumns, Int64s]:
        """Decode each impression once; return them, and the impression of each request, -1 if it is gone.

        The impressions' `record_index` is a request that has them.
        """
        first, number = _distinct(requests)
        has_bytes = requests.reads_back[first] == 0
        spans = [spans_of_events(requests.payload, requests.payload_at).take(first[has_bytes])]
        unread = first[~has_bytes]
        if len(unread):
            found = self._read_back.find(
                requests.partition[unread], requests.offset[unread], requests.first_item[unread]
            )
            spans += [replace(part, record_index=unread[part.record_index].astype(np.int32)) for part in found]
        # `LotCutter` has validated them.
        events = self._decoder.decode_spans(spans, is_judged=True).impressions
        place = np.full(len(requests), -1, np.int64)
        place[events.record_index] = np.arange(len(events))
        return events, place[first[number]]

    def _costs(self, whole: _WholeRequests) -> tuple[Int64s, Int64s]:
        """Return upper bounds of the bytes of each row and of each request in a message."""
        rows = feature_bytes(whole.item, len(whole.rows)) + _ROW_BYTES + _LABEL_BYTES * len(self._app.labels)
        for segment in whole.segments.values():
            rows += segment.size_bytes + _TEXT_BYTES + 4
        if whole.item_ids is not None:
            rows += whole.item_ids.size_bytes
        return rows, feature_bytes(whole.user, len(whole.requests)) + _REQUEST_BYTES

    def _batch(self, header: SampleHeader, whole: _WholeRequests, begin: int, end: int) -> SampleBatch:
        part = slice(begin, end)
        index, used = renumbered(whole.request_index[begin:end], len(whole.requests))
        rows = whole.rows.take(part)
        requests, user = whole.requests, whole.user
        if len(used) < len(requests):
            run = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)
            kept = run if run.stop - run.start == len(used) else used  # of a run they are views
            requests, user = requests.take(kept), user.take(kept)
        labels = tuple(
            LabelColumns(
                name=label.name,
                value=_bit(rows.labels, bit),
                settles=_bit(rows.settles, bit),
                sample_rate=np.full(end - begin, label.sample_rate, np.float32),
                weight=np.ascontiguousarray(rows.weights[:, bit]),
                served_score=whole.scores[label.name][begin:end],
                number=None if label.number is None else np.ascontiguousarray(rows.numbers[:, bit]),
            )
            for bit, label in enumerate(self._app.labels)
        )
        segments = [(name, codes.take(part)) for name, codes in whole.segments.items()]
        item = whole.item.take(part)
        texts = tuple(SegmentColumns(name, codes.texts, codes.codes) for name, codes in segments)
        return SampleBatch(
            header,
            requests,
            user,
            index,
            rows.item_index,
            rows.settle_time_ms,
            item=item,
            labels=labels,
            segments=texts,
            item_ids=None if whole.item_ids is None else whole.item_ids.take(part),
        )

    def _refuse(
        self,
        rows: JoinedRows | JoinedInteractions,
        places: Int64s,
        origins: Sequence[npt.NDArray[Any]],
        why: tuple[str, str],
    ) -> None:
        """Set rows aside.

        `origins` has for each row the partition, offset and event time of its impression; `why` the reason and the
        details.
        """
        reason, what = why
        name, topic_id = self._topics[0]
        for row in places.tolist():
            partition, offset, time_ms = (int(column[row]) for column in origins)
            detail = f"{self._text(rows, row)}: {what}"
            origin = Origin(name, topic_id, partition, offset, time_ms, None)
            self._set_aside.append((Failure(row, -1, reason, detail, b""), origin))

    def _text(self, rows: JoinedRows | JoinedInteractions, row: int) -> str:
        """Say what a row is."""
        if isinstance(rows, JoinedInteractions):
            return f"item {int(rows.position[row])} of the impression, interaction at {int(rows.event_time_ms[row])} ms"
        settles, labels = int(rows.settles[row]), int(rows.labels[row])
        outcomes = [
            f"{label.name} {'positive' if labels >> bit & 1 else 'negative'}"
            for bit, label in enumerate(self._app.labels)
            if settles >> bit & 1
        ]
        settled = f"settled {', '.join(outcomes)} at {int(rows.settle_time_ms[row])} ms"
        return f"item {int(rows.item_index[row])} of the record, {settled}"


def _origins(requests: JoinedRequests | RequestColumns, index: Int32s) -> tuple[npt.NDArray[Any], ...]:
    """Return the origin of each row's impression."""
    return requests.partition[index], requests.offset[index], requests.event_time_ms[index]


def _distinct(requests: JoinedRequests) -> tuple[Int64s, Int64s]:
    """Return for each distinct impression a request, with its bytes if one has them; and each request's impression."""
    keys = (requests.reads_back, requests.first_item, requests.offset, requests.partition)
    order = np.lexsort(keys)
    begins = np.ones(len(order), bool)
    for key in keys[1:]:
        begins[1:] &= key[order][1:] == key[order][:-1]
    begins[1:] = ~begins[1:]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(begins) - 1
    return order[begins], number


def _bit(masks: npt.NDArray[np.uint32], bit: int) -> npt.NDArray[np.uint8]:
    return (masks >> np.uint32(bit) & np.uint32(1)).astype(np.uint8)


def _scores(columns: Mapping[str, npt.NDArray[Any]], label: str, at: Int64s) -> npt.NDArray[np.float32]:
    path = f"items.{score_field(label)}"
    return np.where(columns[f"{path}?"] == 1, columns[path], np.float32(np.nan))[at]


def _segments(
    spec: FeatureSpec, columns: Mapping[str, npt.NDArray[Any]], request: Int64s, at: Int64s
) -> dict[str, TextCodes]:
    codes = {}
    for segment in spec.segments:
        if segment.side == "user":
            codes[segment.name] = text_codes(columns, f"segments.{segment.name}").take(request)
        else:
            codes[segment.name] = text_codes(columns, f"items.segment_{segment.name}").take(at)
    return codes


def _item_ids(spec: FeatureSpec, columns: Mapping[str, npt.NDArray[Any]], at: Int64s) -> ItemIds:
    path = f"items.{spec.item_id}"
    return ItemIds(columns[path], columns.get(f"{path}$")).take(at)


def _nothing(labels: int) -> Joined:
    """Return an empty join output."""
    i4, i8, one = np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(1, np.int64)
    u1, u4, u8 = np.zeros(0, np.uint8), np.zeros(0, np.uint32), np.zeros(0, np.uint64)
    f4, weights = np.zeros(0, np.float32), np.zeros((0, labels), np.float32)
    return Joined(
        JoinedRequests(i4, i8, i4, i8, u1, u1, one),
        JoinedRows(i4, i4, i4, u8, u1, u4, u4, i8, weights, weights),
        JoinedInteractions(i4, i4, u8, u8, u1, i8, f4, f4),
        Letters(u1, u4, u1, i4, i8, i4, i8, u8, f4, f4, u1, one, u1, one),
        complete_ms=0,
    )

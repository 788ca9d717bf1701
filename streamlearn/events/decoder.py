"""The decoder of events: it finds each record's schema, unpacks and checks the events, and makes columns of them.

What cannot be read becomes a `Failure`, is absent from the columns, and never stops the others. The decoder does
not know topics, offsets or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from streamlearn.apps import App, AppFolder
from streamlearn.errors import BadRecord, ConfigError
from streamlearn.events.columns import join_rows, take_rows
from streamlearn.events.event import Columns, EventColumns, Events, Failure
from streamlearn.events.rules import broken_actions, broken_impressions
from streamlearn.events.schema_lookup import named_schemas
from streamlearn.events.span import Singles, Spans, framed_fingerprints, spans_of_packs, spans_of_records
from streamlearn.native import native
from streamlearn.schemas import CONTROL, EVENT_PACK, Schema, action_schema, impression_schema
from streamlearn.schemas.events import ITEM
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.schemas.renamed_fields import with_renamed_fields
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings

__all__ = ["EventDecoder"]

Broken = Callable[[Columns], Iterable[tuple[npt.NDArray[np.bool_], str]]]


@dataclass(frozen=True)
class _Kind:
    """One writer schema and the plan from it to the current columns."""

    name: str
    plan: Any


class EventDecoder:
    """Reads the events of one application.

    `old` are older impression and action schemas of records that may still arrive. `registry` maps ids of a Confluent
    schema registry to their schemas.

    Raises:
        ConfigError: The current schema cannot read an older one; the message names the field.
    """

    def __init__(
        self,
        app: App,
        settings: EventSettings,
        old: Sequence[Schema] = (),
        registry: Mapping[int, Schema] | None = None,
    ) -> None:
        self._settings = settings
        self._readers = {schema.name: schema for schema in (impression_schema(app), action_schema(app), CONTROL)}
        self._registry = {number: schema.fingerprint for number, schema in (registry or {}).items()}
        schemas = (*self._readers.values(), *old, *(registry or {}).values())
        renamed = {slot.was: slot.name for slot in app.features.slots if slot.was}
        renamed |= {column.was: column.name for column in app.features.dense if column.was}
        self._kinds = {schema.fingerprint: _kind_of(schema, self._readers, renamed) for schema in schemas}
        self._broken: dict[str, Broken] = {
            "Impression": lambda columns: broken_impressions(app, columns, settings.items_max),
            "Action": broken_actions,
            "Control": lambda columns: (),
        }
        none = np.zeros(0, np.int64)
        self._empty: dict[str, Columns] = {
            name: schema.plan.decode(np.zeros(0, np.uint8), none, none)[0] for name, schema in self._readers.items()
        }

    @classmethod
    def of(cls, folder: AppFolder) -> Self:
        """Return the decoder of an application, with the older schemas that its settings name.

        Raises:
            ConfigError: A schema file is missing or invalid, or the current schema cannot read it.
        """
        old, registry = named_schemas(folder)
        events = [schema for schema in old if schema.name != ITEM]
        ids = {number: schema for number, schema in registry.items() if schema.name != ITEM}
        return cls(folder.app, folder.settings.events, events, ids)

    def decode(self, values: Sequence[bytes | None]) -> Events:
        """Read the values of topic records, each one event or one pack; None counts as no bytes.

        Events come by kind; `record_index` and `event_index` state where each was. They are in that order unless the
        records are of several schemas, or only some of them are packs.
        """
        spans, failures = self.tell_apart(values)
        events = self.decode_spans(spans)
        failures += events.failures
        failures.sort(key=lambda failure: (failure.record_index, failure.event_index))
        return replace(events, failures=tuple(failures))

    def tell_apart(self, values: Sequence[bytes | None]) -> tuple[list[Spans], list[Failure]]:
        """Return where each event of some records is, without decoding any, and the failures."""
        records = [value or b"" for value in values]
        failures: list[Failure] = []
        singles, packs = self._sort(records, failures)
        return [spans_of_records(records, singles), spans_of_packs(records, packs, failures)], failures

    def decode_spans(self, spans: Sequence[Spans], *, is_judged: bool = False) -> Events:
        """Decode the events of some spans; `is_judged` skips the rules, for events that were checked before."""
        failures: list[Failure] = []
        parts: dict[str, list[EventColumns]] = {name: [] for name in self._readers}
        for group in spans:
            fingerprints = np.unique(group.fingerprints).tolist()
            for fingerprint in fingerprints:
                is_all = len(fingerprints) == 1
                of_kind = group if is_all else group.take(np.flatnonzero(group.fingerprints == np.uint64(fingerprint)))
                kind = self._kinds.get(fingerprint)
                if kind is None:
                    failures.extend(_unknown(of_kind, fingerprint))
                else:
                    parts[kind.name].extend(self._decode_kind(kind, of_kind, is_judged, failures))
        joined = {name: _join(events, self._empty[name]) for name, events in parts.items()}
        return Events(joined["Impression"], joined["Action"], joined["Control"], tuple(failures))

    def _sort(self, records: Sequence[bytes], failures: list[Failure]) -> tuple[Singles, list[int]]:
        """Return the records of one event, and the indexes of packs. Only other framings take a loop in Python."""
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        fingerprints, is_framed = framed_fingerprints(records, lengths)
        body_at = np.full(len(records), PREFIX_BYTES, np.int64)
        bytes_max = self._settings.record_bytes_max
        is_large = lengths > bytes_max
        for index in np.flatnonzero(is_large).tolist():
            detail = f"{lengths[index]} bytes, above record_bytes_max of {bytes_max}"
            failures.append(Failure(index, -1, "oversize", detail, records[index]))
        is_pack = is_framed & (fingerprints == np.uint64(EVENT_PACK.fingerprint)) & ~is_large
        is_single = is_framed & ~is_pack & ~is_large
        for index in np.flatnonzero(~is_framed & ~is_large).tolist():
            framing = self._framing(index, records[index], failures)
            if framing is not None:
                fingerprints[index], body_at[index] = framing
                is_single[index] = True
        rows = np.flatnonzero(is_single)
        return Singles(rows, fingerprints[rows], body_at[rows], lengths[rows]), np.flatnonzero(is_pack).tolist()

    def _framing(self, index: int, record: bytes, failures: list[Failure]) -> tuple[int, int] | None:
        """Return the fingerprint and the begin of the body of a record in another framing; None if it is unknown."""
        try:
            framing = read_framing(record)
        except BadRecord as error:
            failures.append(Failure(index, -1, "garbage", error.message, record))
            return None
        fingerprint = framing.fingerprint
        if fingerprint is None:
            fingerprint = self._registry.get(framing.registry_id or 0)
        if fingerprint is None:
            detail = f"schema registry id {framing.registry_id} is not in topics.schema_ids"
            failures.append(Failure(index, -1, "unknown_schema", detail, record))
            return None
        return fingerprint, framing.body_at

    def _decode_kind(self, kind: _Kind, spans: Spans, is_judged: bool, failures: list[Failure]) -> list[EventColumns]:
        try:
            columns, kept, malformed = kind.plan.decode(
                spans.buffer, spans.starts, spans.ends, items_max=self._settings.items_max
            )
        except ValueError as error:  # more than one set of columns can hold
            if len(spans) == 1:
                failures.append(spans.failure(0, "malformed", str(error)))
                return []
            halves = map(spans.take, np.array_split(np.arange(len(spans)), 2))
            return [part for half in halves for part in self._decode_kind(kind, half, is_judged, failures)]
        for row, reason in malformed:
            failures.append(spans.failure(row, "malformed", reason))
        valid = spans.take(kept) if malformed else spans
        broken = {} if is_judged else self._judge(kind, columns, valid)
        if broken:
            failures.extend(valid.failure(row, "bad_value", detail) for row, detail in broken.items())
            rows = np.setdiff1d(np.arange(len(valid)), np.fromiter(broken, np.int64))
            valid, columns = valid.take(rows), take_rows(columns, rows)
        return [EventColumns(columns, valid.record_index, valid.event_index, valid.item_base)]

    def _judge(self, kind: _Kind, columns: Columns, spans: Spans) -> dict[int, str]:
        """Return the rows that break a rule, each with the first rule that it breaks."""
        broken: dict[int, str] = {}
        for rows, rule in self._broken[kind.name](columns):
            for row in np.flatnonzero(rows).tolist():
                broken.setdefault(row, rule)
        items = np.diff(columns["items[]"]) if kind.name == "Impression" else np.zeros(len(spans), np.int32)
        for row in np.flatnonzero((spans.items >= 0) & (spans.items != items)).tolist():
            broken.setdefault(row, f"the pack header declares {spans.items[row]} items, the event has {items[row]}")
        return broken


def _join(parts: Sequence[EventColumns], empty: Columns) -> EventColumns:
    """Join events of one kind; `empty` are the columns without events."""
    filled = [part for part in parts if len(part)]
    if not filled:
        none = np.zeros(0, np.int32)
        return EventColumns(empty, none, none, none)
    if len(filled) == 1:
        return filled[0]
    return EventColumns(
        join_rows([part.columns for part in filled]),
        np.concatenate([part.record_index for part in filled]),
        np.concatenate([part.event_index for part in filled]),
        np.concatenate([part.item_base for part in filled]),
    )


def _kind_of(writer: Schema, readers: Mapping[str, Schema], renamed: Mapping[str, str]) -> _Kind:
    reader = readers.get(writer.name)
    if reader is None:
        message = f"a schema named {writer.name!r} is not an event schema"
        raise ConfigError(message, help=f"event schemas are {', '.join(readers)}")
    try:
        return _Kind(writer.name, native.AvroPlan(with_renamed_fields(writer, renamed).text, reader.text))
    except ValueError as error:
        message = f"an older schema of {writer.name} cannot be read as today's: {error}"
        hint = 'give added fields a default, or write to a new topic: see "Formats" in the documentation'
        raise ConfigError(message, help=hint) from error


def _unknown(spans: Spans, fingerprint: int) -> Iterable[Failure]:
    reason, detail = "unknown_schema", f"no known schema has fingerprint {fingerprint:016x}"
    if fingerprint == EVENT_PACK.fingerprint:
        reason, detail = "garbage", "a pack inside a pack"
    return (spans.failure(row, reason, detail) for row in range(len(spans)))

"""Records to events: each record is told apart by its schema, unpacked, checked, and turned into columns.

What cannot be read becomes a `Failure` and leaves no trace in the columns; it never stops the others. It does
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
from streamlearn.events.columns import take_rows
from streamlearn.events.event import Columns, EventColumns, Events, Failure
from streamlearn.events.event_concat import empty_columns, join_events
from streamlearn.events.rules import broken_actions, broken_impressions
from streamlearn.events.schema_lookup import named_schemas
from streamlearn.events.span import Singles, Spans, framed_fingerprints, spans_of_packs, spans_of_records
from streamlearn.native import native
from streamlearn.schemas import CONTROL, EVENT_PACK, Schema, action_schema, impression_schema
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings

__all__ = ["EventDecoder"]

Broken = Callable[[Columns], Iterable[tuple[npt.NDArray[np.bool_], str]]]


@dataclass(frozen=True)
class _Kind:
    """One writer schema and the plan from it to today's columns."""

    name: str
    plan: Any


class EventDecoder:
    """Reads the events of one application.

    Args:
        app: The application.
        settings: The bounds a record must keep.
        old: Older impression and action schemas whose records may still come.
        registry: Confluent schema registry ids and the schemas they stand for.

    Raises:
        ConfigError: An older schema cannot be read as today's; the message names the field.
    """

    def __init__(
        self,
        app: App,
        settings: EventSettings,
        old: Sequence[Schema] = (),
        registry: Mapping[int, Schema] | None = None,
    ) -> None:
        self._settings = settings
        self._readers = {one.name: one for one in (impression_schema(app), action_schema(app), CONTROL)}
        self._kinds: dict[int, _Kind] = {}
        self._registry = {number: schema.fingerprint for number, schema in (registry or {}).items()}
        for schema in (*self._readers.values(), *old, *(registry or {}).values()):
            self._kinds[schema.fingerprint] = _kind_of(schema, self._readers)
        self._broken: dict[str, Broken] = {
            "Impression": lambda columns: broken_impressions(app, columns, settings.items_max),
            "Action": broken_actions,
            "Control": lambda columns: (),
        }
        self._empty = {name: empty_columns(_plan(schema, schema)) for name, schema in self._readers.items()}

    @classmethod
    def of(cls, folder: AppFolder) -> Self:
        """The decoder of an application as its settings have it, with the older schemas they name.

        Raises:
            ConfigError: A schema file is missing, no schema, or cannot be read as today's.
        """
        old, registry = named_schemas(folder)
        return cls(folder.app, folder.settings.events, old, registry)

    def decode(self, values: Sequence[bytes | None]) -> Events:
        """Read records.

        Events of one kind come together; `record_index` and `event_index` say where each stood. They are in that
        order unless several schemas, or records with and without packs, are met in one call.

        Args:
            values: Values of topic records, each one event or one pack; None is read as no bytes.
        """
        spans, failures = self.tell_apart(values)
        events = self.decode_spans(spans)
        failures += events.failures
        failures.sort(key=lambda failure: (failure.record_index, failure.event_index))
        return replace(events, failures=tuple(failures))

    def tell_apart(self, values: Sequence[bytes | None]) -> tuple[list[Spans], list[Failure]]:
        """Where each event of some records lies, without reading any; and what cannot be told apart.

        Args:
            values: As for `decode`.
        """
        records = [value or b"" for value in values]
        failures: list[Failure] = []
        singles, packs = self._sort(records, failures)
        return [spans_of_records(records, singles), spans_of_packs(records, packs, failures)], failures

    def decode_spans(self, spans: Sequence[Spans], *, is_judged: bool = False) -> Events:
        """Read events that were told apart.

        Args:
            spans: Where they lie.
            is_judged: Whether they obey the rules of events, since they were read before.
        """
        failures: list[Failure] = []
        found: dict[str, list[EventColumns]] = {name: [] for name in self._readers}
        for one in spans:
            for fingerprint in np.unique(one.fingerprints).tolist():
                of_kind = one.take(np.flatnonzero(one.fingerprints == np.uint64(fingerprint)))
                kind = self._kinds.get(fingerprint)
                if kind is None:
                    failures.extend(_unknown(of_kind, fingerprint))
                else:
                    found[kind.name].extend(self._decode_kind(kind, of_kind, is_judged, failures))
        whole = {name: join_events(parts, self._empty[name]) for name, parts in found.items()}
        return Events(whole["Impression"], whole["Action"], whole["Control"], tuple(failures))

    def _sort(self, records: Sequence[bytes], failures: list[Failure]) -> tuple[Singles, list[int]]:
        """Records that are one event, and the indexes of packs. Only those in other framings are looked at alone."""
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
            found = self._framed(index, records[index], failures)
            if found is not None:
                fingerprints[index], body_at[index] = found
                is_single[index] = True
        rows = np.flatnonzero(is_single)
        return Singles(rows, fingerprints[rows], body_at[rows], lengths[rows]), np.flatnonzero(is_pack).tolist()

    def _framed(self, index: int, record: bytes, failures: list[Failure]) -> tuple[int, int] | None:
        """Fingerprint and begin of the body of a record in another framing; None where it has none that is known."""
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
            middle, rows = len(spans) // 2, np.arange(len(spans))
            halves = (spans.take(rows[:middle]), spans.take(rows[middle:]))
            return [part for half in halves for part in self._decode_kind(kind, half, is_judged, failures)]
        for row, reason in malformed:
            failures.append(spans.failure(row, "malformed", reason))
        good = spans.take(kept)
        bad = {} if is_judged else self._judge(kind, columns, good)
        if bad:
            failures.extend(good.failure(row, "bad_value", detail) for row, detail in bad.items())
            rows = np.setdiff1d(np.arange(len(good)), np.fromiter(bad, np.int64))
            good, columns = good.take(rows), take_rows(columns, rows)
        return [EventColumns(columns, good.record_index, good.event_index, good.item_base)]

    def _judge(self, kind: _Kind, columns: Columns, spans: Spans) -> dict[int, str]:
        """The rows that break a rule, each with the first rule it breaks."""
        bad: dict[int, str] = {}
        for rows, rule in self._broken[kind.name](columns):
            if rows.any():
                for row in np.flatnonzero(rows).tolist():
                    bad.setdefault(row, rule)
        items = np.diff(columns["items[]"]) if kind.name == "Impression" else np.zeros(len(spans), np.int32)
        wrong = (spans.items >= 0) & (spans.items != items)
        for row in np.flatnonzero(wrong).tolist():
            bad.setdefault(row, f"the pack header declares {spans.items[row]} items, the event has {items[row]}")
        return bad


def _kind_of(writer: Schema, readers: Mapping[str, Schema]) -> _Kind:
    reader = readers.get(writer.name)
    if reader is None:
        message = f"a schema named {writer.name!r} is not an event schema"
        raise ConfigError(message, help=f"event schemas are {', '.join(readers)}")
    try:
        return _Kind(writer.name, _plan(writer, reader))
    except ValueError as error:
        message = f"an older schema of {writer.name} cannot be read as today's: {error}"
        hint = "give added fields a default, or write to a new topic; see schemas/README.md"
        raise ConfigError(message, help=hint) from error


def _plan(writer: Schema, reader: Schema) -> Any:
    return native.AvroPlan(writer.text, reader.text)


def _unknown(spans: Spans, fingerprint: int) -> Iterable[Failure]:
    if fingerprint == EVENT_PACK.fingerprint:
        return (spans.failure(row, "garbage", "a pack inside a pack") for row in range(len(spans)))
    detail = f"no known schema has fingerprint {fingerprint:016x}"
    return (spans.failure(row, "unknown_schema", detail) for row in range(len(spans)))

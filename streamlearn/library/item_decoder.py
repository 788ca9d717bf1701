"""ItemDecoder: records of the topic of items as statements, and those that cannot be read. It knows no topic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import BadRecord, ConfigError
from streamlearn.events import take_rows
from streamlearn.events.rules import broken_side
from streamlearn.events.schema_lookup import named_schemas
from streamlearn.features import keys_of
from streamlearn.library.columns import Columns, columns_of, no_features
from streamlearn.library.items import WRITTEN, ItemUpdates
from streamlearn.native import native
from streamlearn.samples.event_features import feature_columns
from streamlearn.samples.item_ids import ItemIds
from streamlearn.schemas.events import item_schema
from streamlearn.schemas.record_prefix import read_framing
from streamlearn.schemas.renamed_fields import with_renamed_fields
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings.events import ITEM_ID_BYTES_MAX
from streamlearn.topics import Records

__all__ = ["ItemDecoder"]

TIME_MS_BOUND = 1 << 52
# The index of a record, and why it cannot be read.
Failures = list[tuple[int, str]]
Int64s = npt.NDArray[np.int64]


class ItemDecoder:
    """Reads the records of an application that has a library, also those of older schemas that its settings name.

    Raises:
        ConfigError: A schema file is missing or invalid, or the current schema cannot read it.
    """

    def __init__(self, folder: AppFolder, *, clock: Clock = SYSTEM_CLOCK) -> None:
        app, events = folder.app, folder.settings.events
        self._spec, self._items_max, self._clock = app.features, events.items_max, clock
        self._slot = app.features.slot(app.features.item_id)
        self._ahead_ms = 1_000 * events.ahead_s_max if folder.settings.topics.time == "wall" else None
        current = item_schema(app)
        old, registry = named_schemas(folder)
        renamed = {one.was: one.name for columns in app.features.of_library for one in columns if one.was}
        known = [schema for schema in (*old, *registry.values()) if schema.name == current.name]
        self._registry = {number: schema.fingerprint for number, schema in registry.items()}
        self._plans = {current.fingerprint: current.plan}
        for schema in known:
            try:
                plan = native.AvroPlan(with_renamed_fields(schema, renamed).text, current.text)
            except ValueError as error:
                message = f"an older schema of {schema.name} cannot be read as today's: {error}"
                raise ConfigError(message, help="give added features a default, or write all items again") from error
            self._plans.setdefault(schema.fingerprint, plan)

    def decode(self, records: Records) -> tuple[list[ItemUpdates], Failures]:
        """Return what some records of a partition state, and the records that cannot be read."""
        groups: dict[tuple[int, int], list[int]] = {}
        failures, deleted = Failures(), list[int]()
        for index, value in enumerate(records.values):
            if value is None:
                deleted.append(index)
                continue
            try:
                groups.setdefault(self._framing(value), []).append(index)
            except BadRecord as error:
                failures.append((index, error.message))
        updates = self._deleted(records, deleted, failures)
        for (fingerprint, body_at), indexes in groups.items():
            plan = self._plans.get(fingerprint)
            if plan is None:
                failures += [
                    (index, f"no known schema of items has fingerprint {fingerprint:016x}") for index in indexes
                ]
                continue
            bodies = [records.values[index] for index in indexes]
            columns, kept, malformed = plan.decode_list(bodies, body_at, items_max=self._items_max)
            failures += [(indexes[row], reason) for row, reason in malformed]
            updates += self._updates(records, columns, np.array(indexes, np.int64)[kept], failures)
        return updates, sorted(failures)

    def _framing(self, value: bytes) -> tuple[int, int]:
        """Return the fingerprint of a record's schema, and where its body begins."""
        framing = read_framing(value[:PREFIX_BYTES])
        fingerprint = framing.fingerprint
        if fingerprint is None:
            fingerprint = self._registry.get(framing.registry_id or 0)
        if fingerprint is None:
            message = f"schema registry id {framing.registry_id} is not in topics.schema_ids"
            raise BadRecord(message)
        return fingerprint, framing.body_at

    def _deleted(self, records: Records, indexes: list[int], failures: Failures) -> list[ItemUpdates]:
        """Return tombstones as removals at their records' times."""
        ids: list[Any] = []
        kept: list[int] = []
        for index in indexes:
            item_id = self._id_of(records.keys[index] or b"")
            if item_id is None:
                failures.append((index, f"a tombstone whose key is not an item id: {records.keys[index]!r:.80}"))
            else:
                ids.append(item_id)
                kept.append(index)
        if not kept:
            return []
        column = ItemIds.of_texts(ids) if self._slot.value == "str" else ItemIds(np.array(ids, np.int64))
        return [self._removals(column, records.timestamps_ms[kept], records.offsets[kept])]

    def _id_of(self, key: bytes) -> str | np.int64 | None:
        """Return the item id whose text a key is, if it is one."""
        try:
            text = key.decode()
            item_id = text if self._slot.value == "str" else np.int64(int(text))
        except (ValueError, OverflowError):
            return None
        return item_id if 1 <= len(key) <= ITEM_ID_BYTES_MAX and str(item_id) == text else None

    def _updates(self, records: Records, columns: Columns, indexes: Int64s, failures: Failures) -> list[ItemUpdates]:
        """Return what rows of one schema state: items with features, and removals."""
        broken = dict[int, str]()
        for rows, rule in self._broken(records, columns, indexes):
            for row in np.flatnonzero(rows).tolist():
                broken.setdefault(row, rule)
        failures += [(int(indexes[row]), rule) for row, rule in broken.items()]
        is_kept = np.ones(len(indexes), np.bool_)
        is_kept[list(broken)] = False
        has_features = columns["features?"] == 1
        written, removed = (np.flatnonzero(is_kept & are) for are in (has_features, ~has_features))
        ids, event_ms = ItemIds(columns["item_id"], columns.get("item_id$")), columns["event_time_ms"]
        offsets = records.offsets[indexes]
        updates = [self._removals(ids.take(removed), event_ms[removed], offsets[removed])] if len(removed) else []
        if len(written):
            shown = feature_columns(self._spec.of_library, take_rows(_features(columns), written), "items")
            described = columns_of(self._spec, shown)
            updates.append(self._statement(ids.take(written), event_ms[written], offsets[written], described))
        return updates

    def _broken(self, records: Records, columns: Columns, indexes: Int64s) -> Any:
        """Yield rows that break a rule, and the rule."""
        event_ms = columns["event_time_ms"]
        yield (event_ms < 0) | (event_ms >= TIME_MS_BOUND), "its event_time_ms is before 1970, or after all times"
        if self._ahead_ms is not None:
            is_ahead = event_ms > self._clock.wall_ms() + self._ahead_ms
            yield is_ahead, f"its event_time_ms is more than {self._ahead_ms / 1e3:g} s ahead of this machine"
        ids = ItemIds(columns["item_id"], columns.get("item_id$"))
        if ids.offsets is not None:
            lengths = np.diff(ids.offsets)
            yield (lengths == 0) | (lengths > ITEM_ID_BYTES_MAX), f"its id does not have 1 to {ITEM_ID_BYTES_MAX} bytes"
        texts = [str(one).encode() for one in ids.listed()]
        keys = [records.keys[index] for index in indexes.tolist()]
        is_other = np.array([key != text for key, text in zip(keys, texts, strict=True)], np.bool_)
        yield is_other, "the key of the record is not the text of its item id"
        has_features = columns["features?"] == 1
        for rows, rule in broken_side(self._spec, _features(columns), "item", self._items_max):
            yield rows & has_features, rule

    def _removals(self, ids: ItemIds, event_ms: Int64s, offsets: Int64s) -> ItemUpdates:
        blank = take_rows(no_features(self._spec), np.zeros(len(ids), np.int64))
        return self._statement(ids, event_ms, offsets, blank, are_removals=True)

    def _statement(
        self, ids: ItemIds, event_ms: Int64s, offsets: Int64s, features: Columns, *, are_removals: bool = False
    ) -> ItemUpdates:
        keys = keys_of(self._slot, ids.values, offsets=ids.offsets)
        removals = np.full(len(ids), are_removals)
        return ItemUpdates(keys, ids, event_ms, offsets.astype(np.uint64) | WRITTEN, removals, features)


def _features(columns: Columns) -> dict[str, npt.NDArray[Any]]:
    """Return the features of items by their names in impressions."""
    begin = "features."
    return {f"items.{name.removeprefix(begin)}": column for name, column in columns.items() if name.startswith(begin)}

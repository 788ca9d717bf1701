"""Records of the topic of items as statements: what is refused, by which reason; older schemas, and tombstones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError
from streamlearn.events import EventDecoder
from streamlearn.events.encoder import EventEncoder
from streamlearn.features import Dense, FeatureSpec
from streamlearn.library.item_decoder import ItemDecoder
from streamlearn.library.items import WRITTEN
from streamlearn.library.library import Library
from streamlearn.schemas.events import item_schema
from streamlearn.schemas.schema import MARKER
from streamlearn.testing import ManualClock
from streamlearn.topics import Records
from tests.library.place import T_MS, features, library_app, library_folder

FOLDER = library_folder(library_app())
TEXTS = library_folder(library_app("str"))
SCHEMA = item_schema(FOLDER.app)


def records_of(*given: tuple[bytes | None, bytes | None], begin: int = 0) -> Records:
    """Records of a partition, by key and value, a second apart."""
    numbers = np.arange(begin, begin + len(given), dtype=np.int64)
    keys, values = [key for key, _ in given], [value for _, value in given]
    return Records(0, numbers, T_MS + 1_000 * numbers, keys, values, begin + len(given))


def record(folder: AppFolder, item_id: Any, seed: int | None, event_time_ms: int = T_MS) -> tuple[bytes, bytes]:
    """One record, as a Producer writes it."""
    said = {"item_id": item_id, "event_time_ms": event_time_ms, "features": None if seed is None else features(seed)}
    return EventEncoder(folder.app, folder.settings.events).item(said)


def raw(**changed: Any) -> bytes:
    """A record that no Producer writes."""
    return SCHEMA.write({"item_id": 7, "event_time_ms": T_MS, "features": features(2)} | changed)


def library_of(folder: AppFolder, records: Records) -> tuple[Library, list[tuple[int, str]]]:
    """The library of some records, and what could not be read."""
    updates, failures = ItemDecoder(folder).decode(records)
    library = Library(folder.app)
    for statements in updates:
        library.apply(statements)
    return library, failures


def known(library: Library) -> dict[Any, float]:
    """The first number of each item's vector, by id."""
    view = library.view()
    return dict(zip(view.ids_of().listed(), view.items().features.dense["vector"][:, 0].tolist(), strict=True))


def test_what_is_written_is_what_is_read() -> None:
    given = [
        record(FOLDER, 7, 2),
        record(FOLDER, 8, 3),
        record(FOLDER, 7, 5, T_MS + 1),
        record(FOLDER, 8, None, T_MS + 2),
    ]
    library, failures = library_of(FOLDER, records_of(*given, record(FOLDER, -9, 4)))
    assert (known(library), failures) == ({7: 5.0, -9: 4.0}, [])
    texts, failures = library_of(TEXTS, records_of(record(TEXTS, "käse", 1), record(TEXTS, "b", 2)))
    assert (known(texts), failures) == ({"käse": 1.0, "b": 2.0}, [])


def test_statements_stand_after_samples_of_their_time_and_in_the_order_of_offsets() -> None:
    updates, _ = ItemDecoder(FOLDER).decode(records_of(record(FOLDER, 7, 2), record(FOLDER, 7, 3), begin=40))
    assert [one for update in updates for one in update.origin.tolist()] == [int(WRITTEN) + 40, int(WRITTEN) + 41]
    library, _ = library_of(FOLDER, records_of(record(FOLDER, 7, 2), record(FOLDER, 7, 3)))
    assert known(library) == {7: 3.0}


def test_a_tombstone_removes_at_the_time_of_its_record() -> None:
    given = [record(FOLDER, 7, 2, T_MS + 1_500), (b"7", None), record(FOLDER, 8, 2, T_MS), (b"8", None)]
    library, failures = library_of(FOLDER, records_of(*given))
    assert (known(library), failures) == ({7: 2.0}, [])  # its record is of 1 s, the item of 1.5 s
    for key in (b"seven", b"", None, b"9" * 30, b"\xff", b" 7", b"+7", b"7" * 300):
        assert "a tombstone whose key is not an item id" in library_of(FOLDER, records_of((key, None)))[1][0][1]
    for key in (b"\xff", b"", b"x" * 257):
        assert "a tombstone" in library_of(TEXTS, records_of((key, None)))[1][0][1]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (b"7", b"", "begins with nothing"),
        (b"7", b"{}", "begins 7b 7d"),
        (b"7", MARKER + b"12345678", "no known schema of items has fingerprint"),
        (b"7", b"\x00\x00\x00\x00\x09aaaaaaaa", "schema registry id 9 is not in topics.schema_ids"),
        (b"7", raw()[:-3], ""),
        (b"7", raw() + b"x", ""),
        (b"7", raw(event_time_ms=-1), "before 1970"),
        (b"7", raw(event_time_ms=1 << 52), "after all times"),
        (b"8", raw(), "the key of the record is not the text of its item id"),
        (None, raw(), "the key of the record is not"),
        (b"7", raw(features=features(2) | {"vector": [1.0]}), "vector does not have 3 numbers"),
        (b"7", raw(features=features(2) | {"vector": [1.0, float("nan"), 1.0]}), "vector is not finite"),
        (b"7", raw(features=features(2) | {"topics": [1] * 5_000}), ""),
        (b"7", raw(features=features(2) | {"topics_weights": []}), "one weight for each value"),
    ],
)
def test_a_record_that_is_wrong_is_named_and_the_others_are_read(key: bytes | None, value: bytes, said: str) -> None:
    given = [record(FOLDER, 1, 1), (key, value), record(FOLDER, 2, 2), record(FOLDER, 3, None)]
    library, failures = library_of(FOLDER, records_of(*given))
    assert [index for index, _ in failures] == [1]
    assert said in failures[0][1]
    assert known(library) == {1: 1.0, 2: 2.0}


@pytest.mark.parametrize("item_id", ["", "x" * 257, "x" * 65_536])
def test_an_id_without_or_with_too_many_bytes_is_refused(item_id: str) -> None:
    value = item_schema(TEXTS.app).write({"item_id": item_id, "event_time_ms": T_MS, "features": None})
    _, failures = library_of(TEXTS, records_of((item_id.encode(), value)))
    assert failures == [(0, "its id does not have 1 to 256 bytes")]


def test_times_of_the_future_are_refused_in_live_traffic_alone() -> None:
    clock = ManualClock(wall_ms=T_MS)
    given = records_of(record(FOLDER, 7, 2, T_MS + 601_000), record(FOLDER, 8, 2, T_MS + 599_000))
    live = library_folder(library_app(), topics={"time": "wall"})
    _, failures = ItemDecoder(live, clock=clock).decode(given)
    assert failures == [(0, "its event_time_ms is more than 600 s ahead of this machine")]
    assert ItemDecoder(FOLDER, clock=clock).decode(given)[1] == []


def test_records_of_an_older_schema_are_read_when_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "old.avsc").write_text(SCHEMA.text)
    spec = FOLDER.app.features
    dense = tuple(replace(one, name="place", was="vector") if one.name == "vector" else one for one in spec.dense)
    changed = FeatureSpec(spec.slots, spec.item_id, (*dense, Dense("price", "item", default=9.0)), spec.segments)
    assert FOLDER.app.retrieval is not None
    retrieval = replace(FOLDER.app.retrieval, item=("video_id", "tags"))
    app = replace(FOLDER.app, name="changed", features=changed, retrieval=retrieval)
    newer = library_folder(app, tmp_path, topics={"old_schemas": ["old.avsc"]})
    library, failures = library_of(newer, records_of(record(FOLDER, 7, 2)))
    assert failures == []
    found = library.view().items().features.dense
    assert {name: numbers.tolist() for name, numbers in found.items()} == {"place": [[2.0] * 3], "price": [[9.0]]}
    assert library_of(library_folder(app), records_of(record(FOLDER, 7, 2)))[1][0][1].startswith("no known schema")
    EventDecoder.of(newer)  # which has no use for it
    unfit = replace(app, features=replace(changed, dense=(*dense, Dense("price", "item"))))
    with pytest.raises(ConfigError, match="an older schema of LibraryItem cannot be read as today's"):
        ItemDecoder(library_folder(unfit, tmp_path, topics={"old_schemas": ["old.avsc"]}))


def test_records_may_have_the_framing_of_a_schema_registry(tmp_path: Path) -> None:
    (tmp_path / "item.avsc").write_text(json.dumps(SCHEMA.json))
    folder = library_folder(library_app(), tmp_path, topics={"schema_ids": {"9": "item.avsc"}})
    value = b"\x00\x00\x00\x00\x09" + raw()[10:]
    library, failures = library_of(folder, records_of((b"7", value), record(FOLDER, 8, 4)))
    assert (known(library), failures) == ({7: 2.0, 8: 4.0}, [])


@given(
    at=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    end=st.floats(0, 1),
    key=st.one_of(st.none(), st.binary(max_size=9), st.just(b"7")),
)
def test_damaged_records_are_read_or_refused_and_nothing_else(
    at: list[tuple[float, int]], end: float, key: bytes | None
) -> None:
    value = raw()
    damaged = bytearray(value)
    for place, flip in at:
        damaged[int(place * len(value))] ^= flip
    given = [record(FOLDER, 1, 1), (key, bytes(damaged[: round(end * len(value))]))]
    library, failures = library_of(FOLDER, records_of(*given))
    assert len(failures) <= 1
    assert known(library)[1] == 1.0

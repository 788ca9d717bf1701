"""Cutting blobs into lots: every event is in the lot of its request, and nothing bad vanishes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.apps import AppFolder
from streamlearn.events import EventDecoder, Failure, Origin
from streamlearn.events.encoder import EventEncoder
from streamlearn.features import keys_of
from streamlearn.ingest import JoinCore, JoinPlan
from streamlearn.ingest.join.lot_events import LotEvents, decode_lot, encode_lot
from streamlearn.ingest.join.lots import LotCutter, lots_of
from streamlearn.ingest.output.letter_box import LetterBox
from streamlearn.ingest.reading.blob import Blob, Section
from streamlearn.ingest.reading.meters import count_dead_letters
from streamlearn.native import native
from streamlearn.schemas import DEAD_LETTER, EVENT_PACK, impression_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings import EventSettings
from streamlearn.telemetry import counter
from streamlearn.testing import small_app, small_impression
from tests.events.place import written
from tests.ingest.place import T_MS, Place, memory_root, reading, take_all

LOTS = 4
NEVER_MS = 1 << 55
TOPICS = (("small.impressions", "events-id"), ("small.actions", "actions-id"))
NONE = np.empty(0, np.int64)
EMPTY = Section(NONE, NONE, NONE, [], [])


@pytest.fixture
def folder(place: Place) -> AppFolder:
    return place.folder


@pytest.fixture
def encoder() -> EventEncoder:
    return EventEncoder(small_app(), EventSettings())


def impression(encoder: EventEncoder, seed: int, **given: Any) -> bytes:
    return encoder.impression(small_impression(seed) | {"shown_wall_ms": T_MS} | given)


def action(encoder: EventEncoder, what: str) -> bytes:
    given = {"request_id": "q", "event_time_ms": T_MS, "item_id": 1, "action": what, "weight": 1.0}
    return encoder.action(given)


def section(values: list[bytes | None], limit_ms: int = NEVER_MS, first: int = 100) -> Section:
    count = len(values)
    limits = np.full(count, limit_ms, np.int64)
    times = np.full(count, T_MS, np.int64)
    return Section(np.arange(first, first + count), times, limits, [b"k"] * count, values)


def cutter(folder: AppFolder, start_ms: int | None = None) -> LotCutter:
    return LotCutter(folder, LOTS, TOPICS, start_ms)


def ids(events: Any) -> list[bytes]:
    return [
        events.request_ids[begin:stop].tobytes()
        for begin, stop in zip(events.request_at, events.request_at[1:], strict=False)
    ]


def lot_of(request_id: bytes) -> Any:
    return (
        native.hash_strings(
            np.array([0, len(request_id)], np.int32),
            np.frombuffer(request_id, np.uint8),
            native.slot_salt("streamlearn.lot"),
        ).tolist()[0]
        % LOTS
    )


def test_every_event_of_packs_and_alone_comes_in_the_lot_of_its_request(place: Place) -> None:
    with place.producer() as producer:
        for seed in range(200):
            given = small_impression(seed) | {"event_time_ms": T_MS + seed}
            producer.impression(**given)
            for item in given["items"]:
                producer.action(given["request_id"], T_MS + seed + 5, item["video_id"], ("click", "purchase")[seed % 2])
            if seed == 50:
                producer.flush()
        producer.end(T_MS + 1000)
    with reading(place.plan()) as reader:
        cuts = [cutter(place.folder).cut(blob) for blob in take_all(reader)]
    found = [decode_lot(encode_lot(lot)) for cut in cuts for lot in cut.lots]
    assert sorted(name for lot in found for name in ids(lot.impressions)) == sorted(
        f"q{one}".encode() for one in range(200)
    )
    actions = sorted(name for lot in found for name in ids(lot.actions))
    assert actions == sorted(f"q{one}".encode() for one in range(200) for _ in range(2))
    for lot in found:
        assert all(lot_of(name) == lot.lot for name in ids(lot.impressions) + ids(lot.actions))
    assert not any(cut.failures for cut in cuts)
    _check_content(place.folder, found)


def _check_content(folder: AppFolder, found: list[LotEvents]) -> None:
    slot = folder.app.features.slot("video_id")
    decoder = EventDecoder.of(folder)
    identities = set()
    for lot in found:
        shown = lot.impressions
        payloads = [
            shown.payload[begin:stop].tobytes()
            for begin, stop in zip(shown.payload_at, shown.payload_at[1:], strict=False)
        ]
        again = decoder.decode(payloads)
        assert not again.failures
        assert again.impressions.texts("request_id") == [name.decode() for name in ids(shown)]
        assert again.impressions.columns["event_time_ms"].tolist() == shown.event_time_ms.tolist()
        assert keys_of(slot, again.impressions.columns["items.video_id"]).tolist() == shown.items.tolist()
        assert again.impressions.columns["items[]"].tolist() == shown.items_at.tolist()
        identities |= set(zip(shown.offset.tolist(), shown.first_item.tolist(), strict=True))
        for name, item, code, time_ms in zip(
            ids(lot.actions), lot.actions.items.tolist(), lot.actions.codes.tolist(),
            lot.actions.event_time_ms.tolist(), strict=True,
        ):  # fmt: skip
            seed = int(name[1:])
            assert item in keys_of(slot, [one["video_id"] for one in small_impression(seed)["items"]]).tolist()
            assert folder.app.actions[code] == ("click", "purchase")[seed % 2]
            assert time_ms == T_MS + seed + 5
    assert len(identities) == 200  # each impression of a pack has its own place there


def payloads(found: LotCutter, values: list[bytes | None]) -> tuple[set[bytes], int]:
    """The bytes that impressions go on as, and how many records and events were set aside."""
    cut = found.cut(Blob(0, False, False, T_MS, section(values), EMPTY, T_MS))
    shown = [one.impressions for one in cut.lots]
    whole = {one.payload[begin:stop].tobytes() for one in shown for begin, stop in pairwise(one.payload_at.tolist())}
    return whole, len(cut.failures)


def test_an_impression_goes_on_as_it_came_beside_broken_ones_in_packs_and_alone(
    folder: AppFolder, encoder: EventEncoder
) -> None:
    events = [impression(encoder, seed) for seed in range(9)]
    packed = EVENT_PACK.write({"events": [b"\xc3", *events[3:6]], "items": [2, 2, 2, 2]})
    values: list[bytes | None] = [events[0], events[1][:-1], packed, events[2], b"garbage", *events[6:]]
    assert payloads(cutter(folder), values) == ({event for event in events if event is not events[1]}, 3)


def test_an_impression_of_another_schema_or_framing_goes_on_as_one_of_todays(
    folder: AppFolder, encoder: EventEncoder, tmp_path: Path
) -> None:
    events = [impression(encoder, seed) for seed in range(4)]
    todays = impression_schema(folder.app)
    (tmp_path / "impression.avsc").write_text(todays.text)
    topics = msgspec.structs.replace(folder.settings.topics, schema_ids={"7": "impression.avsc"})
    settings = msgspec.structs.replace(folder.settings, topics=topics)
    found = cutter(AppFolder(folder.app, tmp_path, settings))
    framed = b"\x00" + (7).to_bytes(4, "big")
    assert payloads(found, [framed + events[0][PREFIX_BYTES:], *events[1:]]) == (set(events), 0)


def test_a_blob_that_opens_tells_every_lot(folder: AppFolder, encoder: EventEncoder) -> None:
    blob = Blob(2, True, False, T_MS, EMPTY, EMPTY, T_MS)
    assert [lot.lot for lot in cutter(folder).cut(blob).lots] == list(range(LOTS))
    assert [len(decode_lot(encode_lot(lot))) for lot in cutter(folder).cut(blob).lots] == [0] * LOTS
    one = section([impression(encoder, 1)])
    assert len(cutter(folder).cut(Blob(2, False, False, T_MS, one, EMPTY, T_MS)).lots) == 1


def test_impressions_before_the_start_are_left_out_and_counted(folder: AppFolder, encoder: EventEncoder) -> None:
    values: list[bytes | None] = [impression(encoder, seed, event_time_ms=T_MS + seed) for seed in range(10)]
    cut = cutter(folder, T_MS + 4).cut(Blob(0, False, False, 0, section(values), EMPTY, 0))
    assert cut.before_start == 4
    assert sum(map(len, cut.lots)) == 6


def test_actions_of_no_label_are_left_out_and_counted(folder: AppFolder, encoder: EventEncoder) -> None:
    values: list[bytes | None] = [action(encoder, what) for what in ("click", "wave", "purchase", "wave")]
    cut = cutter(folder).cut(Blob(0, False, False, 0, EMPTY, section(values), 0))
    assert cut.of_no_label == 2
    (lot,) = cut.lots
    assert lot.actions.codes.tolist() == [0, 1]
    assert lot.actions.offset.tolist() == [100, 102]


def test_what_cannot_be_used_is_named_with_its_origin_and_harms_nothing_beside_it(
    folder: AppFolder, encoder: EventEncoder
) -> None:
    good, future = impression(encoder, 1), impression(encoder, 2, event_time_ms=T_MS + 10**9)
    values: list[bytes | None] = [good, b"garbage", future, good[:-3], action(encoder, "click"), None]
    values += [b"\xc3\x01" + b"x" * 20, b"x" * 1_000_000]
    cut = cutter(folder).cut(Blob(3, False, False, 0, section(values, T_MS + 10**6), section([good]), 0))
    found = {
        (origin.topic, origin.offset): (failure.reason, failure.bytes == values[origin.offset - 100])
        for failure, origin in cut.failures
        if origin.topic == "small.impressions"
    }
    assert found == {
        ("small.impressions", 101): ("garbage", True),
        ("small.impressions", 102): ("impossible_time", True),
        ("small.impressions", 103): ("malformed", True),
        ("small.impressions", 104): ("other", True),
        ("small.impressions", 105): ("garbage", False),
        ("small.impressions", 106): ("unknown_schema", True),
        ("small.impressions", 107): ("oversize", True),
    }
    assert {(origin.partition, origin.topic_id, origin.key) for _, origin in cut.failures} == {
        (3, "events-id", b"k"),
        (3, "actions-id", b"k"),
    }
    wrong = [failure for failure, origin in cut.failures if origin.topic == "small.actions"]
    assert [(failure.reason, failure.detail) for failure in wrong] == [("other", "an impression in the actions topic")]
    assert sum(map(len, cut.lots)) == 1


def test_a_time_that_no_join_takes_is_impossible_however_far_a_topics_clock_lets_it_be(
    folder: AppFolder, encoder: EventEncoder
) -> None:
    times_ms = ((1 << 52) - 1, 1 << 52, (1 << 55) - 1)
    values: list[bytes | None] = [impression(encoder, at, event_time_ms=one) for at, one in enumerate(times_ms)]
    cut = cutter(folder).cut(Blob(3, False, False, 0, section(values), EMPTY, 0))
    assert [(origin.offset, failure.reason) for failure, origin in cut.failures] == [
        (101, "impossible_time"),
        (102, "impossible_time"),
    ]
    (lot,) = cut.lots
    plan = JoinPlan.of(folder.app, "topic", folder.settings.join)
    JoinCore(plan).add_impressions(lot.impressions)


def test_letters_are_acknowledged_when_flush_returns_and_counted_by_origin() -> None:
    place = Place.make(memory_root(), partitions=2)
    letters = LetterBox(place.folder)
    origin = Origin("some.topic", "some-id", 5, 77, T_MS, b"key")
    letters.give([(Failure(0, 3, "garbage", "what it was", b"bytes"), origin)] * 2)
    letters.flush()
    with create_open(place) as topic:
        found = [DEAD_LETTER.read(one.value[PREFIX_BYTES:]) for one in written(topic)]
        assert {one.partition for one in written(topic)} == {1}
    assert [(one["topic"], one["partition"], one["offset"], one["event_index"], one["head"]) for one in found] == [
        ("some.topic", 5, 77, 3, b"bytes")
    ] * 2
    help = "Dead letters (records and events), by origin and reason."
    counted = counter("ingest", "dead_letters", help, ["topic", "partition", "reason"])
    assert counted.labels("some.topic", "5", "garbage")._value.get() == 2
    count_dead_letters("some.topic", 5, "garbage", 1)
    assert counted.labels("some.topic", "5", "garbage")._value.get() == 3
    letters.close()
    place.close()


def create_open(place: Place) -> Any:
    from streamlearn.topics import open_topic

    return open_topic(place.folder.topic_url("dead_letters"))


def test_lots_are_the_same_for_ever() -> None:
    data = np.frombuffer(b"q0q1q2q3q4", np.uint8)
    offsets = np.arange(0, 12, 2, dtype=np.int32)
    assert lots_of(offsets, data, 1 << 12).tolist() == [4075, 4016, 1371, 3799, 2847]

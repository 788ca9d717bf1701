"""Samples: round trips, views, and every inconsistency refused by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.apps import App
from streamlearn.errors import BadRecord, ConfigError, DataError, Oversize, UnknownSchema
from streamlearn.features import FeatureSpec, Slot
from streamlearn.samples import FeatureColumns, SampleBatch, SampleCodec, SlotColumns
from streamlearn.samples.rules import check_batch
from streamlearn.schemas import CONTROL, Schema, schema_of
from streamlearn.schemas.sample import sample_schema
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import small_app, small_batch
from tools.golden_records import golden_sample

APP = small_app()
SCHEMA = sample_schema(APP)
CODEC = SampleCodec(APP, SampleSettings())
BATCH = small_batch(APP, 3, 7, seed=4)
MESSAGE = CODEC.encode(BATCH)
# As the release wrote it before the fingerprint of samples had labels, and its schema no application's name.
OF_BEFORE = (Path(__file__).parent / "of_before.bin").read_bytes()
TAGS = BATCH.item.slots["tags"]


def arrays(batch: SampleBatch) -> dict[str, np.ndarray[Any, Any]]:
    """Every array of a batch by a path that names it."""
    found = {f"requests.{name}": column for name, column in vars(batch.requests).items()}
    for side in ("user", "item"):
        features: FeatureColumns = getattr(batch, side)
        for name, slot in features.slots.items():
            given = {"keys": slot.keys, "offsets": slot.offsets, "weights": slot.weights}
            found |= {f"{side}.{name}.{part}": one for part, one in given.items() if one is not None}
        found |= {f"{side}.{name}": numbers for name, numbers in features.dense.items()}
    for name in ("request_index", "item_index", "settle_time_ms"):
        found[name] = getattr(batch, name)
    for label in batch.labels:
        found |= {f"{label.name}.{name}": one for name, one in label.columns.items()}
    for segment in batch.segments:
        found[f"segment.{segment.name}"] = segment.codes
    return found


@pytest.mark.parametrize(("requests", "rows"), [(0, 0), (1, 0), (1, 1), (5, 60)])
def test_a_batch_comes_back_as_it_was(requests: int, rows: int) -> None:
    batch = small_batch(APP, requests, rows, seed=8)
    read = CODEC.decode(CODEC.encode(batch))
    assert read.header == batch.header
    given, found = arrays(batch), arrays(read)
    assert list(given) == list(found)
    for name, column in given.items():
        assert found[name].dtype == column.dtype, name
        assert found[name].shape == column.shape, name
        assert found[name].tobytes() == column.tobytes(), name
    assert [(one.name, one.texts) for one in read.segments] == [(one.name, one.texts) for one in batch.segments]


def test_what_is_read_is_views_that_cannot_be_written() -> None:
    for name, column in arrays(CODEC.decode(MESSAGE)).items():
        assert not column.flags.writeable, name
        assert not column.flags.owndata, name
        whole = column
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        assert isinstance(whole.base, bytes), name


def changed(change: Callable[[dict[str, Any]], None], schema: Schema = SCHEMA) -> bytes:
    """The message with its Avro value changed, as a writer at fault would send it."""
    value = SCHEMA.read(MESSAGE[PREFIX_BYTES:])
    change(value)
    return schema.write(value)


def put(*path: Any, cut: int = 0, add: bytes = b"", whole: Any = None) -> Callable[[dict[str, Any]], None]:
    """Change the bytes of one column."""

    def change(value: dict[str, Any]) -> None:
        at: Any = value
        for step in path[:-1]:
            at = at[step]
        given = at[path[-1]]
        at[path[-1]] = (given[: len(given) - cut] + add) if whole is None else whole

    return change


def say(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Change whole fields."""
    return lambda value: value.update(fields)


def int32s(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def int64s(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def float32s(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


# (what is wrong, what is said)
INCONSISTENT: list[Any] = [
    pytest.param(put("partition", cut=3), "column partition has 9 bytes, not a whole number of <i4", id="a part"),
    pytest.param(put("partition", cut=4), "2 requests and 7 rows; the message declares 3 and 7", id="requests"),
    pytest.param(put("request_index", cut=4), "3 requests and 6 rows; the message declares 3 and 7", id="rows"),
    pytest.param(say(rows=6), "dense column vector has 21 numbers for 6 rows of 3", id="rows less"),
    pytest.param(say(requests=-1), "dense column age has 3 numbers for -1 rows of 1", id="negative requests"),
    pytest.param(put("offset", cut=8), "column offset has 2 values, expected 3", id="a request's column"),
    pytest.param(put("item_index", add=int32s(1)), "column item_index has 8 values, expected 7", id="a row's"),
    pytest.param(put("settle_time_ms", cut=8), "column settle_time_ms has 6 values", id="settle time"),
    pytest.param(
        put("request_index", whole=int32s(0, 0, 0, 0, 0, 0, 3)),
        "column request_index has an index outside [0, 3)",
        id="a request that is not there",
    ),
    pytest.param(
        put("request_index", whole=int32s(0, 0, 0, 0, 0, 0, -1)),
        "column request_index has an index outside [0, 3)",
        id="a negative request",
    ),
    pytest.param(put("user", "user_id", cut=8), "column user_id has 2 values, expected 3", id="keys"),
    pytest.param(put("user", "history", add=bytes(8)), "column history_offsets does not increase", id="many keys"),
    pytest.param(put("user", "history_offsets", cut=4), "history_offsets has 3 values, expected 4", id="offsets"),
    pytest.param(
        put("item", "tags_offsets", whole=int32s(1, 1, 1, 1, 1, 1, 1, len(TAGS.keys))),
        "column tags_offsets does not increase from 0",
        id="offsets that begin late",
    ),
    pytest.param(
        put("item", "tags_offsets", whole=int32s(0, 2, 1, 2, 2, 2, 2, len(TAGS.keys))),
        "column tags_offsets does not increase from 0",
        id="offsets that fall",
    ),
    pytest.param(put("item", "topics_weights", cut=4), "column topics_weights has", id="weights"),
    pytest.param(put("item", "vector", cut=4), "dense column vector has 20 numbers for 7 rows of 3", id="dense"),
    pytest.param(put("labels", 0, "value", cut=1), "column click.value has 6 values, expected 7", id="labels"),
    pytest.param(put("labels", 1, "weight", cut=4), "column bought.weight has 6 values", id="label weights"),
    pytest.param(
        put("labels", 0, "value", whole=bytes([2, 0, 0, 0, 0, 0, 0])),
        "label click, row 0: it is positive but settles no label, or its value is neither 0 nor 1",
        id="a value of 2",
    ),
    pytest.param(
        put("labels", 1, "settles", whole=bytes([0, 0, 0, 0, 0, 0, 255])),
        "label bought, row 6: settles is neither 0 nor 1",
        id="settles of 255",
    ),
    pytest.param(
        put("labels", 0, "sample_rate", whole=float32s(1, 1, 0, 1, 1, 1, 1)),
        "label click, row 2: sample_rate is not above 0 and at most 1",
        id="a rate of 0",
    ),
    pytest.param(
        put("labels", 0, "weight", whole=float32s(1, 1, 1, float("nan"), 1, 1, 1)),
        "label click, row 3: weight is negative or not finite",
        id="a weight of NaN",
    ),
    pytest.param(say(lot=4, lots_count=4), "lot 4 of 4 lots", id="a lot beyond the last"),
    pytest.param(say(lot=-1, lots_count=4), "lot -1 of 4 lots", id="a negative lot"),
    pytest.param(say(lot=0, lots_count=1 << 28), "at most 4096 are possible", id="too many lots"),
    pytest.param(say(watermark_ms=1 << 52), "watermark_ms has a time outside", id="a late watermark"),
    pytest.param(say(watermark_ms=-(1 << 55)), "watermark_ms has a time outside", id="an early watermark"),
    pytest.param(
        put("item_index", whole=int32s(0, 1, 2, 3, 4, 5, 1 << 20)),
        "column item_index has an index outside [0, 1048576)",
        id="an item beyond the last",
    ),
    pytest.param(put("item_index", whole=int32s(0, 1, 2, 3, 4, 5, -1)), "column item_index", id="a negative item"),
    pytest.param(put("partition", whole=int32s(0, 1, -1)), "column partition has an index", id="a partition"),
    pytest.param(put("offset", whole=int64s(0, 1, -1)), "column offset has an index", id="an offset"),
    pytest.param(
        put("event_time_ms", whole=int64s(0, 0, 1 << 52)), "event_time_ms has a time outside", id="a late impression"
    ),
    pytest.param(
        put("settle_time_ms", whole=int64s(*[-1 << 63] * 7)), "settle_time_ms has a time outside", id="settled early"
    ),
    pytest.param(put("segments", 0, "name", whole="page2"), "segments page2, fresh", id="a foreign segment"),
    pytest.param(put("segments", 0, "codes", cut=4), "column page has 6 values, expected 7", id="codes"),
    pytest.param(
        put("segments", 1, "codes", whole=int32s(0, 0, 0, 0, 0, 0, 2)),
        "column fresh has an index outside [0, 2)",
        id="a text that is not there",
    ),
]


@pytest.mark.parametrize(("change", "said"), INCONSISTENT)
def test_a_message_that_contradicts_itself_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    with pytest.raises(BadRecord) as caught:
        CODEC.decode(changed(change))
    assert said in caught.value.message
    assert "damaged" in caught.value.help


def with_features(side: str, slots: dict[str, Any] | None = None, dense: dict[str, Any] | None = None) -> SampleBatch:
    given: FeatureColumns = getattr(BATCH, side)
    features = FeatureColumns(
        {name: one for name, one in {**given.slots, **(slots or {})}.items() if one is not None},
        {name: one for name, one in {**given.dense, **(dense or {})}.items() if one is not None},
    )
    return replace(BATCH, **{side: features})  # type: ignore[arg-type]


# (the batch, what is said)
UNWRITABLE: list[Any] = [
    pytest.param(with_features("user", {"user_id": None}), "user columns history, country, age", id="no slot"),
    pytest.param(with_features("item", dense={"vector": None}), "vector are declared", id="no dense"),
    pytest.param(with_features("user", {"mood": TAGS}), "mood", id="a slot too many"),
    pytest.param(
        with_features("item", dense={"vector": np.zeros((7, 2), np.float32)}),
        "dense column vector has shape (7, 2), expected (7, 3)",
        id="a dense width",
    ),
    pytest.param(
        with_features("item", {"tags": SlotColumns(TAGS.keys)}),
        "slot tags has offsets or weights",
        id="no offsets",
    ),
    pytest.param(
        with_features("item", {"video_id": SlotColumns(np.zeros(7, np.uint64), np.arange(8, dtype=np.int32))}),
        "slot video_id has offsets or weights",
        id="offsets of a single value",
    ),
    pytest.param(
        with_features("item", {"topics": replace(BATCH.item.slots["topics"], weights=None)}),
        "slot topics has offsets or weights",
        id="no weights",
    ),
    pytest.param(replace(BATCH, labels=BATCH.labels[:1]), "labels click, but app 'small'", id="a label less"),
    pytest.param(replace(BATCH, labels=BATCH.labels[::-1]), "labels bought, click, but app", id="label order"),
    pytest.param(replace(BATCH, labels=()), "labels none, but app", id="no labels"),
    pytest.param(replace(BATCH, request_index=BATCH.request_index + 3), "request_index", id="request_index"),
]


@pytest.mark.parametrize(("batch", "said"), UNWRITABLE)
def test_a_batch_that_contradicts_its_application_is_never_written(batch: SampleBatch, said: str) -> None:
    with pytest.raises(BadRecord) as caught:
        CODEC.encode(batch)
    assert said in caught.value.message


def test_samples_of_other_features_are_refused_with_both_fingerprints() -> None:
    with pytest.raises(UnknownSchema) as caught:
        CODEC.decode(changed(say(feature_fingerprint="0123456789abcdef")))
    assert "0123456789abcdef" in caught.value.message
    assert APP.samples_fingerprint in caught.value.message
    assert "replay" in caught.value.help


def with_slots(change: Callable[[Slot], Slot]) -> App:
    return replace(APP, features=replace(APP.features, slots=tuple(map(change, APP.features.slots))))


def test_samples_of_another_schema_are_refused() -> None:
    other = with_slots(lambda slot: replace(slot, name="subjects") if slot.name == "topics" else slot)
    message = SampleCodec(other, SampleSettings()).encode(small_batch(other, 1, 1))
    for foreign in (message, CONTROL.prefix + b"x", b"\x00\x00\x00\x00\x07x"):
        with pytest.raises(UnknownSchema, match="no sample schema of app 'small' has prefix") as caught:
            CODEC.decode(foreign)
        assert "another application" in caught.value.help


def test_a_model_of_another_name_and_other_dims_reads_the_same_samples() -> None:
    wider = with_slots(lambda slot: replace(slot, dim=32, initial_range=0.25, table=f"wide_{slot.table}"))
    read = SampleCodec(replace(wider, name="wider", model="deepfm"), SampleSettings()).decode(MESSAGE)
    assert read.header == BATCH.header
    assert {name: one.tolist() for name, one in arrays(read).items()} == {
        name: one.tolist() for name, one in arrays(BATCH).items()
    }


SWAPPED = replace(APP, labels=APP.labels[::-1])
RENAMED = replace(APP, labels=(replace(APP.labels[0], name="share"), APP.labels[1]))


@pytest.mark.parametrize("message", [MESSAGE, OF_BEFORE], ids=["today", "before"])
@pytest.mark.parametrize(("app", "names"), [(SWAPPED, "bought, click"), (RENAMED, "share, bought")])
def test_samples_of_other_labels_are_refused_by_name(app: App, names: str, message: bytes) -> None:
    with pytest.raises(UnknownSchema) as caught:
        SampleCodec(app, SampleSettings()).decode(message)
    assert caught.value.message == f"the message has the labels click, bought; app 'small' expects {names}"


def test_samples_of_before_are_read_whatever_their_windows() -> None:
    """They name their labels themselves, so their fingerprint need not."""
    slower = replace(APP, groups=(replace(APP.groups[0], window_s=700), APP.groups[1]))
    for app in (APP, slower):
        read = SampleCodec(app, SampleSettings()).decode(OF_BEFORE)
        assert (read.header.feature_fingerprint, read.header.window_settings) == (
            APP.features.fingerprint, APP.window_settings,
        )  # fmt: skip
        assert arrays(read).keys() == arrays(golden_sample()).keys()
        for name, column in arrays(golden_sample()).items():
            assert np.array_equal(arrays(read)[name], column, equal_nan=column.dtype.kind == "f"), name


def test_samples_of_before_of_other_dims_are_refused() -> None:
    wider = with_slots(lambda slot: replace(slot, dim=32))
    with pytest.raises(UnknownSchema, match=f"the fingerprint {APP.features.fingerprint}"):
        SampleCodec(wider, SampleSettings()).decode(OF_BEFORE)


def test_a_message_cut_anywhere_is_refused() -> None:
    for length in range(0, len(MESSAGE), 7):
        with pytest.raises(BadRecord):
            CODEC.decode(MESSAGE[:length])


@pytest.mark.parametrize("message", [b"", b"{}", b"\xc3\x02" + bytes(40)])
def test_garbage_is_refused(message: bytes) -> None:
    with pytest.raises(BadRecord, match="begins"):
        CODEC.decode(message)


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(BadRecord, match=r"SampleBatch ends after \d+ of \d+ bytes"):
        CODEC.decode(MESSAGE + b"\0")


def test_a_message_of_too_many_bytes_is_neither_read_nor_written() -> None:
    tight = SampleCodec(APP, SampleSettings(message_bytes_max=1_024))
    assert len(MESSAGE) > 1_024
    for call in (lambda: tight.encode(BATCH), lambda: tight.decode(MESSAGE)):
        with pytest.raises(Oversize, match=f"a message of {len(MESSAGE)} bytes") as caught:
            call()
        assert caught.value.help == "a message may have at most 1024 bytes"


def test_a_message_of_too_many_rows_is_neither_read_nor_written() -> None:
    tight = SampleCodec(APP, SampleSettings(message_rows_max=6))
    for call in (lambda: tight.encode(BATCH), lambda: tight.decode(MESSAGE)):
        with pytest.raises(Oversize, match="a message of 7 rows") as caught:
            call()
        assert caught.value.help == "samples.message_rows_max is 6"
    with pytest.raises(Oversize, match="a message of -1 rows"):
        CODEC.decode(changed(say(rows=-1)))


def test_a_message_whose_labels_are_not_those_of_its_fingerprint_is_refused() -> None:
    for change in (lambda value: value["labels"].reverse(), lambda value: value["labels"].clear()):
        with pytest.raises(UnknownSchema, match="the message has the labels"):
            CODEC.decode(changed(change))


def test_a_refusal_quotes_the_beginning_of_many_labels_and_of_long_texts() -> None:
    def many_labels(value: dict[str, Any]) -> None:
        value["labels"] = [value["labels"][0] | {"name": f"x{at}" + "y" * 1000} for at in range(1000)]

    for change, said in (
        (many_labels, "the labels x0yyy.*, x31y* and 968 more; app 'small' expects click, bought"),
        (say(feature_fingerprint="f" * 1_000_000), f"the fingerprint f{{80}}; .* expects {APP.samples_fingerprint}"),
    ):
        with pytest.raises(UnknownSchema, match=said) as caught:
            CODEC.decode(changed(change))
        assert len(caught.value.message) < 4000


def without_segments() -> Schema:
    fields = [field for field in SCHEMA.json["fields"] if field["name"] != "segments"]
    return schema_of(SCHEMA.json | {"fields": fields})


def test_messages_of_an_older_schema_are_read_when_it_is_known() -> None:
    older = without_segments()
    message = changed(lambda value: value.pop("segments"), older)
    with pytest.raises(UnknownSchema):
        CODEC.decode(message)
    read = SampleCodec(APP, SampleSettings(), (older,)).decode(message)
    assert read.segments == ()
    assert read.request_index.tolist() == BATCH.request_index.tolist()


def test_an_older_schema_that_cannot_be_read_as_todays_is_refused_at_once() -> None:
    fields = [field for field in SCHEMA.json["fields"] if field["name"] != "lot"]
    older = schema_of(SCHEMA.json | {"fields": fields})
    with pytest.raises(ConfigError, match="lot"):
        SampleCodec(APP, SampleSettings(), (older,))


@given(
    at=st.lists(st.tuples(st.integers(0, len(MESSAGE) - 1), st.integers(1, 255)), max_size=4),
    end=st.one_of(st.just(len(MESSAGE)), st.integers(0, len(MESSAGE))),
    added=st.binary(max_size=8),
)
def test_a_damaged_message_is_refused_or_consistent_and_nothing_else(
    at: list[tuple[int, int]], end: int, added: bytes
) -> None:
    damaged = bytearray(MESSAGE)
    for place, flip in at:
        damaged[place] ^= flip
    with suppress(DataError):
        read = CODEC.decode(bytes(damaged[:end]) + added)
        check_batch(APP, read)
        assert read.header.feature_fingerprint in (APP.samples_fingerprint, APP.features.fingerprint)
        assert len(CODEC.encode(read)) > 0


def test_sequences_of_two_lengths_are_refused_by_both_names() -> None:
    sequences = [Slot(name, "user", multi=True, pooling="sequence", length=4) for name in ("seen", "seconds")]
    features = FeatureSpec(slots=(Slot("video_id", "item"), *sequences), item_id="video_id")
    app = replace(APP, features=features)
    codec = SampleCodec(app, SampleSettings())
    batch = small_batch(app, 3, 7)
    assert len(codec.decode(codec.encode(batch))) == 7
    seconds = SlotColumns(np.zeros(2, np.uint64), np.array([0, 0, 0, 2], np.int32))
    wrong = FeatureColumns({**batch.user.slots, "seconds": seconds}, {})
    with pytest.raises(BadRecord, match="sequences seen and seconds are columns of one history"):
        codec.encode(replace(batch, user=wrong))


def test_a_column_of_another_type_is_refused_and_never_cast() -> None:
    batch = small_batch(APP, 3, 7)
    wide = replace(batch, item_index=batch.item_index.astype(np.int64))
    with pytest.raises(BadRecord, match="column item_index is int64, expected int32"):
        CODEC.encode(wide)

"""Ids of items in samples: there with retrieval alone, and those of the keys."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, DataError
from streamlearn.features import keys_of
from streamlearn.samples import SampleCodec
from streamlearn.samples.item_ids import ItemIds
from streamlearn.samples.rules import check_batch
from streamlearn.settings.events import ITEM_ID_BYTES_MAX, SampleSettings
from streamlearn.testing import small_app, small_batch
from streamlearn.trainer.intake.extract import join_batches, rows_of
from tests.library.place import library_app

APPS = {value: library_app(value) for value in ("int", "str")}
CODECS = {value: SampleCodec(app, SampleSettings()) for value, app in APPS.items()}
BATCHES = {value: small_batch(app, 3, 7, seed=4) for value, app in APPS.items()}
MESSAGES = {value: CODECS[value].encode(batch) for value, batch in BATCHES.items()}
BOTH = pytest.mark.parametrize("value", APPS)


def ids(batch: object) -> list[int] | list[str]:
    found = getattr(batch, "item_ids", None)
    assert isinstance(found, ItemIds)
    return found.listed()


@BOTH
def test_ids_come_back_and_are_those_of_the_keys(value: str) -> None:
    read = CODECS[value].decode(MESSAGES[value])
    assert ids(read) == ids(BATCHES[value])
    slot = APPS[value].features.slot("video_id")
    assert (keys_of(slot, ids(read)) == read.item.slots["video_id"].keys).all()


def test_without_retrieval_samples_have_none_and_are_the_same_bytes() -> None:
    app = small_app()
    codec = SampleCodec(app, SampleSettings())
    message = codec.encode(small_batch(app, 3, 7, seed=4))
    assert codec.decode(message).item_ids is None
    assert app.samples_fingerprint != APPS["int"].samples_fingerprint
    assert app.model_fingerprint == APPS["int"].model_fingerprint


@BOTH
def test_rows_and_joined_messages_keep_their_ids(value: str) -> None:
    batch = BATCHES[value]
    some = rows_of(batch, np.array([1, 4, 6]))
    assert ids(some) == [ids(batch)[row] for row in (1, 4, 6)]
    assert batch.item_ids is not None
    assert batch.item_ids.take(slice(2, 5)).listed() == ids(batch)[2:5]
    (joined,) = join_batches([some, batch], 100)
    assert ids(joined) == ids(some) + ids(batch)


def wrong(value: str, ids: ItemIds | None, said: str) -> None:
    with pytest.raises(BadRecord, match=said):
        CODECS[value].encode(replace(BATCHES[value], item_ids=ids))


@BOTH
def test_ids_that_are_not_those_of_the_keys_are_refused(value: str) -> None:
    given = BATCHES[value].item_ids
    assert given is not None
    wrong(value, None, "missing, or not of type")
    wrong(value, BATCHES["str" if value == "int" else "int"].item_ids, "missing, or not of type")
    wrong(value, given.take(np.arange(7)[::-1]), "not those of the keys")
    wrong(value, given.take(np.arange(6)), "item_ids")


def test_an_id_of_64_kib_is_refused() -> None:
    texts = ["x" * 65_536, *ids(BATCHES["str"])[1:]]
    wrong("str", ItemIds.of_texts([str(text) for text in texts]), f"longer than {ITEM_ID_BYTES_MAX} bytes")


@given(
    value=st.sampled_from(sorted(APPS)),
    at=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    end=st.floats(0, 1),
)
def test_a_damaged_message_is_refused_or_consistent(value: str, at: list[tuple[float, int]], end: float) -> None:
    message = MESSAGES[value]
    damaged = bytearray(message)
    for place, flip in at:
        damaged[int(place * len(message))] ^= flip
    with suppress(DataError):
        read = CODECS[value].decode(bytes(damaged[: round(end * len(message))]))
        check_batch(APPS[value], read)
        ids(read)


@given(texts=st.lists(st.text(max_size=9)), rows=st.lists(st.integers(0, 1 << 30)))
def test_texts_are_taken_and_joined_as_lists_are(texts: list[str], rows: list[int]) -> None:
    column = ItemIds.of_texts(texts)
    at = [row % len(texts) for row in rows] if texts else []
    taken = column.take(np.array(at, np.int64))
    assert (column.listed(), taken.listed()) == (texts, [texts[row] for row in at])
    joined = ItemIds.joined([column, taken])
    assert joined is not None
    assert (joined.listed(), len(joined)) == (texts + taken.listed(), len(texts) + len(at))

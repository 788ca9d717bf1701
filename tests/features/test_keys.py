"""Keys of values: the same as those events get, whatever the values come in."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import UsageError
from streamlearn.events import EventColumns, EventDecoder, EventEncoder
from streamlearn.features import Slot, keys_of
from streamlearn.native import native
from streamlearn.settings import EventSettings
from streamlearn.testing import small_app, small_impression

APP = small_app()
INTS, TEXTS = Slot("video_id", "item"), Slot("brand", "item", value="str", table="text")


def _hashed(slot: Slot, columns: Any) -> Any:
    """The keys of a slot's column of events, as whoever reads events hashes it."""
    path = f"{'user' if slot.side == 'user' else 'items'}.{slot.name}"
    salt = native.slot_salt(slot.salt_name)
    if slot.value == "int":
        return native.hash_ints(columns[path], salt).tolist()
    return native.hash_strings(columns[f"{path}$"], columns[path], salt).tolist()


def _decoded(impressions: list[dict[str, Any]]) -> EventColumns:
    encoder, decoder = EventEncoder(APP, EventSettings()), EventDecoder(APP, EventSettings())
    events = decoder.decode([encoder.impression({**one, "shown_wall_ms": 0}) for one in impressions])
    assert events.failures == ()
    return events.impressions


def test_values_have_the_keys_that_their_events_have() -> None:
    impressions = [small_impression(seed, items=3) for seed in range(20)]
    columns = _decoded(impressions).columns
    for slot in APP.features.slots:
        rows = [one["user"] for one in impressions]
        if slot.side == "item":
            rows = [item for one in impressions for item in one["items"]]
        values = [value for row in rows for value in (row[slot.name] if slot.multi else [row[slot.name]])]
        expected = _hashed(slot, columns)
        assert keys_of(slot, values).tolist() == expected
        assert keys_of(slot, np.array(values)).tolist() == expected
        path = f"{'user' if slot.side == 'user' else 'items'}.{slot.name}"
        assert keys_of(slot, columns[path], offsets=columns.get(f"{path}$")).tolist() == expected


def test_one_value_has_one_key_whatever_it_comes_in() -> None:
    expected = keys_of(INTS, [-1, 0, 7])
    assert expected.dtype == np.uint64
    small, swapped, apart = np.array([-1, 0, 7], np.int8), np.array([-1, 0, 7], ">i4"), np.array([-1, 5, 0, 5, 7])[::2]
    for values in (small, swapped, apart, (-1, 0, 7)):
        assert keys_of(INTS, values).tolist() == expected.tolist()
    assert keys_of(INTS, np.array([7], np.uint64)).tolist() == expected[2:].tolist()
    texts = keys_of(TEXTS, ["", "über", "火車"])
    for given in (np.array(["", "über", "火車"]), np.array(["", "über", "火車"], object), ("", "über", "火車")):
        assert keys_of(TEXTS, given).tolist() == texts.tolist()
    for slot in (INTS, TEXTS):
        assert keys_of(slot, []).shape == keys_of(slot, np.array([])).shape == (0,)


def test_slots_share_keys_only_when_they_say_so() -> None:
    apart, shared = Slot("other_id", "item"), Slot("watched", "user", keys_of="video_id")
    assert keys_of(apart, [7])[0] != keys_of(INTS, [7])[0] == keys_of(shared, [7])[0]


@pytest.mark.parametrize(
    ("slot", "values", "found"),
    [
        (INTS, [1.5], "float64"),
        (INTS, ["7"], "<U1"),
        (INTS, [[1, 2]], r"int64 of shape \(1, 2\)"),
        (INTS, [True], "bool"),
        (INTS, [1 << 63], "9223372036854775808"),
        (INTS, [1 << 64], "object"),
        (INTS, [None], "object"),
        (TEXTS, [7], "7"),
        (TEXTS, ["a", None], "None"),
        (TEXTS, [b"a"], "b'a'"),
        (TEXTS, "acme", "'acme'"),
        (TEXTS, [["a"]], r"\['a'\]"),
        (TEXTS, ["\ud800"], "ud800"),
    ],
)
def test_values_of_another_type_are_refused_by_the_name_of_the_slot(slot: Slot, values: Any, found: str) -> None:
    with pytest.raises(UsageError, match=rf"slot '{slot.name}' has values of type {slot.value}, .*{found}"):
        keys_of(slot, values)


def test_offsets_cut_texts_alone() -> None:
    with pytest.raises(UsageError, match=r"slot 'video_id' .* was given offsets"):
        keys_of(INTS, [7], offsets=np.array([0, 1]))
    data = np.frombuffer(b"acme", np.uint8)
    assert keys_of(TEXTS, data, offsets=np.array([0, 4])).tolist() == keys_of(TEXTS, ["acme"]).tolist()
    with pytest.raises(ValueError, match="offsets"):
        keys_of(TEXTS, data, offsets=np.array([0, 5]))


def test_declaring_features_still_loads_nothing_heavy() -> None:
    script = "import sys, streamlearn.features; print(*{'numpy', 'streamlearn._native'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

"""Computed features against an oracle that looks at every interaction for every value."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.native import native

KINDS, COLUMNS, TILES = 3, 2, 32
FEATURES: list[dict[str, Any]] = [
    {"what": "last", "column": 0, "of": [0, 1], "length": 4},
    {"what": "last", "column": 1, "of": [0, 1], "length": 2},
    {"what": "last", "column": 1, "of": [2], "length": 3},
    {"what": "count", "of": [0, 2], "windows_ms": [64, 3_200]},
    {"what": "sum", "of": [1], "windows_ms": [320]},
    {"what": "rate", "of": 0, "over": 2, "windows_ms": [320], "prior": [0.5, 4.0]},
    {"what": "since", "of": [1, 2]},
]
KNOWN, MISSING, DAMAGED, OTHER = range(4)


def features_of(number: int = 7, features: list[dict[str, Any]] = FEATURES) -> Any:
    return native.Features(json.dumps({"id": number, "kinds": KINDS, "columns": COLUMNS, "features": features}))


@dataclass(frozen=True)
class Happened:
    """An interaction of one entity."""

    entity: int
    time_ms: int
    order: int  # of those at one time
    kind: int
    value: float
    columns: tuple[int, int]

    @property
    def identity(self) -> int:
        return (self.order << 2 | self.kind) + (self.time_ms << 8)


def whole(number: float) -> float:
    """The nearest whole number; halves away from zero, as Rust rounds."""
    return math.copysign(math.floor(abs(number) + 0.5), number)


class Oracle:
    """The values of one entity, each from all its interactions."""

    def __init__(self, all_: list[Happened]) -> None:
        self._all = all_

    def value(self, feature: dict[str, Any], now_ms: int) -> list[float]:
        return list(getattr(self, f"_{feature['what']}")(feature, now_ms))

    def _last(self, feature: dict[str, Any], now_ms: int) -> list[int]:
        of = feature["of"]
        kept = max(one["length"] for one in FEATURES if one["what"] == "last" and one["of"] == of)
        chosen = sorted(
            {(one.time_ms, one.identity, one) for one in self._all if one.kind in of}, key=lambda one: one[:2]
        )
        known = [one.columns[feature["column"]] for time_ms, _, one in chosen[-kept:] if time_ms <= now_ms]
        return known[-feature["length"] :]

    def _count(self, feature: dict[str, Any], now_ms: int) -> list[float]:
        return [
            sum(1 for _ in self._within(kind, window_ms, now_ms))
            for kind in feature["of"]
            for window_ms in feature["windows_ms"]
        ]

    def _sum(self, feature: dict[str, Any], now_ms: int) -> list[float]:
        return [
            math.fsum(whole(one.value * 65_536) / 65_536 for one in self._within(kind, window_ms, now_ms))
            for kind in feature["of"]
            for window_ms in feature["windows_ms"]
        ]

    def _rate(self, feature: dict[str, Any], now_ms: int) -> list[float]:
        share, weight = feature["prior"]
        found = []
        for window_ms in feature["windows_ms"]:
            some, every = (sum(1 for _ in self._within(feature[of], window_ms, now_ms)) for of in ("of", "over"))
            found.append((some + share * weight) / (every + weight))
        return found

    def _since(self, feature: dict[str, Any], now_ms: int) -> list[float]:
        times = [one.time_ms for one in self._all if one.kind in feature["of"]]
        return [max(0, now_ms - max(times)) if times else -1]

    def _within(self, kind: int, window_ms: int, now_ms: int) -> list[Happened]:
        """Those in the tiles of a window that ends with that of `now_ms`, without what newer ones have displaced."""
        width = window_ms // TILES
        mine = [one for one in self._all if one.kind == kind]
        newest, last = max((one.time_ms // width for one in mine), default=0), now_ms // width
        return [one for one in mine if max(newest, last) - TILES < one.time_ms // width <= last]


HAPPENED = st.builds(
    Happened,
    entity=st.integers(0, 2),
    time_ms=st.one_of(st.integers(0, 400), st.integers(-9_000, 9_000)),
    order=st.integers(0, 9),
    kind=st.integers(0, KINDS - 1),
    value=st.floats(-100, 100, width=32),
    columns=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)


def columns_of(all_: list[Happened], first: int = 0) -> list[np.ndarray[Any, Any]]:
    return [
        np.array([one.entity for one in all_], np.uint32),
        np.array([one.time_ms for one in all_], np.int64),
        np.array([one.identity & (1 << 64) - 1 for one in all_], np.uint64),
        np.arange(first, first + len(all_), dtype=np.int64),
        np.array([one.kind for one in all_], np.uint8),
        np.array([one.value for one in all_], np.float32),
        np.array([one.columns for one in all_], np.uint64).reshape(-1),
    ]


@given(st.lists(HAPPENED, max_size=40, unique_by=lambda one: (one.entity, one.time_ms, one.order, one.kind)), st.data())
def test_every_value_is_the_oracles_in_whatever_lots_interactions_come(
    all_: list[Happened], data: st.DataObject
) -> None:
    features, stored = features_of(), [None, None, None]
    cut = data.draw(st.integers(0, len(all_)))
    for first, part in ((0, all_[:cut]), (cut, all_[cut:])):
        _, stored, folded = features.fold(stored, columns_of(part, first))
        assert folded == len(part)
    asked = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(-10_000, 10_000)), min_size=1, max_size=4))
    entities, now_ms = (np.array(column) for column in zip(*asked, strict=True))
    read, _, found = features.evaluate(stored, entities.astype(np.uint32), now_ms.astype(np.int64))
    assert read.tolist() == [KNOWN] * 3
    for feature, arrays in zip(FEATURES, found, strict=True):
        expected = [
            Oracle([one for one in all_ if one.entity == entity]).value(feature, now)
            for entity, now in zip(entities.tolist(), now_ms.tolist(), strict=True)
        ]
        if feature["what"] == "last":
            keys, ends = arrays
            assert [part.tolist() for part in np.split(keys, ends[:-1])] == expected, feature
        else:
            np.testing.assert_allclose(arrays[0].reshape(len(asked), -1), expected, rtol=1e-12, err_msg=str(feature))


def test_interactions_that_come_again_change_nothing() -> None:
    features = features_of()
    all_ = [Happened(0, 10 * at, at, at % KINDS, 1.0, (at, at)) for at in range(9)]
    _, once, _ = features.fold([None], columns_of(all_))
    _, again, folded = features.fold(once, columns_of(all_))
    assert (again, folded) == (once, 0)


def test_stored_bytes_that_cannot_be_read_are_named_and_count_as_nothing_known() -> None:
    features, none = features_of(), np.zeros(0, np.uint32)
    _, (state,), _ = features.fold([None], columns_of([Happened(0, 5, 0, 0, 1.0, (1, 2))]))
    _, (other,), _ = features_of(8).fold([None], columns_of([]))
    stored = [state, None, state[:-1], b"", other, bytes([state[0] ^ 1]) + state[1:]]
    entities = np.arange(len(stored), dtype=np.uint32)
    read, _, found = features.evaluate(stored, entities, np.full(len(stored), 99, np.int64))
    assert read.tolist() == [KNOWN, MISSING, DAMAGED, DAMAGED, OTHER, DAMAGED]
    keys, ends = found[0]
    assert (keys.tolist(), ends.tolist()) == ([1], [1] * len(stored))
    assert found[-1][0].tolist() == [-1.0] * len(stored)
    assert features.evaluate([], none, none.astype(np.int64))[0].tolist() == []
    assert len(state) <= features.bytes_max


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({5: np.zeros(0, np.float32)}, "another length"),
        ({0: np.array([1], np.uint32)}, "another length"),
        ({4: np.array([3], np.uint8)}, "there are 3 kinds"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(changed: dict[int, Any], said: str) -> None:
    columns = columns_of([Happened(0, 5, 0, 0, 1.0, (1, 2))])
    for at, column in changed.items():
        columns[at] = column
    with pytest.raises(ValueError, match=said):
        features_of().fold([None], columns)


def test_a_definition_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="there are 2 columns"):
        features_of(features=[{"what": "last", "column": 2, "of": [0], "length": 1}])

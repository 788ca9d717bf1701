"""ColumnHistory: columns in any order become a history in the order of time; and options that are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamlearn.errors import ConfigError
from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory, History, number_options

__all__: list[str] = []


def _columns(times: list[int], ids: list[str]) -> dict[str, Any]:
    return {**text_columns("request_id", ids), "event_time_ms": np.array(times, np.int64)}


@pytest.mark.parametrize("span_ms", [1, 7, 1_000])
def test_each_event_arrives_once_in_the_order_of_time_however_blocks_are_cut(span_ms: int) -> None:
    history = ColumnHistory(_columns([30, 5, 12, 5], ["d", "a", "c", "b"]), _columns([40, 3], ["f", "e"]))
    assert isinstance(history, History)
    assert (history.events_count, history.begin_ms) == (6, 3)
    shown, done, reached_ms = b"", b"", history.begin_ms
    for block in history.blocks(span_ms):
        for columns, rows in ((block.impressions, block.impressions_rows), (block.actions, block.actions_rows)):
            times = columns["event_time_ms"] if rows else np.zeros(0, np.int64)
            assert len(times) == rows
            assert ((times >= reached_ms) & (times < block.until_ms)).all()
        shown += bytes(block.impressions.get("request_id", b""))
        done += bytes(block.actions.get("request_id", b""))
        assert block.until_ms - reached_ms <= span_ms
        reached_ms = block.until_ms
        assert block.watermark_ms == reached_ms
    assert (shown, done, reached_ms) == (b"abcd", b"ef", 41)


def test_a_history_may_have_no_actions_but_not_no_impressions() -> None:
    none = _columns([], [])
    history = ColumnHistory(_columns([9], ["a"]), none)
    assert [block.actions_rows for block in history.blocks(5)] == [0]
    with pytest.raises(ConfigError, match="no impressions"):
        ColumnHistory(none, none)


@pytest.mark.parametrize(
    "options", [{"request": "1"}, {"requests": "0"}, {"requests": "1_000.5"}, {"late": "nan"}, {"late": "1.1"}]
)
def test_wrong_numbers_are_refused_with_what_there_is(options: dict[str, str]) -> None:
    defaults = {"requests": 40, "late": 0.25}
    assert number_options({"late": "1"}, defaults) == {"requests": 40, "late": 1.0}
    with pytest.raises(ConfigError) as error:
        number_options(options, defaults)
    assert "requests (default 40), late (default 0.25)" in str(error.value.help)

"""Keys that a node took from the library: an impression has one for each value, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamlearn.events.rules import broken_impressions
from streamlearn.features import Retrieval
from streamlearn.testing import small_app


def test_keys_in_place_of_texts_must_be_one_for_each_value() -> None:
    app = replace(small_app(), retrieval=Retrieval("click", ("user_id",), ("video_id",)))
    columns: dict[str, Any] = {"items[]": np.array([0, 2, 3], np.int32), "event_time_ms": np.zeros(2, np.int64)}
    columns |= {"request_id$": np.array([0, 1, 2], np.int32), "items.served_keys_tags": np.zeros(3, np.int64)}
    columns |= {"items.served_keys_tags[]": np.array([0, 0, 1, 3], np.int32)}
    columns |= {"items.tags": np.zeros(0, np.uint8), "items.tags[]": np.array([0, 2, 3, 5], np.int32)}
    rule = "served_keys_tags does not have one key for each value"
    assert [(rows.tolist(), said) for rows, said in broken_impressions(app, columns, 10) if said == rule] == [
        ([False, False], rule)
    ]
    columns["items.tags[]"] = np.array([0, 2, 4, 6], np.int32)
    assert [rows.tolist() for rows, said in broken_impressions(app, columns, 10) if said == rule] == [[True, False]]

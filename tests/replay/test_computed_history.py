"""Histories with computed columns: each impression has what had happened, and had arrived, before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.events import text_columns
from streamlearn.replay import ColumnHistory, computed_history
from streamlearn.replay.computed_history import LAG_MS
from tests.online.shop import T_MS, folder_of

WINDOW_MS = 600_000


@dataclass(frozen=True)
class Done:
    """An action on an item of a request."""

    request: int
    item: int
    kind: str
    time_ms: int
    number: float


def made(seed: int, requests: int = 60, users: int = 4, items: int = 6) -> tuple[list[Any], list[Done]]:
    """Requests of (time, user, items), and what was done; times all differ."""
    rng = np.random.default_rng(seed)
    times = (T_MS + rng.permutation(200_000)[: 4 * requests] * 5).tolist()
    shown = [(times.pop(), int(rng.integers(users)), rng.permutation(items)[: rng.integers(1, 4)].tolist())
             for _ in range(requests)]  # fmt: skip
    done = []
    for request, (time_ms, _, of_request) in enumerate(shown):
        for _ in range(int(rng.integers(0, 3))):
            kind = ("click", "order", "other")[rng.integers(3)]
            later = time_ms + 7 + 5 * int(rng.integers(0, 150_000 if rng.random() < 0.3 else 2_000))
            item = int(rng.choice(of_request)) if rng.random() < 0.9 else 99
            done.append(Done(request, item, kind, later, float(rng.integers(1, 9))))
    return shown, done


def history_of(shown: list[Any], done: list[Done]) -> ColumnHistory:
    rows = [item for _, _, items in shown for item in items]
    impressions = {
        **text_columns("request_id", [f"q{number}" for number in range(len(shown))]),
        "event_time_ms": np.array([time_ms for time_ms, *_ in shown]),
        "user.user_id": np.array([user for _, user, _ in shown]),
        "items[]": np.append(0, np.cumsum([len(items) for *_, items in shown])).astype(np.int32),
        "items.item_id": np.array(rows),
    }
    actions = {
        **text_columns("request_id", [f"q{one.request}" for one in done]),
        "event_time_ms": np.array([one.time_ms for one in done]),
        "item_id": np.array([one.item for one in done]),
        **text_columns("action", [one.kind for one in done]),
        "value": np.array([one.number for one in done], np.float32),
        "value?": np.ones(len(done), np.uint8),
    }
    return ColumnHistory(impressions, actions)


def expected(shown: list[Any], done: list[Done], now_ms: int, user: int, item: int, lag_ms: int) -> dict[str, Any]:
    """The columns of a request, from everything that ever happened."""
    at_ms = now_ms - min(0, lag_ms)
    seen = [("impression", time_ms, of, one, 0.0) for time_ms, of, items in shown for one in items]
    first: dict[tuple[int, int], Done] = {}
    for one in sorted(done, key=lambda one: one.time_ms):
        time_ms, of, items = shown[one.request]
        if one.item in items and one.time_ms <= time_ms + WINDOW_MS:
            if one.kind == "click" and (one.request, one.item) in first:
                continue  # an action that is not a number counts once
            if one.kind == "click":
                first[one.request, one.item] = one
            seen.append((one.kind, one.time_ms, of, one.item, one.number))
    past = sorted((one for one in seen if one[1] <= now_ms - lag_ms), key=lambda one: one[1])
    own, of_item = [one for one in past if one[2] == user], [one for one in past if one[3] == item]
    newest = max((time_ms for kind, time_ms, *_ in own if kind == "impression"), default=None)
    return {
        "seen": [one for kind, _, _, one, _ in own if kind == "click"][-5:],
        "pause": -1 if newest is None else ((at_ms - newest) // 1_000).bit_length(),
        "week": [sum(kind == wanted for kind, *_ in own) for wanted in ("impression", "click")],
        "spent": sum(number for kind, *_, number in own if kind == "order"),
        "buyers": [of for kind, _, of, _, _ in of_item if kind == "order"][-3:],
    }


# A lag below zero leaks what comes later, which a history of one block has.
@pytest.mark.parametrize(("span_ms", "lag_ms"), [(700, LAG_MS), (20_000, LAG_MS), (10**7, LAG_MS), (10**7, -30_000)])
@pytest.mark.parametrize("seed", range(4))
def test_impressions_have_what_had_arrived_a_lag_before_them(
    tmp_path: Path, seed: int, span_ms: int, lag_ms: int
) -> None:
    shown, done = made(seed)
    history = computed_history(history_of(shown, done), folder_of(tmp_path).app, lag_ms=lag_ms)
    rows = 0
    for block in history.blocks(span_ms):
        columns, at = block.impressions, 0
        for row in range(block.impressions_rows):
            begin, end = columns["items[]"][row : row + 2].tolist()
            assert begin == at
            at, now_ms, user = end, int(columns["event_time_ms"][row]), int(columns["user.user_id"][row])
            week = columns["user.counts"][4 * row : 4 * row + 4].tolist()
            for place in range(begin, end):
                item = int(columns["items.item_id"][place])
                found = {
                    "seen": of(columns, "user.seen", row),
                    "pause": int(columns["user.pause"][row]),
                    "week": [week[1], week[3]],
                    "spent": float(columns["user.spent"][row]),
                    "buyers": of(columns, "items.buyers", place),
                }
                assert found == expected(shown, done, now_ms, user, item, lag_ms)
            rows += 1
    assert rows == len(shown)


def of(columns: Any, path: str, row: int) -> list[int]:
    begin, end = columns[f"{path}[]"][row : row + 2].tolist()
    found: list[int] = columns[path][begin:end].tolist()
    return found


def test_columns_that_the_history_has_are_its_own(tmp_path: Path) -> None:
    shown, done = made(7)
    plain = history_of(shown, done)
    app = folder_of(tmp_path).app
    (block,) = computed_history(plain, app).blocks(10**8)
    own = ColumnHistory({**block.impressions, "user.pause": np.full(len(shown), 33)}, block.actions)
    (again,) = computed_history(own, app).blocks(10**8)
    assert set(again.impressions["user.pause"].tolist()) == {33}
    assert (again.impressions["user.seen"] == block.impressions["user.seen"]).all()

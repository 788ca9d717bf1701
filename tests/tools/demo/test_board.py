"""The board: each row once, scores beside what people did."""

from __future__ import annotations

import numpy as np
import pytest

from streamlearn.events import texts_of
from streamlearn.events.event import Columns
from streamlearn.testing import small_app
from tools.demo.board import Board


def _actions(*done: tuple[str, int, str]) -> Columns:
    requests, requests_at = texts_of(np.arange(len(done)), [one[0] for one in done])
    kinds, kinds_at = texts_of(np.arange(len(done)), [one[2] for one in done])
    return {
        "request_id": requests,
        "request_id$": requests_at,
        "item_id": np.array([one[1] for one in done]),
        "action": kinds,
        "action$": kinds_at,
    }


def _show(board: Board, request: str, scores: list[list[float]], frozen: float = np.nan, version: int = 1) -> None:
    served = np.array(scores, np.float32)
    count = len(served)
    keys = [(request, item) for item in range(count)]
    same = np.full(count, 5, np.int64), np.full(count, version, np.int64)
    board.shown(keys, *same, served, np.full((count, 1, served.shape[1]), frozen, np.float32))


def test_rows_stand_beside_what_people_did_with_them() -> None:
    board = Board(small_app())
    _show(board, "a", [[0.9, 0.1], [0.2, 0.3]])
    _show(board, "b", [[0.4, 0.6]])
    board.did(_actions(("a", 0, "click"), ("b", 0, "purchase"), ("b", 0, "looked"), ("gone", 0, "click")))
    rows = board.rows()
    assert board.keys() == [("a", 0), ("a", 1), ("b", 0)]
    assert rows.done.tolist() == [[True, False], [False, False], [False, True]]
    assert rows.auc(0) == 1.0
    assert rows.auc(1) == 1.0
    assert len(board.rows(2)) == 1


def test_a_request_that_is_shown_twice_counts_once() -> None:
    board = Board(small_app())
    _show(board, "a", [[0.9, 0.1], [0.2, 0.3]])
    _show(board, "a", [[0.1, 0.1], [0.2, 0.3], [0.7, 0.0]])
    board.did(_actions(("a", 2, "click")))
    rows = board.rows()
    assert len(board) == len(rows) == 3
    assert rows.served[:, 0].tolist() == pytest.approx([0.9, 0.2, 0.7])
    assert rows.done[:, 0].tolist() == [False, False, True]


def test_those_that_only_one_was_asked_about_are_not_compared() -> None:
    board = Board(small_app())
    _show(board, "a", [[0.9, 0.1]])
    _show(board, "b", [[0.5, 0.1]], frozen=0.3)
    _show(board, "c", [[np.nan, np.nan]], frozen=0.3, version=0)
    rows = board.rows()
    assert len(rows.compared) == 1
    assert rows.auc(0) is None
    assert len(rows.joined(rows)) == 6

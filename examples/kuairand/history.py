"""The history: the recorded week as events at their real times. `log` and `side` read the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from streamlearn.events import texts_of
from streamlearn.replay import ColumnHistory, number_options

from .log import Int64s, Log, Order, order_of, read_log
from .side import UserTable, VideoTable

__all__ = ["KuaiRandHistory", "history"]

# A click is a play of at least this duration, or of the whole video; a long view is a longer play.
CLICK_MS = 7_000
LONG_VIEW_MS = 18_000
ACTIONS = ("click", "long_view")
# Within the labels' window, and after their wait.
DELAY_MS = 120_000

Arrays = dict[str, npt.NDArray[Any]]


def history(options: Mapping[str, str]) -> KuaiRandHistory:
    """Return the recorded week. `delayed` is a share of actions that arrive two minutes late.

    Raises:
        ConfigError: The option is unknown, or not a share.
    """
    return KuaiRandHistory(**number_options(options, {"delayed": 0.0}))


class KuaiRandHistory(ColumnHistory):
    """A week of a short-video app, as impressions and the clicks and long views on them.

    Args:
        delayed: Share of actions that arrive `DELAY_MS` late, like those from phones that were offline.
    """

    def __init__(self, delayed: float = 0.0) -> None:
        log = read_log()
        order = order_of(log)
        request_ids = compute.binary_join_element_wise(
            *(pa.array(numbers).cast(pa.string()) for numbers in (log.user_id, log.time_ms)), "-"
        )
        super().__init__(_impressions(log, order, request_ids), _actions(log, request_ids, delayed))


def _impressions(log: Log, order: Order, request_ids: Any) -> Arrays:
    first, rows = order.rows[order.items_at[:-1]], order.rows
    return {
        **_texts("request_id", request_ids.take(pa.array(first))),
        "event_time_ms": log.time_ms[first],
        **_texts("segments.tab", pa.array(log.tab[first]).cast(pa.string())),
        **_user_columns(log, first),
        "items[]": order.items_at.astype(np.int32),
        **_item_columns(log, rows),
    }


def _user_columns(log: Log, rows: Int64s) -> Arrays:
    users = UserTable()
    row = users.row_of[log.user_id[rows]]
    columns: Arrays = {
        "user.user_id": log.user_id[rows],
        "user.tab": log.tab[rows],
    }
    for name, (codes, texts) in users.texts.items():
        columns[f"user.{name}"], columns[f"user.{name}$"] = texts_of(codes[row], texts)
    for name, numbers in users.numbers.items():
        columns[f"user.{name}"] = numbers[row]
    columns["user.counts"] = users.counts[row].reshape(-1)
    columns["user.counts[]"] = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(users.counts.shape[1])
    return columns


def _item_columns(log: Log, rows: Int64s) -> Arrays:
    videos = VideoTable()
    row = videos.row_of[log.video_id[rows]]
    seconds = log.duration_ms[rows] / 1000
    columns: Arrays = {
        "items.video_id": log.video_id[rows],
        "items.author_id": log.author_id[rows],
        # Half octaves: 1, 1.4, 2, 2.8, 4, ... seconds.
        "items.duration_bucket": np.floor(2 * np.log2(np.maximum(seconds, 0.5))).astype(np.int64),
        "items.duration": (np.log1p(seconds) / 10).astype(np.float32),
    }
    columns["items.tags"], columns["items.tags[]"] = _tags(log.tags[rows])
    for name, (codes, texts) in videos.texts.items():
        columns[f"items.{name}"], columns[f"items.{name}$"] = texts_of(codes[row], texts)
    for name, numbers in videos.numbers.items():
        columns[f"items.{name}"] = numbers[row]
    return columns


def _actions(log: Log, request_ids: Any, delayed: float) -> Arrays:
    """Every row's click and long view, in the order they happened; duplicates are done as often as shown."""
    row = np.concatenate([np.flatnonzero(log.is_click), np.flatnonzero(log.long_view)])
    kind = np.repeat([0, 1], [int(log.is_click.sum()), int(log.long_view.sum())])
    after_ms = np.minimum(np.array([CLICK_MS, LONG_VIEW_MS])[kind], log.duration_ms[row])
    # Select delayed actions evenly over the week, and always the same.
    is_delayed = np.floor(np.arange(1, len(row) + 1) * delayed) > np.floor(np.arange(len(row)) * delayed)
    time_ms = log.time_ms[row] + after_ms + np.where(is_delayed, DELAY_MS, 0)
    order = np.argsort(time_ms, kind="stable")
    action, action_at = texts_of(kind[order], ACTIONS)
    return {
        **_texts("request_id", request_ids.take(pa.array(row[order]))),
        "event_time_ms": time_ms[order],
        "item_id": log.video_id[row[order]],
        "action": action,
        "action$": action_at,
    }


def _texts(name: str, texts: Any) -> Arrays:
    """Return the two columns of an Arrow array of texts."""
    encoded = texts.dictionary_encode() if not pa.types.is_dictionary(texts.type) else texts
    data, at = texts_of(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())
    return {name: data, f"{name}$": at}


def _tags(tags: npt.NDArray[np.object_]) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """Return the numbers in texts like "62,4"; only 0 if the tags are unknown."""
    encoded = pa.array(tags).dictionary_encode()
    numbers = [[int(tag) if tag.isdigit() else 0 for tag in text.split(",")] for text in encoded.dictionary.to_pylist()]
    codes: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    count = np.array([len(row) for row in numbers])
    padded = np.zeros((len(numbers), int(count.max())), np.int64)
    for at, row in enumerate(numbers):
        padded[at, : len(row)] = row
    offsets = np.concatenate(([0], np.cumsum(count[codes]))).astype(np.int32)
    return padded[codes][np.arange(padded.shape[1]) < count[codes][:, None]], offsets

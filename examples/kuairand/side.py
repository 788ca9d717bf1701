"""The side files: features of users and videos, a row each, by id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet

__all__ = ["Texts", "UserTable", "VideoTable"]

DATA = Path(__file__).resolve().parent / "data"

# The index of each row's text, and the distinct texts.
Texts: TypeAlias = tuple[npt.NDArray[np.int32], list[str]]

USER_TEXTS = {
    "active_degree": "user_active_degree",
    "follows": "follow_user_num_range",
    "friends": "friend_user_num_range",
}
USER_NUMBERS = {
    "is_author": "is_video_author",
    "is_streamer": "is_live_streamer",
    **{f"onehot_feat{at}": f"onehot_feat{at}" for at in (1, 2)},
}
USER_COUNTS = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
VIDEO_TEXTS = ("video_type",)
VIDEO_NUMBERS = ("music_id", "music_type")


class UserTable:
    """Features of users.

    Attributes:
        row_of: int64. The row of each user id.
        texts: Texts by slot.
        numbers: int64[users] by slot; -1 for unknown values.
        counts: float32[users, 4]. log(1 + n) / 10 of follows, fans, friends and days since registration.
    """

    def __init__(self, file: Path = DATA / "user_features.parquet") -> None:
        columns = ["user_id", *USER_TEXTS.values(), *USER_NUMBERS.values(), *USER_COUNTS]
        table = parquet.read_table(file, columns=columns)
        self.row_of = _row_of(table)
        self.texts = {slot: _texts(table, column) for slot, column in USER_TEXTS.items()}
        self.numbers = {slot: _numbers(table, column) for slot, column in USER_NUMBERS.items()}
        # In this column the file has -124 for "no".
        self.numbers["is_streamer"] = (self.numbers["is_streamer"] == 1).astype(np.int64)
        counts = np.stack([table[name].to_numpy() for name in USER_COUNTS], axis=1)
        self.counts = (np.log1p(counts) / 10).astype(np.float32)


class VideoTable:
    """Features of videos.

    Attributes:
        row_of: int64. The row of each video id.
        texts: Texts by slot.
        numbers: int64[videos] by slot; -1 for unknown values.
    """

    def __init__(self, file: Path = DATA / "video_features_basic_pure.csv.gz") -> None:
        columns = ["video_id", *VIDEO_TEXTS, *VIDEO_NUMBERS]
        options = csv.ConvertOptions(include_columns=columns)
        table = csv.read_csv(file, convert_options=options)
        self.row_of = _row_of(table, "video_id")
        self.texts: Mapping[str, Texts] = {name: _texts(table, name) for name in VIDEO_TEXTS}
        self.numbers: Mapping[str, npt.NDArray[np.int64]] = {name: _numbers(table, name) for name in VIDEO_NUMBERS}


def _row_of(table: pa.Table, name: str = "user_id") -> npt.NDArray[np.int64]:
    ids: npt.NDArray[np.int64] = table[name].to_numpy()
    row_of = np.full(int(ids.max()) + 1, -1)
    row_of[ids] = np.arange(len(ids))
    return row_of


def _texts(table: Any, name: str) -> Texts:
    encoded = table[name].combine_chunks().dictionary_encode()
    codes: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    return codes, encoded.dictionary.to_pylist()


def _numbers(table: Any, name: str) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = table[name].cast(pa.float64()).fill_null(-1).to_numpy().astype(np.int64)
    return numbers

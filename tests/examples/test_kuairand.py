"""KuaiRand as events, against a plain reading of its files row by row."""

from __future__ import annotations

import csv
import gzip
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyarrow import parquet

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ConfigError
from streamlearn.events import EventDecoder, EventEncoder, join_rows
from streamlearn.replay import History, HistoryBlock, computed_history, load_history

FOLDER = Path(__file__).parents[2] / "examples" / "kuairand"
FOREVER_MS = 10**12
Row = dict[str, str]
Columns = dict[str, npt.NDArray[Any]]


def _csv(name: str) -> list[Row]:
    with gzip.open(FOLDER / "data" / name, "rt", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return _csv("demo_week1.csv.gz")


@pytest.fixture(scope="module")
def folder() -> AppFolder:
    return load_app(FOLDER)


@pytest.fixture(scope="module")
def history() -> History:
    return load_history(FOLDER)


@pytest.fixture(scope="module")
def whole(history: History) -> HistoryBlock:
    (block,) = history.blocks(FOREVER_MS)
    return block


def _texts(columns: Any, name: str) -> list[str]:
    data = columns[name].tobytes()
    return [data[begin:end].decode() for begin, end in pairwise(columns[f"{name}$"].tolist())]


def _request_id(row: Row) -> str:
    return f"{row['user_id']}-{row['time_ms']}"


def _impressions(block: HistoryBlock) -> list[tuple[str, int, tuple[int, ...]]]:
    columns = block.impressions
    ids, videos = _texts(columns, "request_id"), columns["items.video_id"].tolist()
    shown = [tuple(videos[begin:end]) for begin, end in pairwise(columns["items[]"].tolist())]
    return list(zip(ids, columns["event_time_ms"].tolist(), shown, strict=True))


def _items(rows: list[Row]) -> dict[str, list[int]]:
    """The distinct videos of each request, in the order of the file."""
    items: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        video = int(row["video_id"])
        if video not in items[_request_id(row)]:
            items[_request_id(row)].append(video)
    return items


def test_the_file_is_what_its_readme_says(rows: list[Row]) -> None:
    exact = Counter(tuple(row.values()) for row in rows)
    shown = Counter((_request_id(row), row["video_id"]) for row in rows)
    labels = {(_request_id(row), row["video_id"], row["is_click"], row["long_view"]) for row in rows}
    facts = {
        "rows": len(rows),
        "surplus exact duplicates": len(rows) - len(exact),
        "rows in groups of exact duplicates": sum(count for count in exact.values() if count > 1),
        "distinct (user, time, video)": len(shown),
        "of these with another play time": len(exact) - len(shown),
        "of these with another label": len(labels) - len(shown),
        "requests": len({_request_id(row) for row in rows}),
        "requests of several items": sum(len(items) > 1 for items in _items(rows).values()),
        "clicks": sum(row["is_click"] == "1" for row in rows),
        "long views": sum(row["long_view"] == "1" for row in rows),
        "long views without a click": sum((row["long_view"], row["is_click"]) == ("1", "0") for row in rows),
        "users": len({row["user_id"] for row in rows}),
        "videos": len({row["video_id"] for row in rows}),
    }
    readme = (FOLDER / "README.md").read_text()
    told = [line for line in readme.splitlines() if line.startswith("| ")]
    wrong = [fact for fact, count in facts.items() if f"| {fact} | {count:,} |" not in told]
    assert not wrong, {fact: facts[fact] for fact in wrong}


def test_a_request_is_shown_once_and_again_for_its_duplicates(rows: list[Row], whole: HistoryBlock) -> None:
    items = _items(rows)
    repeats = Counter((_request_id(row), row["video_id"]) for row in rows)
    copies: dict[str, int] = defaultdict(int)
    for (request_id, _), count in repeats.items():
        copies[request_id] = max(copies[request_id], count)
    wanted = Counter(
        {(request, int(request.split("-")[1]), tuple(items[request])): count for request, count in copies.items()}
    )
    found = _impressions(whole)
    assert Counter(found) == wanted
    assert (len(found), len(wanted)) == (94_121, 91_142)
    assert whole.impressions["items[]"][-1] == 94_818


def test_actions_are_done_when_the_play_was_long_enough(rows: list[Row], whole: HistoryBlock) -> None:
    wanted: Counter[tuple[str, int, int, str]] = Counter()
    for row in rows:
        for action, flag, after_ms in (("click", "is_click", 7_000), ("long_view", "long_view", 18_000)):
            if row[flag] == "1":
                time_ms = int(row["time_ms"]) + min(after_ms, int(row["duration_ms"]))
                wanted[_request_id(row), time_ms, int(row["video_id"]), action] += 1
    columns = whole.actions
    ids, times = _texts(columns, "request_id"), columns["event_time_ms"].tolist()
    items, actions = columns["item_id"].tolist(), _texts(columns, "action")
    assert Counter(zip(ids, times, items, actions, strict=True)) == wanted
    assert Counter(actions) == {"click": 41_503, "long_view": 29_123}
    assert times == sorted(times)


def test_features_are_those_of_the_files(rows: list[Row], folder: AppFolder, whole: HistoryBlock) -> None:
    users = {one["user_id"]: one for one in parquet.read_table(FOLDER / "data/user_features.parquet").to_pylist()}
    videos = {one["video_id"]: one for one in _csv("video_features_basic_pure.csv.gz")}
    first_row: dict[tuple[str, int], Row] = {}
    for row in rows:
        first_row.setdefault((_request_id(row), int(row["video_id"])), row)
    texts = {
        path: _texts(whole.impressions, path)
        for path in ("request_id", "segments.tab", "user.active_degree", "user.friends", "items.video_type")
    }
    chosen = np.random.default_rng(3).choice(whole.impressions_rows, 400, replace=False).tolist()
    several = np.flatnonzero(np.diff(whole.impressions["items[]"]) > 1)[:50].tolist()
    for number in (*chosen, *several):
        request_id = texts["request_id"][number]
        first = _check_items(whole.impressions, texts, number, first_row, videos)
        user = users[int(first["user_id"])]
        columns = {name: whole.impressions[f"user.{name}"][number] for name in ("user_id", "tab")}
        assert request_id == _request_id(first)
        assert columns["user_id"] == int(first["user_id"])
        assert str(columns["tab"]) == texts["segments.tab"][number] == first["tab"]
        assert texts["user.active_degree"][number] == user["user_active_degree"]
        assert texts["user.friends"][number] == user["friend_user_num_range"]
        assert whole.impressions["user.is_streamer"][number] == (user["is_live_streamer"] == 1)
        assert whole.impressions["user.onehot_feat2"][number] == user["onehot_feat2"]
        counts = [user[name] for name in ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")]
        found = whole.impressions["user.counts"].reshape(-1, 4)[number]
        np.testing.assert_allclose(found, np.log1p(counts) / 10, rtol=1e-6)


def _check_items(
    columns: Any, texts: dict[str, list[str]], number: int, first_row: dict[tuple[str, int], Row], videos: Any
) -> Row:
    begin, end = columns["items[]"][number : number + 2].tolist()
    for at in range(begin, end):
        video_id = int(columns["items.video_id"][at])
        row, video = first_row[texts["request_id"][number], video_id], videos[str(video_id)]
        tags = columns["items.tags"][slice(*columns["items.tags[]"][at : at + 2])].tolist()
        assert tags == [0 if tag == "unknown" else int(tag) for tag in row["tag"].split(",")]
        assert columns["items.author_id"][at] == int(row["author_id"])
        assert columns["items.music_id"][at] == int(video["music_id"])
        assert columns["items.music_type"][at] == int(float(video["music_type"] or -1))
        assert texts["items.video_type"][at] == video["video_type"]
        seconds = int(row["duration_ms"]) / 1000
        assert columns["items.duration"][at] == np.float32(np.log1p(seconds) / 10)
        assert 2 ** (columns["items.duration_bucket"][at] / 2) <= max(seconds, 0.5) * (1 + 1e-9)
        assert 2 ** ((columns["items.duration_bucket"][at] + 1) / 2) > seconds
    return first_row[texts["request_id"][number], int(columns["items.video_id"][begin])]


def test_a_pause_is_since_what_the_user_was_shown_before(rows: list[Row], whole: HistoryBlock) -> None:
    times: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        times[row["user_id"]].add(int(row["time_ms"]))
    sorted_times = {user: sorted(found) for user, found in times.items()}
    (computed,) = computed_history(load_history(FOLDER), load_app(FOLDER).app).blocks(10**12)
    assert _texts(computed.impressions, "request_id") == _texts(whole.impressions, "request_id")
    pauses = computed.impressions["user.pause"].tolist()
    for pause, request_id in zip(pauses, _texts(whole.impressions, "request_id"), strict=True):
        user, time_ms = request_id.split("-")
        before = bisect_right(sorted_times[user], int(time_ms) - 1_000)  # a second until nodes know
        if not before:
            assert pause == -1
            continue
        seconds = (int(time_ms) - sorted_times[user][before - 1]) // 1_000
        assert pause == seconds.bit_length()


def test_nothing_known_of_the_whole_period_is_a_feature(folder: AppFolder) -> None:
    # Counts over the whole month would tell a model how its videos end up.
    names = [
        *(slot.name for slot in folder.app.features.slots),
        *(one.name for one in folder.app.features.dense),
    ]
    assert not [name for name in names if name.endswith("_cnt")]
    header = _csv("video_features_basic_pure.csv.gz")[0]
    assert not [name for name in header if name.endswith("_cnt")]


def test_all_of_it_is_valid_and_reads_back(folder: AppFolder, whole: HistoryBlock) -> None:
    encoder = EventEncoder(folder.app, folder.settings.events)
    shown_ms = np.zeros(whole.impressions_rows, np.int64)
    impressions = encoder.impressions({**whole.impressions, "shown_wall_ms": shown_ms}, whole.impressions_rows)
    actions = encoder.actions(whole.actions, whole.actions_rows)
    assert (len(impressions.offsets) - 1, len(actions.offsets) - 1) == (94_121, 70_626)
    records = [
        encoded.buffer[begin:end].tobytes()
        for encoded in (impressions, actions)
        for begin, end in pairwise(encoded.offsets[:2001].tolist())
    ]
    events = EventDecoder(folder.app, folder.settings.events).decode(records)
    assert (len(events.impressions), len(events.actions), events.failures) == (2000, 2000, ())
    for name in ("user.counts", "items.tags", "user.friends", "segments.tab"):
        found = events.impressions.columns[name]
        assert (found == whole.impressions[name][: len(found)]).all()
        assert len(found) > 0


def _joined(blocks: list[HistoryBlock]) -> tuple[Columns, Columns]:
    return (
        join_rows([block.impressions for block in blocks if block.impressions_rows]),
        join_rows([block.actions for block in blocks if block.actions_rows]),
    )


@pytest.mark.parametrize("span_ms", [3_600_000, 977_777])
def test_the_events_are_the_same_however_they_are_cut(history: History, whole: HistoryBlock, span_ms: int) -> None:
    blocks = list(history.blocks(span_ms))
    for found, wanted in zip(_joined(blocks), (whole.impressions, whole.actions), strict=True):
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert sum(block.impressions_rows + block.actions_rows for block in blocks) == history.events_count
    begin_ms = history.begin_ms
    for block in blocks:
        assert block.until_ms - begin_ms <= span_ms
        for columns in (block.impressions, block.actions):
            times = columns.get("event_time_ms", np.zeros(0, np.int64))
            assert ((times >= begin_ms) & (times < block.until_ms)).all()
        begin_ms = block.watermark_ms


def test_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="option days=3"):
        load_history(FOLDER, {"days": "3"})

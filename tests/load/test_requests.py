"""Requests as columns, made up and recorded, and the tensors that carry them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.apps import load_app
from streamlearn.errors import DataError
from streamlearn.events import EventDecoder, Producer
from streamlearn.features import Dense, FeatureSpec, Slot
from streamlearn.load.replayed_requests import of_history, of_topic, recorded, refilled
from streamlearn.load.requests import LoadRequests, candidate_counts
from streamlearn.load.synthetic_requests import invented
from streamlearn.replay import Replayer, load_history, open_replay_topics
from tests.serving.inference import request_class

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEC = FeatureSpec(
    slots=(
        Slot("user_id", "user"),
        Slot("country", "user", value="str"),
        Slot("seen", "user", multi=True, pooling="sequence", length=4, keys_of="item_id"),
        Slot("seen_tag", "user", multi=True, pooling="sequence", length=4, value="str"),
        Slot("item_id", "item"),
        Slot("tags", "item", multi=True, pooling="mean", value="str"),
        Slot("scores", "item", multi=True, pooling="weighted"),
    ),
    dense=(Dense("taste", "user", width=3), Dense("age", "item"), Dense("quality", "item", width=2)),
    item_id="item_id",
)
KINDS = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}


def _tensors(message: bytes) -> dict[str, tuple[str, list[int], list[Any]]]:
    """The inputs of a request by name: datatype, shape, values."""
    request = request_class.FromString(message)
    found = {}
    for head, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        values = _texts(raw) if head.datatype == "BYTES" else np.frombuffer(raw, KINDS[head.datatype]).tolist()
        found[head.name] = head.datatype, list(head.shape), values
    return found


def _texts(raw: bytes) -> list[str]:
    texts, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return texts


def _bytes(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(text.encode(), np.uint8)


def test_each_column_becomes_the_tensors_its_kind_asks_for() -> None:
    user = {
        "user_id": np.array([1, 2]),
        "country": _bytes("atnl"),
        "country$": np.array([0, 2, 4]),
        "seen": np.array([5, 6, 7]),
        "seen[]": np.array([0, 1, 3]),
        "seen_tag": _bytes("abbccc"),
        "seen_tag$": np.array([0, 1, 3, 6]),
        "seen_tag[]": np.array([0, 1, 3]),
        "taste": np.arange(6, dtype=np.float32),
    }
    item = {
        "item_id": np.array([10, 11, 12]),
        "tags": _bytes("xyyz"),
        "tags$": np.array([0, 1, 3, 4]),
        "tags[]": np.array([0, 1, 1, 3]),
        "scores": np.array([8, 9]),
        "scores_weights": np.array([0.5, 0.25], np.float32),
        "scores[]": np.array([0, 0, 0, 2]),
        "age": np.array([1, 2, 3], np.float32),
        "quality": np.arange(6, dtype=np.float32),
    }
    asked = LoadRequests(user, item, np.array([0, 1, 3]))
    second = asked.messages(SPEC, "ctr", "41")[1]
    request = request_class.FromString(second)
    assert (request.model_name, request.model_version, request.id) == ("ctr", "41", "load-1")
    assert _tensors(second) == {
        "user_id": ("INT64", [1], [2]),
        "country": ("BYTES", [1], ["nl"]),
        "seen": ("INT64", [2], [6, 7]),
        "seen_tag": ("BYTES", [2], ["bb", "ccc"]),
        "item_id": ("INT64", [2], [11, 12]),
        "tags": ("BYTES", [2], ["yy", "z"]),
        "tags.lengths": ("INT32", [2], [0, 2]),
        "scores": ("INT64", [2], [8, 9]),
        "scores.lengths": ("INT32", [2], [0, 2]),
        "scores.weights": ("FP32", [2], [0.5, 0.25]),
        "taste": ("FP32", [3], [3.0, 4.0, 5.0]),
        "age": ("FP32", [2, 1], [2.0, 3.0]),
        "quality": ("FP32", [2, 2], [2.0, 3.0, 4.0, 5.0]),
    }


def test_invented_requests_fill_every_column_and_hang_on_the_seed_alone() -> None:
    counts = np.array([1, 3, 40])

    def draw(seed: int) -> list[bytes]:
        return invented(SPEC, counts, 1000, np.random.default_rng(seed)).messages(SPEC, "ctr")

    messages = draw(1)
    assert messages == draw(1)
    assert messages != draw(2)
    for message, count in zip(messages, counts.tolist(), strict=True):
        tensors = _tensors(message)
        names = {"user_id", "country", "seen", "seen_tag", "taste", "item_id", "tags", "scores", "age", "quality"}
        assert set(tensors) == names | {"tags.lengths", "scores.lengths", "scores.weights"}
        assert tensors["item_id"][1] == [count]
        assert sum(tensors["tags.lengths"][2]) == len(tensors["tags"][2])
        assert tensors["scores.weights"][1] == tensors["scores"][1]
        assert len(tensors["seen"][2]) == len(tensors["seen_tag"][2]) <= 4
        assert tensors["quality"][1] == [count, 2]


def test_invented_values_come_by_zipfs_law() -> None:
    asked = invented(SPEC, np.full(200, 500), 10_000, np.random.default_rng(0))
    ids = asked.item["item_id"]
    assert ids.min() == 0
    assert ids.max() < 10_000
    counts = np.bincount(ids, minlength=10_000)
    # Each tenfold rank comes about a tenth as often.
    assert 5 < counts[:10].sum() / counts[100:110].sum() < 60
    assert 5 < counts[100:200].sum() / counts[1000:1100].sum() < 20


def test_counts_of_candidates_have_their_mean_and_keep_their_bounds() -> None:
    counts = candidate_counts(36, 512, 20_000, np.random.default_rng(0))
    assert abs(counts.mean() - 36) < 1.5
    assert counts.min() >= 1
    assert counts.max() <= 512
    assert candidate_counts(36, 40, 1000, np.random.default_rng(0)).max() == 40


def test_a_history_is_asked_as_it_was_shown() -> None:
    folder = load_app(EXAMPLES / "synthetic")
    history = load_history(folder.folder, {"events": "3000"})
    asked = recorded(of_history(history), 50, 1000, np.random.default_rng(0))
    assert len(asked) == 50
    shown = next(of_history(history))
    known = set(shown["user.user_id"].tolist())
    for message, count in zip(asked.messages(folder.app.features, "m"), asked.candidates.tolist(), strict=True):
        tensors = _tensors(message)
        assert tensors["item_id"][1] == [count]
        assert tensors["user_id"][2][0] in known
        assert tensors["quality"][1] == [count, 16]
        assert tensors["country"][0] == "BYTES"


def test_recorded_users_can_be_asked_about_more_candidates_of_the_same_kind() -> None:
    folder = load_app(EXAMPLES / "synthetic")
    random = np.random.default_rng(0)
    asked = recorded(of_history(load_history(folder.folder, {"events": "3000"})), 50, 1000, random)
    more = refilled(asked, np.full(50, 30), random)
    assert more.candidates.tolist() == [30] * 50
    rows = {row: at for at, row in enumerate(asked.item["item_id"].tolist())}
    tensors = _tensors(more.messages(folder.app.features, "m")[7])
    assert set(tensors["item_id"][2]) <= set(rows)
    # What belongs together stays together.
    authors = [int(asked.item["author_id"][rows[one]]) for one in tensors["item_id"][2]]
    assert tensors["author_id"][2] == authors
    assert len(tensors["topics"][2]) == sum(tensors["topics.lengths"][2])


def test_a_topic_is_asked_as_its_history_was(tmp_path: Path) -> None:
    folder = load_app(EXAMPLES / "synthetic", (f"topics.root={tmp_path.as_uri()}", "replay.partitions=1"))
    history = load_history(folder.folder, {"events": "600", "duplicates": "0"})
    with (
        open_replay_topics(folder) as (impressions, actions),
        Producer(folder, impressions=impressions, actions=actions) as producer,
    ):
        Replayer(history, producer, folder.settings.replay).run(speed=0)

    def draw(parts: Any) -> list[bytes]:
        return recorded(parts, 100_000, 100_000, np.random.default_rng(0)).messages(folder.app.features, "m")

    with folder.open_topic("impressions") as topic:
        told = draw(of_topic(topic, EventDecoder.of(folder)))
    assert told == draw(of_history(history))


def test_without_impressions_nothing_can_be_asked() -> None:
    with pytest.raises(DataError, match="no impressions"):
        recorded([], 5, 10, np.random.default_rng(0))

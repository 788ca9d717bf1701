"""What a node's callers were shown comes back as impressions, and as samples with the keys it was scored with."""

from __future__ import annotations

import json
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
from prometheus_client import REGISTRY

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError, NotDelivered
from streamlearn.events import EventDecoder, Events
from streamlearn.features import FeatureSpec, Retrieval, Segment
from streamlearn.features.keys import keys_of
from streamlearn.native import native
from streamlearn.serving import impression_writer as written_back
from streamlearn.serving.front import FrontLimits
from streamlearn.serving.impression_writer import WrittenBack
from streamlearn.serving.model_schema import LibraryInputs, described
from streamlearn.serving.node import NodeLimits
from streamlearn.table import TableOptions, TableSet
from streamlearn.testing import small_impression, wait_until
from streamlearn.topics import TopicSettings, create_topic, delete_topic, partition_of
from tests.ingest.place import Place, memory_root
from tests.ingest.week import read_week
from tests.serving.inference import answer_class, request_class

LIMITS = {"candidates_max": 64, "values_max": 4_096, "message_bytes_max": 1 << 16}
LABELS = ("click", "bought")
ENDLESS_MS = 1 << 60
Ask = Callable[["Rig", dict[str, Any]], dict[str, Any]]


class Rig:
    """A front that writes back what its callers were shown, by chance; `items` are its library."""

    def __init__(self, folder: AppFolder, items: Sequence[dict[str, Any]] = ()) -> None:
        features = folder.app.features
        tables = TableSet([TableOptions(spec, 1_000) for spec in features.tables])
        tables.stage(1, None, [])
        library = None if folder.app.retrieval is None else LibraryInputs(100, "click")
        text = described(features, folder.app.labels, list(tables.dims), LIMITS, library=library)
        limits = FrontLimits(1, 100, 1_000, 0, 0, 0, 8, 1.0, 0, False, 60_000_000, 120_000_000)
        self.front = native.Front(text, ([1, 4], [4, 16], [8]), limits, 4)
        self.back = WrittenBack(folder, self.front)
        self.node = native.FrontNode(
            folder.app.served_name, self.front, ("127.0.0.1:0", "127.0.0.1:0"),
            NodeLimits(1, 100, 100, 1 << 16, 5_000), metrics=str,
        )  # fmt: skip
        self.back.start(self.node)
        self._tables, self._ended, self._rng = tables, threading.Event(), np.random.default_rng(5)
        handle = self.front.add(1, tables.native)
        self.front.activate(handle)
        if library is not None:
            library_of(features, items).describe(self.front, handle)
        self.node.set_state(True)
        # A lane is there once it has looked for work: who asks before that is refused.
        assert self.front.take(0, 0.0) is None
        self._lane = threading.Thread(target=self._run)
        self._lane.start()

    def close(self) -> None:
        self.front.drain()
        self.node.stop()
        self.back.close()
        self._ended.set()
        self._lane.join()

    def post(self, path: str, body: dict[str, Any], **head: str) -> dict[str, Any]:
        asked = urllib.request.Request(f"http://{self.node.http}{path}", json.dumps(body).encode(), head)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _run(self) -> None:
        while not self._ended.is_set():
            work = self.front.take(0, 0.05)
            if work is not None:
                scores = self._rng.normal(size=(16, len(LABELS))).astype(np.float32)
                self.front.give(work, scores)


def library_of(spec: FeatureSpec, items: Sequence[dict[str, Any]]) -> Any:
    """What describes items that differ in their ids, as a node has it."""
    distinct = [*{item["video_id"]: item for item in items}.values()]

    def listed(name: str) -> list[Any]:
        keys = keys_of(spec.slot(name), [value for item in distinct for value in item[name]])
        return [keys, np.cumsum([0, *(len(item[name]) for item in distinct)], dtype=np.int64)]

    weights = np.array([weight for item in distinct for weight in item["topics_weights"]], np.float32)
    numbers = np.array([item["vector"] for item in distinct], np.float32).reshape(-1)
    keys = keys_of(spec.slot("video_id"), [item["video_id"] for item in distinct])
    columns = [listed("tags"), [*listed("topics"), weights], [numbers]]
    return native.ItemFeatures([("many", 0), ("weighted", 0), ("dense", 3)]).apply(keys, columns, keys[:0])


def rows(rig: Rig, given: dict[str, Any], **said: Any) -> dict[str, Any]:
    """Ask with objects; the answer has an id, a version and scores."""
    items = [
        {name: one[name] for name in ("video_id", "tags", "topics", "topics_weights", "vector")}
        for one in given["items"]
    ]
    return rig.post("/score", {"id": given["request_id"], "user": given["user"], "items": items, **said})


def tensors_of(given: dict[str, Any]) -> list[tuple[str, str, list[int], list[Any]]]:
    """Name, datatype, shape and values; the user's age and country are left out where they are what is taken anyway."""
    user, items = given["user"], given["items"]
    count = len(items)
    listed = {name: [value for one in items for value in one[name]] for name in ("tags", "topics", "topics_weights")}
    return [
        ("user_id", "INT64", [1], [user["user_id"]]),
        ("history", "INT64", [len(user["history"])], user["history"]),
        *([("country", "BYTES", [1], [user["country"]])] if "country" in user else []),
        *([("age", "FP32", [1], [user["age"]])] if "age" in user else []),
        ("video_id", "INT64", [count], [one["video_id"] for one in items]),
        *((name, kind, [len(listed[name])], listed[name]) for name, kind in (("tags", "BYTES"), ("topics", "INT64"))),
        *((f"{name}.lengths", "INT32", [count], [len(one[name]) for one in items]) for name in ("tags", "topics")),
        ("topics.weights", "FP32", [len(listed["topics"])], listed["topics_weights"]),
        ("vector", "FP32", [count, 3], [number for one in items for number in one["vector"]]),
    ]


def tensors(rig: Rig, given: dict[str, Any]) -> dict[str, Any]:
    """Ask with tensors in JSON."""
    inputs = [dict(zip(("name", "datatype", "shape", "data"), one, strict=True)) for one in tensors_of(given)]
    answer = rig.post("/v2/models/small/infer", {"id": given["request_id"], "inputs": inputs})
    scores = {one["name"]: one["data"] for one in answer["outputs"]}
    return {"id": answer["id"], "version": int(answer["model_version"]), "scores": scores}


def message(rig: Rig, given: dict[str, Any]) -> dict[str, Any]:
    """Ask by gRPC."""
    request = request_class(model_name="small", id=given["request_id"])
    for name, kind, shape, values in tensors_of(given):
        request.inputs.add(name=name, datatype=kind, shape=shape)
        if kind == "BYTES":
            raw = b"".join(struct.pack("<I", len(one.encode())) + one.encode() for one in values)
        else:
            raw = np.array(values, {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}[kind]).tobytes()
        request.raw_input_contents.append(raw)
    with grpc.insecure_channel(rig.node.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = answer_class.FromString(infer(request.SerializeToString(), timeout=120))
    scores = [np.frombuffer(raw, "<f4").tolist() for raw in answer.raw_output_contents]
    names = [one.name for one in answer.outputs]
    return {"id": answer.id, "version": int(answer.model_version), "scores": dict(zip(names, scores, strict=True))}


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place.make(memory_root(), partitions=2)
    yield made
    made.close()


def live(folder: AppFolder, events: dict[str, Any] | None = None, share: float = 1.0, **impressions: Any) -> AppFolder:
    """The same application as its nodes have it: its topics' clock is the wall."""
    settings = folder.settings
    settings = msgspec.structs.replace(
        settings,
        topics=msgspec.structs.replace(settings.topics, time="wall"),
        events=msgspec.structs.replace(settings.events, linger_ms=1, **(events or {})),
        join=msgspec.structs.replace(settings.join, logged_share=share),
        impressions=msgspec.convert({"write_back": True, "flush_s": 120.0, **impressions}, type(settings.impressions)),
    )
    return replace(folder, settings=settings)


def written(place: Place) -> Events:
    """All events in the impressions topic, through the decoder of ingest; none may fail."""
    values: list[bytes | None] = []
    with place.impressions.reader() as reader:
        for partition in range(place.impressions.partitions):
            if reader.end(partition):
                values += reader.read(partition, 0).values
    found = EventDecoder.of(place.folder).decode(values)
    assert found.failures == ()
    return found


def lost(reason: str) -> float:
    found = REGISTRY.get_sample_value("streamlearn_serving_impressions_lost_total", {"reason": reason})
    return found or 0.0


def expected_keys(place: Place, given: dict[str, Any]) -> set[tuple[Any, ...]]:
    """The keys and numbers that serving looks up: of the user, and of each item."""
    spec = place.folder.app.features

    def keys(name: str, values: Any) -> tuple[int, ...]:
        slot = spec.slot(name)
        return tuple(
            keys_of(slot, list(values)[-slot.length or None :] if slot.pooling == "sequence" else list(values)).tolist()
        )

    user = given["user"]
    of_user = (
        keys("user_id", [user["user_id"]]), keys("history", user["history"]),
        keys("country", [user.get("country", "")]), user.get("age", 0.0),
    )  # fmt: skip
    return {
        (*of_user, keys("video_id", [one["video_id"]]), keys("tags", one["tags"]), keys("topics", one["topics"]),
         tuple(one["topics_weights"]), tuple(one["vector"]))
        for one in given["items"]
    }  # fmt: skip


def sample_keys(batch: Any) -> list[tuple[Any, ...]]:
    """The same of each row of a sample batch."""

    def keys(slot: Any, row: int) -> tuple[int, ...]:
        at = slot.offsets[row : row + 2] if slot.offsets is not None else (row, row + 1)
        return tuple(slot.keys[at[0] : at[1]].tolist())

    found = []
    for row, request in enumerate(batch.request_index.tolist()):
        user, item = batch.user, batch.item
        topics = item.slots["topics"]
        weights = topics.weights[topics.offsets[row] : topics.offsets[row + 1]]
        found.append(
            (
                *(keys(user.slots[name], request) for name in ("user_id", "history", "country")),
                float(user.dense["age"][request, 0]),
                *(keys(item.slots[name], row) for name in ("video_id", "tags", "topics")),
                tuple(weights.tolist()),
                tuple(item.dense["vector"][row].tolist()),
            )
        )
    return found


def test_what_was_shown_becomes_the_samples_that_it_was_scored_as(place: Place) -> None:
    asked: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    rig = Rig(live(place.folder))
    ways: tuple[Ask, ...] = (rows, tensors, message)
    try:
        for seed in range(30):
            given = small_impression(seed, items=1 + seed % 5)
            given["user"]["user_id"] = seed
            if seed % 4 == 0:
                del given["user"]["country"], given["user"]["age"]
            asked[given["request_id"]] = given, ways[seed % 3](rig, given)
    finally:
        rig.close()
    impressions = written(place).impressions
    assert sorted(impressions.texts("request_id")) == sorted(asked)
    assert set(impressions.columns["served_version"].tolist()) == {1}
    times = dict(zip(impressions.texts("request_id"), impressions.columns["event_time_ms"].tolist(), strict=True))
    with place.producer() as producer:
        for name, (given, _) in asked.items():
            producer.action(name, times[name] + 1_000, given["items"][0]["video_id"], "click")
        producer.end(max(times.values()) + 10**8)
    week = read_week(place)
    joined = week.joined()
    with week.maker() as maker:
        batches = [batch for lot, one in joined for batch in maker.make(lot, one, ENDLESS_MS)]
        assert maker.set_aside() == []
    found: dict[int, set[tuple[Any, ...]]] = {}
    for batch in batches:
        of = batch.labels[0].served_score.tolist()
        for (row, keys), score in zip(enumerate(sample_keys(batch)), of, strict=True):
            user = next(seed for seed in range(30) if keys[0] == keys_of_user(place, seed))
            found.setdefault(user, set()).add(keys)
            given, answer = asked[f"q{user}"]
            same = [at for at, one in enumerate(given["items"]) if keys_of_item(place, one) == keys[4]]
            np.testing.assert_allclose(score, answer["scores"]["click"][same[0]], rtol=1e-6)
            assert batch.requests.served_version[batch.request_index[row]] == answer["version"] == 1
    assert found == {given["user"]["user_id"]: expected_keys(place, given) for given, _ in asked.values()}
    positives = sum(int(batch.labels[0].value.sum()) for batch in batches)
    assert positives >= len(asked)


def alone(rig: Rig, given: dict[str, Any]) -> dict[str, Any]:
    """Ask with ids, and for every second item with its tags; texts that are sent are known."""
    items = [
        {"video_id": one["video_id"]} | ({"tags": one["tags"]} if at % 2 else {})
        for at, one in enumerate(given["items"])
    ]
    return rig.post("/score", {"id": given["request_id"], "user": given["user"], "items": items})


def alone_by_tensors(rig: Rig, given: dict[str, Any]) -> dict[str, Any]:
    """Ask with tensors of ids and vectors."""
    inputs = [dict(zip(("name", "datatype", "shape", "data"), one, strict=True)) for one in tensors_of(given)]
    kept = [one for one in inputs if str(one["name"]).split(".")[0] not in ("tags", "topics")]
    return rig.post("/v2/models/small/infer", {"id": given["request_id"], "inputs": kept})


def test_what_was_taken_from_the_library_becomes_the_same_samples_as_what_was_sent(place: Place) -> None:
    app = replace(place.folder.app, retrieval=Retrieval("click", ("user_id",), ("video_id",)))
    place = replace(place, folder=replace(place.folder, app=app))
    asked = [small_impression(seed, items=1 + seed % 5) for seed in range(20)]
    for seed, given in enumerate(asked):
        given["user"]["user_id"] = seed
        for at, item in enumerate(given["items"]):
            item["video_id"] = 100 * seed + at
    rig = Rig(live(place.folder), [item for given in asked for item in given["items"]])
    try:
        for seed, given in enumerate(asked):
            assert "unknown" not in (alone, alone_by_tensors)[seed % 2](rig, given)
    finally:
        rig.close()
    impressions = written(place).impressions
    # Integers and numbers are what was sent to the library; of texts there are keys.
    places = {name: at for at, name in enumerate(impressions.texts("request_id"))}
    begins, columns = impressions.columns["items[]"], impressions.columns
    for given in asked:
        for at, item in enumerate(given["items"], int(begins[places[given["request_id"]]])):
            for name in ("topics", "topics_weights", "vector"):
                begin, end = columns[f"items.{name}[]"][at : at + 2]
                assert columns[f"items.{name}"][begin:end].tolist() == item[name]
    assert len(columns["items.served_keys_tags"])
    times = dict(zip(impressions.texts("request_id"), columns["event_time_ms"].tolist(), strict=True))
    with place.producer() as producer:
        for given in asked:
            at_ms, clicked = times[given["request_id"]] + 1_000, given["items"][0]["video_id"]
            producer.action(given["request_id"], at_ms, clicked, "click")
        producer.end(max(times.values()) + 10**8)
    week, found = read_week(place), dict[int, set[tuple[Any, ...]]]()
    joined = week.joined()
    with week.maker() as maker:
        batches = [batch for lot, one in joined for batch in maker.make(lot, one, ENDLESS_MS)]
        assert maker.set_aside() == []
    for batch in batches:
        for keys in sample_keys(batch):
            found.setdefault(next(seed for seed in range(20) if keys[0] == keys_of_user(place, seed)), set()).add(keys)
    assert found == {given["user"]["user_id"]: expected_keys(place, given) for given in asked}


def keys_of_user(place: Place, user: int) -> tuple[int, ...]:
    return tuple(keys_of(place.folder.app.features.slot("user_id"), [user]).tolist())


def keys_of_item(place: Place, item: dict[str, Any]) -> tuple[int, ...]:
    return tuple(keys_of(place.folder.app.features.slot("video_id"), [item["video_id"]]).tolist())


def test_only_what_was_shown_is_written_in_its_order_and_nothing_where_nothing_was(place: Place) -> None:
    rig = Rig(live(place.folder))
    given = small_impression(3, items=5)
    try:
        answer = rows(rig, given, shown=[4, 0])
        rows(rig, given | {"request_id": "none"}, shown="")
    finally:
        rig.close()
    found = written(place).impressions
    assert found.texts("request_id") == ["q3"]
    assert found.columns["items.video_id"].tolist() == [given["items"][at]["video_id"] for at in (4, 0)]
    for label in LABELS:
        wanted = np.array([answer["scores"][label][at] for at in (4, 0)], np.float32)
        assert found.columns[f"items.served_score_{label}"].tolist() == wanted.tolist()


def test_who_did_not_get_the_version_of_an_arm_is_written_without_it(place: Place) -> None:
    features = place.folder.app.features
    app = replace(place.folder.app, features=replace(features, segments=(*features.segments, Segment("arm"))))
    place = replace(place, folder=replace(place.folder, app=app))
    rig = Rig(live(place.folder))
    try:
        for seed, version in enumerate(("active", "1", "canary", "2")):
            given = small_impression(seed)
            del given["segments"]
            names = ("video_id", "tags", "topics", "topics_weights", "vector")
            items = [{name: one[name] for name in names} for one in given["items"]]
            body = {"id": f"q{seed}", "user": given["user"], "items": items}
            assert rig.post("/score", body, **{"x-arm": "trial:new", "x-version": version})["version"] == 1
    finally:
        rig.close()
    impressions = written(place).impressions
    arms = dict(zip(impressions.texts("request_id"), impressions.texts("segments.arm"), strict=True))
    assert arms == {"q0": "trial:new", "q1": "trial:new", "q2": "", "q3": ""}


def test_a_request_without_an_id_is_given_one_by_which_actions_find_it(place: Place) -> None:
    rig = Rig(live(place.folder))
    try:
        named = [rows(rig, small_impression(at) | {"request_id": ""})["id"] for at in range(3)]
    finally:
        rig.close()
    assert sorted(written(place).impressions.texts("request_id")) == sorted(named)
    assert len({name for name in named if len(name) > 16}) == 3


def test_every_node_chooses_the_same_requests(place: Place) -> None:
    names = [f"request-{at}" for at in range(60)]
    chosen = []
    for _ in range(2):
        rig = Rig(live(place.folder, share=0.4))
        try:
            chosen.append({name for name in names if rig.back.native.chooses(name)})
            for name in names:
                rows(rig, small_impression(1) | {"request_id": name})
        finally:
            rig.close()
    assert chosen[0] == chosen[1]
    assert 10 < len(chosen[0]) < 40
    assert sorted(written(place).impressions.texts("request_id")) == sorted(2 * sorted(chosen[0]))


def test_each_record_is_of_the_partition_of_its_requests(place: Place) -> None:
    rig = Rig(live(place.folder))
    try:
        for at in range(20):
            rows(rig, small_impression(at))
    finally:
        rig.close()
    with place.impressions.reader() as reader:
        for partition in range(2):
            values = reader.read(partition, 0).values
            found = EventDecoder.of(place.folder).decode(values).impressions.texts("request_id")
            assert found
            assert {partition_of(name.encode(), 2) for name in found} == {partition}


class _Stuck:
    """A writer of a topic that does not answer until it is let go, and has taken nothing then."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def send(self, *_: Any) -> None:
        pass

    def flush(self) -> None:
        self.begun.set()
        assert self.let_go.wait(120)
        message = "nobody answered"
        raise NotDelivered(message, help="wait")

    def close(self) -> None:
        pass


def test_a_topic_that_hangs_delays_no_reply_and_what_is_too_much_is_dropped_and_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = _Stuck()
    monkeypatch.setattr(place.impressions, "writer", lambda *_: stuck)
    monkeypatch.setattr(AppFolder, "open_topic", lambda *_: place.impressions)
    full, ended, unacknowledged = lost("full"), lost("ended"), lost("unacknowledged")
    rig = Rig(live(place.folder, waiting_events_max=3, flush_s=0.05))
    try:
        rows(rig, small_impression(0))
        assert stuck.begun.wait(120)
        for at in range(10):
            assert rows(rig, small_impression(1 + at))["version"] == 1
        rig.back.measure()
        assert REGISTRY.get_sample_value("streamlearn_serving_impressions_waiting_ratio") == 1.0
        assert lost("full") - full == 7
    finally:
        rig.close()
    assert lost("ended") - ended == 4  # three that wait, and one that is being sent
    stuck.let_go.set()
    wait_until(lambda: lost("unacknowledged") - unacknowledged >= 1, "the record to be given up")


def test_a_topic_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_back, "_RETRY_S", 0.01)
    place = Place.make(memory_root())
    url = place.folder.topic_url("impressions")
    delete_topic(url)
    rig = Rig(live(place.folder))
    try:
        rows(rig, small_impression(0))
        topic = create_topic(url, TopicSettings(partitions=1, retention_ms=-1))
        with topic, topic.reader() as reader:
            wait_until(lambda: reader.end(0) == 1, "the impression")
    finally:
        rig.close()
        place.close()


def test_what_no_reader_would_take_is_counted_and_not_written(place: Place) -> None:
    refused = lost("refused")
    rig = Rig(live(place.folder, events={"items_max": 12}))
    try:
        rows(rig, small_impression(0, items=13))
        rows(rig, small_impression(1, items=12))
    finally:
        rig.close()
    assert written(place).impressions.texts("request_id") == ["q1"]
    assert lost("refused") - refused == 1


def test_a_replay_is_no_place_for_what_is_shown_now(place: Place) -> None:
    settings = msgspec.structs.replace(live(place.folder).settings, topics=place.folder.settings.topics)
    with pytest.raises(ConfigError, match=r"topics\.time is 'event'"):
        WrittenBack(replace(place.folder, settings=settings), None)

"""The topic of interactions: each item shown and each action on one, soon, the same from ingest and from a backfill."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from pipelines import backfill
from streamlearn.apps import AppFolder, load_app
from streamlearn.features import Count, Dense, keys_of
from streamlearn.ingest import Joined, run_samples
from streamlearn.ingest.join.join_cache import LotShelf
from streamlearn.ingest.join.lot_step import LotStep
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.ticks import TickRules
from streamlearn.interactions import InteractionBatch, decode_interactions
from streamlearn.testing import small_impression, wait_until
from streamlearn.topics import create_topic
from tests.ingest.history import fill, learned, messages, outcomes, records_of, write_app
from tests.ingest.on_flink import DEADLINE_S, log_of, run_on
from tests.ingest.one_lot import State, lot_events
from tests.ingest.place import T_MS, Place, memory_root
from tests.ingest.week import read_week
from tests.ingest.world import Done, Event, Shown
from tools.services import FlinkJobServer

REQUESTS = 240
TOPICS = ("samples", "dead_letters", "progress")
APP = """\
from dataclasses import replace

from streamlearn.features import Count, Dense, Last, Slot
from streamlearn.testing import small_app

plain = small_app()
users = Slot("users", "item", multi=True, keys_of="user_id", computed=Last("user_id", ("click", "purchase"), 5))
seen = Dense("seen", "user", width=2, computed=Count(("impression", "click"), "1h"), default=0)
features = replace(plain.features, slots=(*plain.features.slots, users), dense=(*plain.features.dense, seen))
app = replace(plain, features=features)
"""
SEEN = Dense("seen", "user", width=1, computed=Count("click", "1h"), default=0)
# Kind, user, item, event time and the values of sources.
Made = tuple[str, int, int, int, tuple[int, ...]]


def batches(app: AppFolder) -> Iterator[tuple[int, InteractionBatch]]:
    with app.open_topic("interactions") as topic:
        for partition, _, value in records_of(topic):
            yield partition, decode_interactions(value)


def made(app: AppFolder, side: str) -> dict[int, Made]:
    """Each interaction by its identity; one that comes again is the same."""
    found: dict[int, Made] = {}
    for _, batch in batches(app):
        if batch.side != side:
            continue
        for row, identity in enumerate(batch.identity.tolist()):
            values = tuple(batch.values[row].tolist())
            kind, time_ms = batch.kinds[batch.kind[row]], int(batch.event_time_ms[row])
            one = kind, int(batch.user[row]), int(batch.item[row]), time_ms, values
            assert found.setdefault(identity, one) == one
    return found


def check(app: AppFolder) -> dict[int, Made]:
    """That interactions are those of the labels that are positive, and of the items shown; with their keys."""
    found = made(app, "user")
    assert found == made(app, "item")
    kinds = defaultdict[str, int](int)
    for kind, *_ in found.values():
        kinds[kind] += 1
    positive = [bit for (_, bit), label in outcomes(app).items() if label]
    assert kinds["click"] == positive.count(0)
    assert kinds["purchase"] == positive.count(1)
    assert set(kinds) == {"click", "purchase", "impression"}
    spec = app.app.features
    shown = [small_impression(seed, items=1 + seed % 3) for seed in range(REQUESTS)]
    items = {(one["user"]["user_id"], item["video_id"]) for one in shown for item in one["items"]}
    assert kinds["impression"] == sum(len({item["video_id"] for item in one["items"]}) for one in shown)
    users = keys_of(spec.slot("user_id"), [user for user, _ in items]).tolist()
    videos = keys_of(spec.slot("video_id"), [video for _, video in items]).tolist()
    assert {(user, item) for _, user, item, *_ in found.values()} == set(zip(users, videos, strict=True))
    for user, values in {(user, values) for _, user, _, _, values in found.values()}:
        assert keys_of(spec.slot("user_id"), list(values)).tolist() == [user]
    return found


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, prism: Path) -> AppFolder:
    folder = write_app(tmp_path_factory.mktemp("interactions") / "app", prism, lots=3, declared=APP)
    fill(folder, 0, REQUESTS, end=True)
    run_samples(folder, threading.Event())
    return folder


def test_each_item_shown_and_each_action_that_makes_a_label_is_an_interaction(app: AppFolder) -> None:
    found = check(app)
    assert len(found) > 500
    assert learned(app) == outcomes(app)


def test_an_entity_is_in_one_partition_and_partitions_share_the_entities(app: AppFolder) -> None:
    partitions: dict[tuple[str, int], set[int]] = defaultdict(set)
    for partition, batch in batches(app):
        for key in batch.entity.tolist():
            partitions[batch.side, key].add(partition)
    assert {len(where) for where in partitions.values()} == {1}
    assert {partition for where in partitions.values() for partition in where} == {0, 1, 2}


def outputs(app: AppFolder, name: str) -> AppFolder:
    """The application with output topics of its own."""
    root = app.topic_url("samples").rpartition("/")[0]
    changed = load_app(app.folder, [f"topics.{topic}={root}/{name}.{topic}" for topic in TOPICS])
    for topic in (*TOPICS, "interactions"):
        create_topic(changed.topic_url(topic), changed.topic_settings(topic, 3)).close()
    return changed


def changes_of(app: AppFolder) -> list[str]:
    return [f"topics.{topic}={app.topic_url(topic)}" for topic in TOPICS]


def test_a_backfill_makes_the_same_however_history_is_cut(app: AppFolder) -> None:
    again = outputs(app, "again")
    sets = [part for change in (*changes_of(again), "ingest.stretch_s=2500") for part in ("--set", change)]
    backfill.run([str(app.folder), "--runner", "direct", "--interactions", *sets])
    none = outputs(app, "none")
    sets = [part for change in changes_of(none) for part in ("--set", change)]
    backfill.run([str(app.folder), "--runner", "direct", *sets])
    assert made(none, "user") == {}
    assert check(again) == check(app)


def test_ingest_on_flink_makes_the_same(app: AppFolder, flink: FlinkJobServer) -> None:
    again = outputs(app, "flink")
    with run_on(flink, app, *changes_of(again)) as process:
        assert process.wait(DEADLINE_S) == 0, log_of(app)
    assert check(again) == check(app)


def test_an_action_is_an_interaction_long_before_its_label_is_settled(prism: Path, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", prism, lots=2, declared=APP)
    call = [sys.executable, "-m", "streamlearn", "ingest", str(app.folder)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(call, stderr=log) as process:
        try:
            fill(app, 0, 40)
            wait_until(lambda: "click" in {kind for kind, *_ in made(app, "user").values()}, "an interaction")
            # The labels of a purchase wait for an hour of event time, and these are minutes.
            assert not any(batch.labels[1].settles.any() for _, batch in messages(app))
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def test_an_action_is_an_interaction_when_it_comes_though_time_stands_still() -> None:
    made = Place.make(memory_root())
    features = replace(made.folder.app.features, dense=(*made.folder.app.features.dense, SEEN))
    app = replace(made.folder.app, features=features)
    plan, state, found = JoinPlan.of(app, "topic", made.folder.settings.join), State(), list[Joined]()
    step = LotStep(plan, TickRules(1, 500, 2_000), LotShelf(), rows_max=100)

    def come(event: Event) -> None:
        events = lot_events(plan, 0, [event], T_MS, T_MS)
        step.take_in(2, events, state, lambda lot, joined, _: found.append(joined))

    come(Shown("q7", T_MS, 0, 0, 0, (901, 902), b"x"))
    come(Done("q7", T_MS + 5, 0, 0, 1, 902, "click"))
    come(Done("nobody", T_MS + 5, 0, 1, 2, 902, "click"))
    assert [len(one.interactions) for one in found] == [1]
    assert not any(len(one.rows) for one in found)


def test_what_was_served_while_states_were_unavailable_is_not_learned_but_is_an_interaction() -> None:
    made = Place.make(memory_root())
    features = replace(made.folder.app.features, dense=(*made.folder.app.features.dense, SEEN))
    place = replace(made, folder=replace(made.folder, app=replace(made.folder.app, features=features)))
    outcomes = ["known", "unavailable", "unknown", "", "unavailable"]
    with place.producer() as producer:
        for seed, outcome in enumerate(outcomes):
            given = small_impression(seed, items=1 + seed)
            producer.impression(**given, computed={"served_features": outcome} if outcome else None)
            video = given["items"][0]["video_id"]
            producer.action(given["request_id"], given["event_time_ms"] + 1_000, video, "click")
        producer.end(1 << 50)
    left_out = unavailable_rows()
    week = read_week(place)
    joined = week.joined()
    with week.maker() as maker:
        rows = sum(len(batch) for lot, one in joined for batch in maker.make(lot, one, 1 << 50))
        made_of = [batch.user.tolist() for batch in maker.interactions()]
        assert maker.set_aside() == []
    per_request = [2 * (1 + seed) for seed in range(5)]  # each item settles two labels at times of their own
    assert rows <= sum(per_request[seed] for seed in (0, 2, 3))
    assert unavailable_rows() - left_out + rows == sum(len(one.rows) for _, one in joined)
    assert rows > 0
    assert unavailable_rows() > left_out
    users = {
        int(keys_of(features.slot("user_id"), [small_impression(seed)["user"]["user_id"]])[0]) for seed in range(5)
    }
    assert {user for batch in made_of for user in batch} == users
    place.close()


def unavailable_rows() -> float:
    return REGISTRY.get_sample_value("streamlearn_ingest_unavailable_rows_total") or 0.0

"""The page on producers in other languages: its program, run as it stands with librdkafka, feeds ingest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streamlearn.events.row import action_row, impression_row
from streamlearn.ingest.join.lot_events import LotEvents
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.schemas.app import app_schemas
from streamlearn.testing import small_impression
from streamlearn.topics import Topic, partition_of
from tests.events.place import written
from tests.ingest.place import T_MS, Place, reading, take_all
from tools.services import Kafka

ROOT = Path(__file__).parent.parent.parent
REQUESTS, PARTITIONS = 60, 3


@pytest.fixture
def place(kafka: Kafka, topic_name: str) -> Iterator[Place]:
    made = Place.make(f"kafka://{kafka.address}/{topic_name}-", partitions=PARTITIONS)
    yield made
    made.close()


def shown(seed: int) -> dict[str, Any]:
    """Arguments of an impression whose request id has letters beyond ASCII."""
    given = small_impression(seed)
    return given | {"request_id": f"r\u00e9q-{seed}", "event_time_ms": T_MS + seed * 1_000, "shown_wall_ms": T_MS}


def events(place: Place) -> list[dict[str, Any]]:
    """Requests, an action on each two seconds later, and heartbeats now and then: as the page's program takes them."""
    app, found = place.folder.app, []
    for seed in range(REQUESTS):
        given = shown(seed)
        done = {
            "request_id": given["request_id"],
            "event_time_ms": given["event_time_ms"] + 2_000,
            "item_id": given["items"][0]["video_id"],
            "action": "click",
            "weight": 1.0,
        }
        found.append({"kind": "impression", **impression_row(app, given, 100)})
        found.append({"kind": "action", **action_row(app, done)})
        if seed % 20 == 19:
            found.append({"kind": "HEARTBEAT", "event_time_ms": given["event_time_ms"]})
    return [*found, {"kind": "END", "event_time_ms": T_MS + REQUESTS * 1_000}]


def produce(place: Place, folder: Path, lines: list[dict[str, Any]]) -> None:
    """Run the page's program in a process of its own, which knows the schemas' files and nothing of us."""
    page = (ROOT / "docs" / "operating" / "producers.md").read_text()
    (program,) = re.findall(r"^```python\n(# produce.py .*?)^```", page, flags=re.M | re.S)
    (folder / "produce.py").write_text(program)
    schemas = folder / "schemas"
    schemas.mkdir()
    for name, schema in app_schemas(place.folder.app).items():
        (schemas / f"{name}.avsc").write_text(schema.text)
    address = place.impressions.url.removeprefix("kafka://").partition("/")[0]
    names = [topic.url.rpartition("/")[2] for topic in (place.impressions, place.actions)]
    done = subprocess.run(
        [sys.executable, "produce.py", address, *names, "schemas"],
        cwd=folder, input="".join(f"{json.dumps(line)}\n" for line in lines), env=dict(os.environ),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def partitions(topic: Topic) -> dict[str, int]:
    """The partition of each key that was written."""
    return {record.key.decode(): record.partition for record in written(topic) if record.key}


def test_events_of_another_client_are_read_and_cut_without_a_dead_letter(place: Place, tmp_path: Path) -> None:
    lines = events(place)
    produce(place, tmp_path, lines)
    plan = place.plan()
    lineage = plan.lineage
    topics = [("impressions", lineage.events_topic_id), ("actions", lineage.actions_topic_id)]
    cutter = LotCutter(place.folder, lineage.lots_count, topics, plan.start_ms)
    lots: list[LotEvents] = []
    for partition in range(PARTITIONS):
        with reading(plan, partition=partition) as reader:  # which ends: an end mark came to every partition
            for blob in take_all(reader):
                cut = cutter.cut(blob)
                assert cut.failures == ()
                assert cut.of_no_label == 0
                lots += cut.lots
    for kind, wanted in (("impressions", "impression"), ("actions", "action")):
        columns = [getattr(one, kind) for one in lots]
        ids = [name for one in columns for name in names_of(one.request_ids.tobytes(), one.request_at.tolist())]
        times = [time_ms for one in columns for time_ms in one.event_time_ms.tolist()]
        assert sorted(zip(ids, times, strict=True)) == sorted(
            (line["request_id"], line["event_time_ms"]) for line in lines if line["kind"] == wanted
        )
    # The same bytes as ours, so that samples made of them are the same.
    own = place.folder.app
    payloads = {one.payload.tobytes()[:10] for one in (lot.impressions for lot in lots) if len(one)}
    assert payloads == {app_schemas(own)["impression"].prefix}


def test_another_client_sends_keys_where_our_producer_does_and_stamps_events_with_their_time(
    place: Place, kafka: Kafka, topic_name: str, tmp_path: Path
) -> None:
    lines = events(place)
    produce(place, tmp_path, lines)
    ours = Place.make(f"kafka://{kafka.address}/{topic_name}-ours-", partitions=PARTITIONS)
    with ours.producer() as producer:
        for seed in range(REQUESTS):
            given = shown(seed)
            producer.impression(**given)
            producer.action(given["request_id"], given["event_time_ms"], given["items"][0]["video_id"], "click")
            producer.flush()  # a record each, so that each has its key
    wanted = partitions(ours.impressions)
    assert len(wanted) == REQUESTS
    assert len(set(wanted.values())) == PARTITIONS
    assert wanted == {key: partition_of(key.encode(), PARTITIONS) for key in wanted}
    assert partitions(place.impressions) == wanted
    assert partitions(place.actions) == wanted
    stamps = {record.key.decode(): record.time_ms for record in written(place.impressions) if record.key}
    assert stamps == {line["request_id"]: line["event_time_ms"] for line in lines if line["kind"] == "impression"}
    ours.close()


def names_of(text: bytes, at: list[int]) -> list[str]:
    """Texts that lie end to end."""
    return [text[begin:end].decode() for begin, end in pairwise(at)]

"""A history of the small application in real topics, what samples it must become, and what a trainer would learn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.apps import AppFolder, load_app
from streamlearn.events import EventDecoder, Producer
from streamlearn.events.event import text_at
from streamlearn.ingest import JoinPlan, ProgressLog
from streamlearn.marks import MarkedRows, Marks
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import small_impression
from streamlearn.topics import Topic, create_topic
from tests.ingest.world import Done, Event, Identity, Shown, outcomes_expected

T_MS = 1_700_000_000_000
STEP_MS = 20_000
ACTS_REACH = 160  # requests, for the latest action on one
APP = """\
from streamlearn.testing import small_app

app = small_app()
"""
SETTINGS = """\
[topics]
time = "event"
{topics}

[ingest]
lots = {lots}
poll_s = 0.02
flush_s = 0.2
blob_bytes = 20000
dead_share_max = 0.5
prism_location = "{prism}"

[telemetry]
log_level = "info"
"""
Outcomes = dict[tuple[Identity, int], int]


def write_app(
    folder: Path,
    prism: Path,
    *,
    lots: int,
    partitions: int = 2,
    samples: int = 3,
    prefix: str = "",
    declared: str = APP,
) -> AppFolder:
    """The application with its topics, in its own folder, or named with a prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(declared)
    counts = {"impressions": partitions, "actions": partitions, "dead_letters": 1, "samples": samples, "progress": 1}
    if "computed" in declared:
        counts["interactions"] = samples
    topics = "\n".join(f'{name} = "{prefix}{name}"' for name in counts) if prefix else ""
    (folder / "app.toml").write_text(SETTINGS.format(lots=lots, prism=prism, topics=topics))
    app = load_app(folder)
    for name, count in counts.items():
        # A broker deletes at once what is as old as these events are.
        settings = replace(app.topic_settings(name, count), retention_ms=-1)
        create_topic(app.topic_url(name), settings).close()
    return app


def fill(app: AppFolder, first: int, count: int, *, end: bool = False) -> None:
    """Requests, one every `STEP_MS`, some of them twice, and what was done meanwhile on them and on those before."""
    until_ms = T_MS + (first + count) * STEP_MS
    acts = sorted(act for seed in range(max(0, first - ACTS_REACH), first + count) for act in _acts(seed))
    acts = [act for act in acts if T_MS + first * STEP_MS <= act[0] and (end or act[0] < until_ms)]
    with Producer(app) as producer:
        for seed in range(first, first + count):
            given = _shown(seed)
            while acts and acts[0][0] < given["event_time_ms"]:
                _act(producer, acts.pop(0))
            for _ in range(1 + (seed % 4 == 3)):
                producer.impression(**given)
            if seed % 20 == 19:
                producer.heartbeat(given["event_time_ms"])
        for act in acts:
            _act(producer, act)
        if end:
            producer.end(max([until_ms, *(time_ms for time_ms, *_ in acts)]))


def _shown(seed: int) -> dict[str, Any]:
    return small_impression(seed, items=1 + seed % 3) | {"event_time_ms": T_MS + seed * STEP_MS}


def _acts(seed: int) -> Iterator[tuple[int, str, int, str]]:
    """What is done on a request: at once, within the wait, later, too late, twice, or on one that nobody was shown."""
    rng, given = random.Random(seed), _shown(seed)
    for _ in range(rng.choice((0, 1, 1, 2))):
        request = given["request_id"] if rng.random() < 0.97 else f"nobody-{seed}"
        after_ms = rng.choice((0, 1, 5_000, 59_999, 60_001, 300_000, 600_000, 700_000, 3_000_000))
        act = given["event_time_ms"] + after_ms, request, rng.choice(given["items"])["video_id"]
        yield from [(*act, rng.choice(("click", "click", "purchase", "scroll")))] * rng.choice((1, 1, 2))


def _act(producer: Producer, act: tuple[int, str, int, str]) -> None:
    time_ms, request, item, action = act
    producer.action(request, time_ms, item, action)


def events_of(app: AppFolder) -> list[Event]:
    """Every event that was written, as an oracle takes them."""
    decoder = EventDecoder.of(app)
    found: list[Event] = []
    for topic in ("impressions", "actions"):
        with app.open_topic(topic) as opened:
            records = list(records_of(opened))
        events = decoder.decode([value for *_, value in records])
        shown, done = events.impressions, events.actions
        at = shown.columns["items[]"].tolist() if len(shown) else []
        for row, record in enumerate(shown.record_index.tolist()):
            items = tuple(shown.columns["items.video_id"][at[row] : at[row + 1]].tolist())
            request, time_ms = text_at(shown.columns, "request_id", row), int(shown.columns["event_time_ms"][row])
            partition, offset, _ = records[record]
            found.append(Shown(request, time_ms, partition, offset, int(shown.item_base[row]), items, b""))
        for row, record in enumerate(done.record_index.tolist()):
            request, action = (text_at(done.columns, name, row) for name in ("request_id", "action"))
            partition, offset, _ = records[record]
            item, time_ms = int(done.columns["item_id"][row]), int(done.columns["event_time_ms"][row])
            found.append(Done(request, time_ms, partition, offset, int(done.event_index[row]), item, action))
    return found


def records_of(topic: Topic) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of every record, partition after partition."""
    with topic.reader() as reader:
        for partition in range(topic.partitions):
            offset = 0
            while offset < reader.end(partition):
                records = reader.read(partition, offset)
                for at, value in zip(records.offsets.tolist(), records.values, strict=True):
                    assert value is not None
                    yield partition, at, value
                offset = records.next_offset


def outcomes(app: AppFolder) -> Outcomes:
    """The final label of every (identity, label) that is to be learned."""
    with app.open_topic("impressions") as topic:
        plan = JoinPlan.of(app.app, topic.topic_id, app.settings.join)
    return {key: label for key, (label, _) in outcomes_expected(plan, events_of(app)).items()}


def messages(app: AppFolder) -> Iterator[tuple[int, SampleBatch]]:
    """Every message of samples, with its partition."""
    codec = SampleCodec(app.app, app.settings.samples)
    with app.open_topic("samples") as topic:
        for partition, _, value in records_of(topic):
            yield partition, codec.decode(value)


def learned(app: AppFolder) -> Outcomes:
    """What a trainer learns of the samples, each label of an identity once, as marks have it."""
    labels = len(app.app.labels)
    marks, found = Marks(labels), Outcomes()
    for step, (_, batch) in enumerate(messages(app), 1):
        settles, values = _mask(batch, "settles"), _mask(batch, "value")
        rows = MarkedRows(
            batch.header.events_topic_id,
            np.ascontiguousarray(batch.requests.partition),
            np.ascontiguousarray(batch.requests.offset),
            np.ascontiguousarray(batch.requests.event_time_ms),
            np.ascontiguousarray(batch.request_index),
            np.ascontiguousarray(batch.item_index),
            settles,
            values,
        )
        settled = marks.settle(step, rows)
        for row in range(len(batch)):
            at = int(batch.request_index[row])
            identity = int(rows.partition[at]), int(rows.offset[at]), int(rows.item_index[row])
            for bit in range(labels):
                if int(settled.learn[row]) >> bit & 1:
                    assert (identity, bit) not in found  # what was learned is never learned again
                    found[identity, bit] = int(values[row]) >> bit & 1
                if int(settled.correct[row]) >> bit & 1:
                    assert found[identity, bit] == 0
                    found[identity, bit] = 1
    return found


def _mask(batch: SampleBatch, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """A bit for every label."""
    found = np.zeros(len(batch), np.uint32)
    for bit, label in enumerate(batch.labels):
        found |= getattr(label, name).astype(np.uint32) << np.uint32(bit)
    return found


def acknowledged_ms(app: AppFolder) -> int:
    """The least watermark of all lots, as the progress topic has it."""
    with watched(app) as reached_ms:
        return reached_ms()


@contextmanager
def watched(app: AppFolder) -> Iterator[Callable[[], int]]:
    """What returns the least watermark of all lots again and again: to open a topic costs more than to read on."""
    with ProgressLog.open(app.topic_url("progress"), app.access) as log:

        def reached_ms() -> int:
            lots = log.standing().lots
            if len(lots) < app.settings.ingest.lots:
                return 0
            return min(one.watermark_ms for one in lots.values())

        yield reached_ms

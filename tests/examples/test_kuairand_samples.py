"""KuaiRand's week through reading, cutting, joining and the making of samples, counted to the last row.

What is expected is counted from the file by a few lines of NumPy, and features are taken from the history: of what is
tested here they use nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from pyarrow import csv

from streamlearn.apps import AppFolder, load_app
from streamlearn.events import EventDecoder, Producer
from streamlearn.features import Slot, keys_of
from streamlearn.ingest import JoinCore, JoinPlan, ReadPlan, begin_run
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.reading.blob import decode_blob, encode_blob
from streamlearn.ingest.reading.pair import PairReader
from streamlearn.ingest.reading.watermark import BEFORE_ALL
from streamlearn.marks import MarkedRows, Marks
from streamlearn.replay import Replayer, computed_history, load_history, open_replay_topics
from streamlearn.samples import SampleBatch
from streamlearn.settings import Settings
from streamlearn.settings.join import MarksSettings
from streamlearn.testing import wait_until
from streamlearn.topics import open_topic

FOLDER = Path(__file__).parents[2] / "examples" / "kuairand"
FOREVER_MS = 10**12
Identity = tuple[int, int, int]
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Raw:
    """The file's rows, by their (request, video)."""

    key: npt.NDArray[np.str_]
    request: npt.NDArray[np.str_]
    is_click: npt.NDArray[np.bool_]
    long_view: npt.NDArray[np.bool_]
    exact: int


@dataclass(frozen=True)
class Week:
    """What the week became."""

    folder: AppFolder
    batches: list[SampleBatch]
    counters: Counter[str]
    letters: int
    identities: dict[tuple[str, int], Identity]


@pytest.fixture(scope="module")
def raw() -> Raw:
    table = csv.read_csv(FOLDER / "data" / "demo_week1.csv.gz")
    names = ("user_id", "time_ms", "video_id", "is_click", "long_view")
    user, time_ms, video, click, view = (table[name].to_numpy() for name in names)
    request = np.char.add(np.char.add(user.astype(str), "-"), time_ms.astype(str))
    key = np.char.add(np.char.add(request, "/"), video.astype(str))
    exact = len(set(zip(*(column.to_pylist() for column in table.columns), strict=True)))
    return Raw(key, request, click.astype(bool), view.astype(bool), exact)


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Week:
    root = tmp_path_factory.mktemp("week").as_uri()
    loaded = load_app(FOLDER)
    said = msgspec.to_builtins(loaded.settings)
    said["topics"] |= {"root": root}
    # Events are given to topics in stretches of a heartbeat: few long ones cost less.
    said["replay"] |= {"heartbeat_s": 3_600}
    said["ingest"] |= {"poll_s": 0.01, "fetch_wait_s": 0.01, "lots": 4}
    folder = replace(loaded, settings=msgspec.convert(said, Settings))
    with open_replay_topics(folder) as topics, Producer(folder, impressions=topics[0], actions=topics[1]) as producer:
        Replayer(computed_history(load_history(FOLDER), folder.app), producer, folder.settings.replay).run()
    plan = begin_run(folder)
    return _joined(folder, replace(plan, progress_url=""))


def _joined(folder: AppFolder, plan: ReadPlan) -> Week:
    lineage, letters, batches = plan.lineage, 0, []
    topics = [("impressions", lineage.events_topic_id), ("actions", lineage.actions_topic_id)]
    cutter, maker = LotCutter(folder, lineage.lots_count, topics, None), SampleMaker(folder, lineage, plan.run)
    join_plan = JoinPlan.of(folder.app, lineage.events_topic_id, folder.settings.join)
    cores = [JoinCore(join_plan) for _ in range(lineage.lots_count)]
    for blob, watermark_ms in _blobs(plan):
        cut = cutter.cut(decode_blob(blob))
        letters += len(cut.failures)
        for events in cut.lots:
            cores[events.lot].add_impressions(events.impressions)
            cores[events.lot].add_actions(events.actions)
        for lot, core in enumerate(cores):
            core.advance(watermark_ms)
            taken = core.take(1_000_000)
            letters += len(taken.letters)
            batches += maker.make(lot, taken, watermark_ms)
    letters += len(maker.set_aside())
    counters: Counter[str] = Counter()
    for core in cores:
        assert (core.pending, core.waiting, core.ready) == (0, 0, 0)
        counters.update(core.counters)
    return Week(folder, batches, counters, letters, _identities(folder, plan))


def _blobs(plan: ReadPlan) -> Iterator[tuple[bytes, int]]:
    """The blobs of all partitions in turn, each with the watermark of all of them behind it."""
    readers = [PairReader(plan, partition) for partition in range(plan.partitions)]

    def next_blobs() -> list[bytes]:
        found: list[bytes] = []

        def has_come() -> bool:
            found.extend(encode_blob(taken.blob) for reader in readers if (taken := reader.take()) is not None)
            return bool(found) or all(reader.is_finished for reader in readers)

        wait_until(has_come, "a blob comes, or all topics end")
        return found

    try:
        while found := next_blobs():
            watermark_ms = min(reader.watermark_ms for reader in readers)
            *first, last = found
            yield from ((blob, BEFORE_ALL) for blob in first)
            yield last, watermark_ms
    finally:
        for reader in readers:
            reader.close()


def _identities(folder: AppFolder, plan: ReadPlan) -> dict[tuple[str, int], Identity]:
    """The least identity that each item of each request was shown under, read from the topic."""
    found: dict[tuple[str, int], Identity] = {}
    decoder = EventDecoder.of(folder)
    with open_topic(plan.impressions_url) as topic, topic.reader() as reader:
        for partition in range(topic.partitions):
            offset = 0
            while offset < reader.end(partition):
                records = reader.read(partition, offset)
                offset = records.next_offset
                events = decoder.decode(records.values).impressions
                columns, at = events.columns, records.offsets[events.record_index].tolist()
                videos, items_at = columns["items.video_id"].tolist(), columns["items[]"].tolist()
                shown = zip(events.texts("request_id"), at, events.item_base.tolist(), pairwise(items_at), strict=True)
                for request, record, base, (begin, end) in shown:
                    for position, video in enumerate(videos[begin:end]):
                        identity = (partition, record, base + position)
                        if identity < found.get((request, video), (partition + 1, 0, 0)):
                            found[request, video] = identity
    return found


def test_the_week_is_counted_to_the_last_row(raw: Raw, week: Week) -> None:
    rows, keys = len(raw.key), np.unique(raw.key, return_counts=True)
    requests, request_of = np.unique(raw.request, return_inverse=True)
    first = np.unique(raw.key, return_index=True)[1]
    items = np.bincount(request_of[first])
    copies = np.zeros(len(requests), np.int64)
    np.maximum.at(copies, request_of[first], keys[1])
    click, view = (_any(raw, column) for column in (raw.is_click, raw.long_view))
    # What the file is known to be.
    assert (rows, rows - raw.exact, len(keys[0]), int((items > 1).sum())) == (94_784, 2_975, 91_805, 658)
    assert (int(click.sum()), int(view.sum()), int((click & view).sum())) == (41_096, 28_935, 28_831)
    # A request is shown as often as the row of it that is there most often, each time with all its items.
    counted = week.counters
    assert counted["impressions"] == copies.sum() == 94_121
    assert counted["impressions_duplicate"] == copies.sum() - len(requests) == 2_979
    assert counted["items"] == (copies * items).sum() == 94_818
    assert counted["items_repeated"] == counted["items"] - len(keys[0])
    actions = raw.is_click.sum() + raw.long_view.sum()
    assert counted["actions"] == actions == 70_626
    assert counted["actions_duplicate"] == actions - click.sum() - view.sum()
    assert counted["positives"] == click.sum() + view.sum()
    assert counted["negatives"] == 2 * len(keys[0]) - click.sum() - view.sum()
    # Every answer is in after 18 s, and a row waits 20.
    assert counted["rows"] == len(keys[0]) == sum(map(len, week.batches))
    names = ("rows_correction", "impressions_late", "actions_late", "actions_orphan", "impressions_split", "refusals")
    assert {name: counted[name] for name in names} == dict.fromkeys(names, 0)
    assert week.letters == 0


def _any(raw: Raw, flag: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether any row of each (request, video) says so, in the order of their names."""
    key_of = np.unique(raw.key, return_inverse=True)[1]
    return np.bincount(key_of, flag) > 0


def test_what_is_learned_of_the_week_is_what_the_file_says(raw: Raw, week: Week) -> None:
    learned = _learned(week)
    click, view = (_any(raw, column).tolist() for column in (raw.is_click, raw.long_view))
    expected = {}
    for key, *labels in zip(np.unique(raw.key).tolist(), click, view, strict=True):
        request, _, video = key.rpartition("/")
        expected[week.identities[request, int(video)]] = tuple(map(int, labels))
    assert learned == expected
    for batch in week.batches:
        for label in batch.labels:
            assert (label.sample_rate == 1.0).all()
            assert (label.weight == 1.0).all()
            assert np.isnan(label.served_score).all()
        assert (batch.requests.served_version == -1).all()


def _learned(week: Week) -> dict[Identity, tuple[int, ...]]:
    """The label of each identity, as a trainer's marks say what is to be learned."""
    marks, found = Marks(2, MarksSettings()), {}
    for step, batch in enumerate(week.batches):
        requests = batch.requests
        masks = [
            sum(getattr(label, name).astype(np.uint32) << bit for bit, label in enumerate(batch.labels))
            for name in ("settles", "value")
        ]
        topic, times = batch.header.events_topic_id, requests.event_time_ms
        settled = marks.settle(
            step,
            MarkedRows(
                topic, requests.partition, requests.offset, times, batch.request_index, batch.item_index, *masks
            ),
        )
        assert (settled.learn == 3).all()
        assert not settled.correct.any()
        values = [label.value.tolist() for label in batch.labels]
        for identity, *labels in zip(_identities_of(batch), *values, strict=True):
            found[identity] = tuple(labels)
    return found


def _identities_of(batch: SampleBatch) -> list[Identity]:
    requests, index = batch.requests, batch.request_index
    columns = requests.partition[index], requests.offset[index], batch.item_index
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_features_of_the_week_are_those_of_the_history_byte_for_byte(week: Week) -> None:
    app = week.folder.app
    (block,) = computed_history(load_history(FOLDER), app).blocks(FOREVER_MS)
    columns = block.impressions
    of_item = np.repeat(np.arange(block.impressions_rows), np.diff(columns["items[]"]))
    requests, videos = _texts(columns, "request_id"), columns["items.video_id"].tolist()
    # Copies of a request have the same features: any of them will do.
    row_of = {(requests[of_item[row]], video): row for row, video in enumerate(videos)}
    wanted = {identity: row_of[key] for key, identity in week.identities.items()}
    rows = np.array([wanted[one] for batch in week.batches for one in _identities_of(batch)])
    assert len(set(rows.tolist())) == len(rows)
    for slot in app.features.slots:
        path = f"{'user' if slot.side == 'user' else 'items'}.{slot.name}"
        places = of_item[rows] if slot.side == "user" else rows
        assert _made(week.batches, slot) == _keys(slot, columns, path, places), slot.name
    for one in app.features.dense:
        path, places = (f"user.{one.name}", of_item[rows]) if one.side == "user" else (f"items.{one.name}", rows)
        numbers = np.concatenate(
            [
                batch.user.dense[one.name][batch.request_index] if one.side == "user" else batch.item.dense[one.name]
                for batch in week.batches
            ]
        )
        assert numbers.tobytes() == columns[path].reshape(-1, one.width)[places].tobytes()
    tabs = [batch.segments[0].texts[code] for batch in week.batches for code in batch.segments[0].codes.tolist()]
    pages = _texts(columns, "segments.tab")
    assert tabs == [pages[place] for place in of_item[rows].tolist()]


def _texts(columns: Arrays, name: str) -> list[str]:
    data = columns[name].tobytes()
    return [data[begin:end].decode() for begin, end in pairwise(columns[f"{name}$"].tolist())]


def _keys(slot: Slot, columns: Arrays, path: str, places: npt.NDArray[np.int64]) -> Any:
    """The keys of a slot at some places; of a multi-valued one those of each place by itself."""
    keys = keys_of(slot, columns[path], offsets=columns.get(f"{path}$"))
    if not slot.multi:
        return keys[places].tolist()
    values = [tuple(keys[begin:end].tolist()) for begin, end in pairwise(columns[f"{path}[]"].tolist())]
    return [values[place] for place in places.tolist()]


def _made(batches: list[SampleBatch], slot: Slot) -> list[Any]:
    """The keys of a slot in every row."""
    found: list[Any] = []
    for batch in batches:
        columns = (batch.user if slot.side == "user" else batch.item).slots[slot.name]
        if columns.offsets is not None:
            lists = [tuple(columns.keys[begin:end].tolist()) for begin, end in pairwise(columns.offsets.tolist())]
            found += [lists[request] for request in batch.request_index.tolist()] if slot.side == "user" else lists
        else:
            found += columns.keys[batch.request_index if slot.side == "user" else slice(None)].tolist()
    return found

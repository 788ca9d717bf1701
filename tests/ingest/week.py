"""A week: events of the small application in topics, read, cut into lots and joined, ready to become samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamlearn.apps import AppFolder
from streamlearn.ingest import JoinCore, Joined, JoinPlan
from streamlearn.ingest.join.lot_events import LotEvents
from streamlearn.ingest.join.lots import LotCutter
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.testing import small_impression
from streamlearn.topics import open_topic
from tests.ingest.place import T_MS, Place, reading, take_all

FOREVER_MS = 1 << 60


@dataclass
class Week:
    """Events in topics, and all that a join of them gives."""

    place: Place
    lineage: Lineage
    lots: list[LotEvents]
    records: dict[tuple[int, int], bytes]

    def joins(self, **settings: Any) -> list[tuple[int, JoinCore]]:
        """A core for each lot, with all its events."""
        app = self.place.folder.app
        cores: dict[int, JoinCore] = {}
        joining = msgspec.structs.replace(self.place.folder.settings.join, **settings)
        plan = JoinPlan.of(app, self.lineage.events_topic_id, joining)
        for lot in self.lots:
            core = cores.setdefault(lot.lot, JoinCore(plan))
            core.add_impressions(lot.impressions)
            core.add_actions(lot.actions)
        return sorted(cores.items())

    def joined(self, rows_max: int = 1_000_000, at_ms: int = FOREVER_MS) -> list[tuple[int, Joined]]:
        """What the joins of all lots give at a watermark."""
        found = []
        for lot, core in self.joins():
            core.advance(at_ms)
            while core.ready:
                found.append((lot, core.take(rows_max)))
        return found

    @contextmanager
    def maker(self, folder: AppFolder | None = None) -> Iterator[SampleMaker]:
        """Makes samples of them."""
        maker = SampleMaker(folder or self.place.folder, self.lineage, 7)
        try:
            yield maker
        finally:
            maker.close()


def fill(place: Place, requests: int) -> None:
    """Requests of one to three items, most with some actions of chosen weight, in packs and alone."""
    rng = np.random.default_rng(7)
    with place.producer() as producer:
        for seed in range(requests):
            given = small_impression(seed, items=1 + seed % 3) | {"event_time_ms": T_MS + seed * 1_000}
            producer.impression(**given)
            for item in given["items"]:
                for action in ("click", "purchase"):
                    if rng.random() < 0.4:
                        after_ms, weight = int(rng.integers(0, 900_000)), float(rng.integers(1, 9)) / 4
                        at_ms = given["event_time_ms"] + after_ms
                        producer.action(given["request_id"], at_ms, item["video_id"], action, weight=weight)
            if seed % 7 == 0 or 40 < seed < 50:
                producer.flush()
        producer.end(T_MS + 10**8)


def week(place: Place, requests: int = 120) -> Week:
    """Events as lots of a join."""
    fill(place, requests)
    return read_week(place)


def read_week(place: Place) -> Week:
    """What stands in topics, as lots of a join."""
    plan = place.plan()
    topics = [(name, getattr(plan.lineage, f"{name}_topic_id")) for name in ("events", "actions")]
    cutter, lots = LotCutter(place.folder, plan.lineage.lots_count, topics, None), []
    for partition in range(plan.partitions):
        with reading(plan, partition=partition) as reader:
            lots += [lot for blob in take_all(reader) for lot in cutter.cut(blob).lots]
    records: dict[tuple[int, int], bytes] = {}
    with open_topic(plan.impressions_url) as topic, topic.reader() as reader:
        for partition in range(topic.partitions):
            offset = reader.earliest(partition)
            while offset < reader.end(partition):
                found = reader.read(partition, offset)
                records |= {
                    (partition, at): value or b""
                    for at, value in zip(found.offsets.tolist(), found.values, strict=True)
                }
                offset = found.next_offset
    return Week(place, plan.lineage, lots, records)

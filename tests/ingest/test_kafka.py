"""Reading from a real Kafka: the same contract, and a broker that goes away."""

from __future__ import annotations

from streamlearn.ingest import ProgressLog, begin_run
from tests.ingest.place import T_MS, Origin, Place, longest_window_ms, origins, reading, take, take_all
from tests.ingest.slow_samples import rows_expected, rows_made
from tests.ingest.week import week
from tools.services import Kafka


def test_topics_of_a_broker_are_read_from_any_mark_on_and_from_t0(kafka: Kafka, topic_name: str) -> None:
    place = Place.make(f"kafka://{kafka.address}/{topic_name}-", partitions=2)
    place.fill(40, end=True)
    plan = place.plan(blob_bytes=1_000)
    found: list[Origin] = []
    for partition in range(2):
        with reading(plan, partition=partition) as reader:
            first = take(reader)
            mark = reader.mark()
        with reading(plan, mark, partition=partition) as reader:
            found += [origin for blob in (first, *take_all(reader)) for origin in origins(blob)]
    assert len(found) == 80
    with ProgressLog.open(place.folder.topic_url("progress"), plan.access) as log:
        t0_ms = T_MS + 30_000
        log.write(plan.run, plan.lineage, dict.fromkeys(range(4), t0_ms + longest_window_ms(place.folder) + 30_000))
    second = begin_run(place.folder)
    assert second.run > plan.run
    assert second.start_ms == t0_ms
    for partition in range(2):
        with reading(second, partition=partition) as reader:
            blobs = take_all(reader)
        assert second.read_from_ms == t0_ms - longest_window_ms(place.folder)
        assert all((blob.impressions.timestamps_ms >= second.read_from_ms).all() for blob in blobs)
        assert all((blob.actions.timestamps_ms >= t0_ms - second.early_ms).all() for blob in blobs)
    place.close()


def test_impressions_are_read_again_from_a_broker(kafka: Kafka, topic_name: str) -> None:
    place = Place.make(f"kafka://{kafka.address}/{topic_name}-", partitions=2)
    given = week(place, requests=60)
    joined = given.joined(rows_max=30)
    assert any(one.requests.reads_back.any() for _, one in joined)
    with given.maker() as maker:
        made = [batch for lot, one in joined for batch in maker.make(lot, one, 0)]
        assert maker.set_aside() == []
    assert rows_made(made) == rows_expected(place.folder.app, (one for _, one in joined), given.records)
    place.close()

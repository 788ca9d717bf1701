"""What a join gives out is acknowledged before anything is said to be done, and no partition stays silent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import REGISTRY

from streamlearn.errors import IngestOver, NotDelivered
from streamlearn.ingest import Joined, ProgressLog, ReadPlan, begin_run
from streamlearn.ingest.join.join_cache import LotShelf
from streamlearn.ingest.join.lot_events import LotEvents
from streamlearn.ingest.join.lot_step import LotStep
from streamlearn.ingest.join.plan import JoinPlan
from streamlearn.ingest.join.ticks import TickRules
from streamlearn.ingest.output.progress_keeper import KEEPERS, ProgressKeeper
from streamlearn.ingest.output.sample_sink import SampleSink
from streamlearn.ingest.reading.watermark import BEFORE_ALL, TimeRules
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.testing import ManualClock, wait_until
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from tests.ingest.history import records_of
from tests.ingest.one_lot import State, lot_events
from tests.ingest.place import T_MS, Place, memory_root
from tests.ingest.plain_maker import PlainMaker
from tests.ingest.world import Done, Event, Shown

PARTITIONS = 3


@pytest.fixture
def place() -> Iterator[Place]:
    root = memory_root()
    made = Place.make(root, topics={"samples": f"{root}samples"})
    create_topic(made.folder.topic_url("samples"), TopicSettings(partitions=PARTITIONS, retention_ms=-1)).close()
    yield made
    made.close()


def joined_of(plan: ReadPlan, place: Place, time_ms: int = T_MS) -> Joined:
    """One impression of two items with a click on the second, and an action of nobody, some hours later."""
    join_plan = JoinPlan.of(place.folder.app, plan.lineage.events_topic_id, place.folder.settings.join)
    found: list[Joined] = []
    state = State()
    step = LotStep(join_plan, TickRules(1, 500, 2_000), LotShelf(), rows_max=100)
    events: list[Event] = [
        Shown("q7", time_ms, 0, 0, 0, (901, 902), b"x"),
        Done("q7", time_ms + 5, 0, 0, 0, 902, "purchase"),
        Done("nobody", time_ms, 0, 1, 0, 902, "click"),
    ]
    given: LotEvents = lot_events(join_plan, 0, events, BEFORE_ALL, time_ms + 4_000_000)
    step.take_in(2, given, state, lambda lot, joined, reached_ms: found.append(joined))
    step.look(2, time_ms + 4_000_000, state, lambda lot, joined, reached_ms: found.append(joined))
    (whole,) = found
    return whole


def samples_of(place: Place) -> list[tuple[int, SampleBatch]]:
    codec = SampleCodec(place.folder.app, place.folder.settings.samples)
    with place.folder.open_topic("samples") as topic:
        return [(partition, codec.decode(value)) for partition, _, value in records_of(topic)]


def reached_of(place: Place) -> dict[int, int]:
    with ProgressLog.open(place.folder.topic_url("progress"), place.folder.access) as log:
        return {lot: one.reached_ms for lot, one in log.standing().lots.items()}


def keeper_of(place: Place, plan: ReadPlan, every_s: float) -> ProgressKeeper:
    return ProgressKeeper(place.folder, plan, PlainMaker(place.folder, plan), every_s=every_s)


def test_what_was_given_is_in_its_lots_partition_when_flush_returns_and_letters_are_too(place: Place) -> None:
    plan = begin_run(place.folder)
    sink = SampleSink(place.folder, plan, PlainMaker(place.folder, plan))
    joined = joined_of(plan, place)
    sink.give(2, joined, T_MS + 4_000_000)
    sink.give(0, joined, T_MS + 4_000_000)
    assert sink.flush() == {0, 2}
    assert sink.flush() == set()
    found = samples_of(place)
    assert [(partition, batch.header.lot, len(batch)) for partition, batch in found] == [
        (0, 0, len(joined.rows)),
        (2, 2, len(joined.rows)),
    ]
    with place.folder.open_topic("dead_letters") as topic:
        assert len(list(records_of(topic))) == 2
    sink.close()


def test_lots_that_share_a_partition_are_written_in_the_order_of_time_and_each_in_its_own(place: Place) -> None:
    plan = begin_run(place.folder)
    sink = SampleSink(place.folder, plan, PlainMaker(place.folder, plan))
    hour_ms = 3_600_000
    # A whole history of a lot comes before that of the next one; one time of the second goes back.
    hours = {0: [1, 4, 6], 3: [2, 3, 2, 5]}
    for lot, times in hours.items():
        for hour in times:
            joined = joined_of(plan, place, T_MS + hour * hour_ms)
            sink.give(lot, replace(joined, complete_ms=T_MS + hour * hour_ms), T_MS + hour * hour_ms)
    sink.flush()
    sink.close()
    shown = [
        (batch.header.lot, (int(batch.requests.event_time_ms[0]) - T_MS) // hour_ms)
        for partition, batch in samples_of(place)
        if partition == 0
    ]
    assert shown == [(0, 1), (3, 2), (3, 3), (3, 2), (0, 4), (3, 5), (0, 6)]


def test_samples_that_nobody_took_are_not_said_to_be_done(place: Place) -> None:
    plan = begin_run(place.folder)
    sink = SampleSink(place.folder, plan, PlainMaker(place.folder, plan))
    sink.give(2, joined_of(plan, place), T_MS)
    delete_topic(place.folder.topic_url("samples"))
    with pytest.raises(NotDelivered):
        sink.flush()
    assert reached_of(place) == {}


def test_how_late_samples_are_is_observed_where_time_is_the_wall(place: Place) -> None:
    plan = begin_run(place.folder)
    plan = replace(plan, rules=TimeRules("wall", 30_000, 1_000))
    joined = joined_of(plan, place)
    first_ms = int(joined.rows.settle_time_ms.min())
    sink = SampleSink(
        place.folder, plan, PlainMaker(place.folder, plan), clock=ManualClock(wall_ms=first_ms + 30_000 + 1_200)
    )
    before = _observed()
    sink.give(2, joined, T_MS)
    sink.flush()
    assert _observed() - before == pytest.approx(1.2)
    sink.close()


def _observed() -> float:
    return REGISTRY.get_sample_value("streamlearn_ingest_emit_latency_seconds_sum") or 0.0


def test_progress_is_written_though_nothing_more_comes_and_silent_partitions_hear_of_it(place: Place) -> None:
    plan = begin_run(place.folder)
    keeper = keeper_of(place, plan, every_s=0.01)
    keeper.reached({0: T_MS, 1: T_MS + 5, 2: T_MS, 3: T_MS + 9}, spoken=[1])
    wait_until(lambda: len(reached_of(place)) == 4, "progress is written")
    said = {partition: batch.header for partition, batch in samples_of(place)}
    assert {partition: (one.lot, one.watermark_ms) for partition, one in said.items()} == {
        0: (3, T_MS + 9),
        2: (2, T_MS),
    }
    keeper.close()
    assert len(samples_of(place)) == 2


def test_what_was_told_last_is_written_when_the_keeper_ends(place: Place) -> None:
    plan = begin_run(place.folder)
    keeper = KEEPERS.acquire(plan.run_key, lambda: keeper_of(place, plan, every_s=3_600))
    assert KEEPERS.acquire(plan.run_key, lambda: pytest.fail("there is one")) is keeper
    keeper.reached({0: T_MS}, [])
    keeper.reached({0: T_MS + 1, 3: T_MS}, [])
    KEEPERS.release(plan.run_key)
    assert reached_of(place) == {}
    KEEPERS.release(plan.run_key)
    assert reached_of(place) == {0: T_MS + 1, 3: T_MS}


def test_a_newer_run_ends_the_keeper_and_whoever_gives_samples_hears_of_it(place: Place) -> None:
    plan = begin_run(place.folder)
    keeper = keeper_of(place, plan, every_s=0.01)
    newer = begin_run(place.folder)
    keeper.reached({0: T_MS}, [])

    def is_over() -> bool:
        try:
            keeper.check()
        except IngestOver:
            return True
        return False

    wait_until(is_over, "the keeper hears of the newer run")
    with pytest.raises(IngestOver, match=f"run {newer.run} of ingest has taken over"):
        keeper.reached({0: T_MS + 1}, [])
    keeper.close()
    assert reached_of(place) == {}


def test_rows_of_a_lot_keep_their_order_over_many_messages(place: Place) -> None:
    plan = begin_run(place.folder)
    sink = SampleSink(place.folder, plan, PlainMaker(place.folder, plan))
    joined = joined_of(plan, place)
    for number in range(50):
        moved = replace(joined, requests=replace(joined.requests, offset=np.full(len(joined.requests), number)))
        sink.give(1, moved, T_MS + number)
    sink.flush()
    assert [int(batch.requests.offset[0]) for _, batch in samples_of(place)] == list(range(50))
    sink.close()

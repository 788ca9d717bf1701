"""The reader by hand, without a runner: every record once, from any mark on, with a watermark that is true."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import msgspec
import pytest

from streamlearn.errors import IngestOver, PositionLost, TopicReplaced
from streamlearn.ingest import ProgressLog, begin_run
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.reading.mark import PairMark, decode_marks, encode_marks
from streamlearn.ingest.reading.puller import Puller
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL
from streamlearn.telemetry import gauge
from streamlearn.testing import ManualClock, small_impression, wait_until
from streamlearn.topics import Position, Reader, Records, create_topic, delete_topic, partition_of
from streamlearn.topics.records import empty_records
from tests.ingest.conftest import Make
from tests.ingest.place import T_MS, Origin, Place, origins, reading, take, take_all, take_count

DISORDER_MS = 30_000


def test_every_record_of_both_topics_comes_once_and_then_there_is_nothing_more(make: Make) -> None:
    place = make()
    place.fill(20, end=True)
    with reading(place.plan(blob_bytes=1_000)) as reader:
        blobs = take_all(reader)
        found = [origin for blob in blobs for origin in origins(blob)]
        assert sorted(found) == sorted((name, at) for name in ("impressions", "actions") for at in range(20))
        for name in ("impressions", "actions"):
            assert [at for topic, at in found if topic == name] == list(range(20))
        assert reader.watermark_ms == AFTER_ALL
        assert reader.take() is None


def test_the_watermark_of_a_blob_is_never_behind_that_of_the_one_before(make: Make) -> None:
    place = make()
    place.fill(60, end=True)
    with reading(place.plan(blob_bytes=1_000)) as reader:
        blobs = take_all(reader)
    watermarks = [blob.watermark_ms for blob in blobs]
    assert len(blobs) >= 3
    assert watermarks == sorted(watermarks)
    for blob in blobs[1:]:
        for section in (blob.impressions, blob.actions):
            assert (section.timestamps_ms >= blob.watermark_ms).all()


def test_a_reader_made_from_a_mark_gives_exactly_the_rest(make: Make) -> None:
    place = make()
    place.fill(30, end=True)
    plan = place.plan(blob_bytes=1_000)
    before: list[Origin] = []
    mark: PairMark | None = None
    with reading(plan) as reader:
        while len(before) < 25:
            before += origins(take(reader))
        mark = decode_marks(encode_marks((reader.mark(),)))[0]
        taken_after = take(reader)  # given, and lost with the reader
        assert origins(taken_after)
        reached_ms = reader.watermark_ms
    with reading(plan, mark) as reader:
        assert reader.watermark_ms <= reached_ms
        after = [origin for blob in take_all(reader) for origin in origins(blob)]
    assert not set(before) & set(after)
    assert sorted(before + after) == sorted((name, at) for name in ("impressions", "actions") for at in range(30))


def test_a_mark_keeps_the_leader_epoch_of_what_was_given(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def led(self: Puller) -> Records | None:
        records = take_records(self)
        return records and replace(records, leader_epochs=[(0, 3), (1, 5)])

    place.fill(2, end=True)
    take_records = Puller.take
    monkeypatch.setattr(Puller, "take", led)
    with reading(place.plan()) as reader:
        take_all(reader)
        mark = decode_marks(encode_marks((reader.mark(),)))[0]
    assert (mark.impressions.leader_epoch, mark.actions.leader_epoch) == (5, 5)
    older = replace(mark.impressions, leader_epoch=-1), replace(mark.actions, leader_epoch=-1)
    written = msgspec.msgpack.decode(encode_marks((mark,)))
    del written[0]["impressions"]["leader_epoch"], written[0]["actions"]["leader_epoch"]
    read = decode_marks(msgspec.msgpack.encode(written))[0]
    assert (read.impressions, read.actions) == older


def test_the_first_blob_alone_opens_and_one_from_a_mark_does_not(place: Place) -> None:
    place.fill(10, end=True)
    plan = place.plan(blob_bytes=1_000)
    with reading(plan) as reader:
        blobs = [take(reader)]
        mark = reader.mark()
        blobs += take_all(reader)
    assert [blob.opens for blob in blobs] == [True] + [False] * (len(blobs) - 1)
    with reading(plan, mark) as reader:
        assert not any(blob.opens for blob in take_all(reader))


def test_the_last_blob_alone_closes_and_one_from_a_mark_behind_it_does_not_come_again(place: Place) -> None:
    place.fill(10, end=True)
    plan = place.plan(blob_bytes=1_000)
    with reading(plan) as reader:
        blobs = take_all(reader)
        mark = reader.mark()
    assert [blob.closes for blob in blobs] == [False] * (len(blobs) - 1) + [True]
    with reading(plan, mark) as reader:
        assert take_all(reader) == []


def test_what_closes_a_partition_without_events_comes_ahead_of_the_timers_of_the_end(place: Place) -> None:
    place.fill(0, end=True)
    with reading(place.plan()) as reader:
        taken = wait_until(reader.take, "the closing blob")
    assert taken is not None
    assert (taken.blob.opens, taken.blob.closes, taken.blob.after_ms) == (True, True, AFTER_ALL)
    assert taken.time_ms == BEFORE_ALL


def test_a_first_blob_comes_ahead_of_the_timers_of_lots_that_other_partitions_opened(place: Place) -> None:
    place.fill(2)
    with reading(place.plan()) as reader:
        taken = wait_until(reader.take, "a blob comes")
    assert taken is not None
    assert (taken.blob.opens, taken.blob.watermark_ms) == (True, T_MS + 1000 - DISORDER_MS)
    assert taken.time_ms == BEFORE_ALL


def test_a_run_with_a_start_opens_at_once_without_any_record(place: Place) -> None:
    plan = replace(place.plan(), start_ms=T_MS, context_ms=500)
    with reading(plan) as reader:
        blob = take(reader)
    assert (blob.opens, len(blob), blob.watermark_ms) == (True, 0, T_MS - 500)


def test_reading_begins_one_context_before_the_start_and_not_before(make: Make) -> None:
    place = make()
    place.fill(40, end=True)
    with reading(replace(place.plan(), start_ms=T_MS + 35_000, early_ms=4_000, context_ms=5_000)) as reader:
        found = [origin for blob in take_all(reader) for origin in origins(blob)]
    assert min(at for name, at in found if name == "impressions") == 30
    assert min(at for name, at in found if name == "actions") == 29  # its action comes two seconds later


def test_heartbeats_move_the_watermark_where_no_event_does(place: Place) -> None:
    place.fill(1)
    with place.producer() as producer:
        producer.heartbeat(T_MS + 500_000)
    with reading(place.plan()) as reader:
        take_count(reader, 2)
        assert wait_until(lambda: reader.take() is None and reader.watermark_ms >= T_MS + 500_000, "time moves")


def test_in_event_time_a_topic_without_records_holds_the_other_back_and_is_seen_to_stand_still(place: Place) -> None:
    with place.producer() as producer:
        producer.impression(**small_impression(1) | {"event_time_ms": T_MS})
    clock = ManualClock()
    with reading(place.plan(), clock=clock) as reader:
        take_count(reader, 1)
        before_ms = reader.watermark_ms
        clock.sleep(100)
        assert reader.take() is None
        assert reader.watermark_ms == before_ms
        help = "Time since the watermark of a partition last moved."
        still = gauge("ingest", "watermark_still", "seconds", help, ["partition"]).labels("0")
        assert still._value.get() >= 100


def test_in_wall_time_an_idle_topic_is_left_out_and_when_both_are_time_moves_to_the_proof(make: Make) -> None:
    place = make(topics={"time": "wall"})
    clock = ManualClock(T_MS)
    with reading(place.plan(), clock=clock) as reader:

        def moved() -> bool:
            clock.sleep(0.02)  # idleness is proven on this clock
            reader.take()
            return reader.watermark_ms > 0

        wait_until(moved, "both topics are proven empty")
        assert reader.watermark_ms <= clock.wall_ms() - DISORDER_MS
        with place.producer(clock) as producer:
            producer.impression(**small_impression(1) | {"event_time_ms": clock.wall_ms()})
        before_ms = reader.watermark_ms
        take_count(reader, 1)
        assert reader.watermark_ms >= before_ms


def test_a_jump_of_time_without_records_is_told_to_every_lot_once(make: Make) -> None:
    place = make(topics={"time": "wall"})
    clock = ManualClock(T_MS)
    with place.producer(clock) as producer:
        producer.impression(**small_impression(1) | {"event_time_ms": T_MS})
        for item in range(3):  # of a producer that has no clock
            producer.action("q1", 0, item, "click")
            producer.flush()
    with reading(place.plan(), clock=clock) as reader:
        blobs = take_count(reader, 4)
        wait_until(lambda: reader.take() is None and reader.watermark_ms > BEFORE_ALL, "time is known")
        assert reader.watermark_ms == -DISORDER_MS

        def jumped() -> bool:
            clock.sleep(0.02)
            taken = reader.take()
            blobs.extend([] if taken is None else [taken.blob])
            return blobs[-1].after_ms > 0

        wait_until(jumped, "both topics are proven empty")
        assert (len(blobs[-1]), blobs[-1].opens, blobs[-1].closes) == (0, True, False)
        assert blobs[-1].after_ms == reader.watermark_ms >= T_MS - DISORDER_MS

        def idled() -> bool:
            clock.sleep(5)
            assert reader.take() is None  # an idle partition costs nothing
            return reader.watermark_ms >= T_MS + 300_000

        wait_until(idled, "time goes on")


def _fast_ms(second: int) -> int:
    """How fast the clock of an event's producer is, of some events; one of them is the first action."""
    return 600_000 if second == 0 or second % 20 in (7, 8, 19) else 0


def _backlog(place: Place) -> None:
    with place.producer() as producer:
        for second in range(600):
            given = small_impression(second) | {"event_time_ms": T_MS + second * 1000 + _fast_ms(second) * (second > 0)}
            producer.impression(**given)
            acted_ms = T_MS + second * 1000 + _fast_ms(second) + 2000
            producer.action(given["request_id"], acted_ms, given["items"][0]["video_id"], "click")
            producer.flush()


@pytest.mark.parametrize("blob_bytes", [1_000, 20_000])
def test_in_a_backlog_a_producer_whose_clock_is_fast_makes_no_other_record_late(make: Make, blob_bytes: int) -> None:
    place = make(topics={"time": "wall"})
    _backlog(place)
    clock = ManualClock(T_MS + 86_400_000)
    with reading(place.plan(blob_bytes=blob_bytes), clock=clock) as reader:
        for blob in take_count(reader, 1_200):
            for section in (blob.impressions, blob.actions):
                assert (section.timestamps_ms >= blob.watermark_ms).all()

        def ended() -> bool:
            clock.sleep(0.02)
            reader.take()
            return reader.watermark_ms >= T_MS + 599_000

        wait_until(ended, "the end is reached")


def test_in_a_backlog_a_broker_that_gives_nothing_for_a_moment_has_not_reached_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Reader, partition: int, offset: int, **bounds: int) -> Records:
        return empty_records(partition, offset) if next(count) % 3 else read_once(self, partition, offset, **bounds)

    place, count = make(topics={"time": "wall"}), itertools.count()
    _backlog(place)
    read_once = Reader.read
    monkeypatch.setattr(Reader, "read", read)
    with reading(place.plan(blob_bytes=1_000), clock=ManualClock(T_MS + 86_400_000)) as reader:
        for blob in take_count(reader, 1_200):
            for section in (blob.impressions, blob.actions):
                assert (section.timestamps_ms >= blob.watermark_ms).all()


def test_one_topic_is_not_read_far_ahead_of_the_other(place: Place) -> None:
    with place.producer() as producer:
        for second in range(100):
            producer.impression(**small_impression(second) | {"event_time_ms": T_MS + second * 1000})
            producer.flush()
        producer.heartbeat(T_MS + 100_000)
        producer.flush()
    # The actions' first word: they are at the very beginning.
    with place.actions.writer() as writer, place.producer() as producer:
        given = small_impression(0)
        producer.action(given["request_id"], T_MS, 1, "click")
        producer.flush()
        writer.flush()
    plan = place.plan(lead_s=20.0, blob_bytes=1_000)
    with reading(plan) as reader:
        mark = None
        last_ms = T_MS
        # The heartbeat of the actions stands before the action, so all is read: nothing is ahead of it.
        for blob in take_count(reader, 101):
            if len(blob.impressions):
                last_ms = max(last_ms, int(blob.impressions.timestamps_ms.max()))
        mark = reader.mark()
    assert last_ms == T_MS + 99_000
    assert mark.actions.offset == 2


def test_a_topic_that_is_far_ahead_waits_until_the_other_comes(place: Place) -> None:
    with place.producer() as producer:
        producer.action("q0", T_MS, 1, "click")
        for second in range(100):
            producer.impression(**small_impression(second) | {"event_time_ms": T_MS + second * 1000})
            producer.flush()
    with reading(place.plan(lead_s=20.0)) as reader:
        blobs = take_count(reader, 22)
        wait_until(lambda: reader._has(0), "more impressions are fetched")
        assert reader.take() is None
        shown = [blob.impressions.timestamps_ms.max() for blob in blobs if len(blob.impressions)]
        assert max(shown) - T_MS in range(19_000, 22_000)
        with place.producer() as producer:
            producer.action("q50", T_MS + 90_000, 1, "click")
        take_count(reader, 102 - sum(map(len, blobs)))


def test_reading_waits_for_acknowledgements_and_goes_on_with_them(place: Place) -> None:
    place.fill(60, end=True)
    plan = place.plan(acknowledged=True, read_ahead_bytes=2_000, blob_bytes=1_000, flush_s=0.02)
    with reading(plan) as reader, ProgressLog.open(plan.progress_url, plan.access) as log:
        first = take_count(reader, 10)
        wait_until(lambda: reader.take() is None and reader._ledger.unacknowledged_bytes >= 2_000, "the bound is met")
        held = sum(map(len, first))
        assert held < 120
        lots = dict.fromkeys(range(plan.lineage.lots_count - 1), AFTER_ALL)
        log.write(plan.run, plan.lineage, lots)
        assert reader.take() is None  # one lot is silent still
        log.write(plan.run, plan.lineage, {plan.lineage.lots_count - 1: AFTER_ALL})
        take_all(reader)


def test_a_run_that_was_taken_over_stops_reading(place: Place) -> None:
    place.fill(2)
    plan = place.plan(acknowledged=True, flush_s=0.02)
    with reading(plan) as reader:
        take(reader)
        begin_run(place.folder)

        def is_over() -> bool:
            try:
                reader.take()
            except IngestOver as error:
                return "has taken over from run" in error.message
            return False

        wait_until(is_over, "it hears of the newer run")


def test_a_mark_of_a_topic_that_was_made_anew_is_refused(place: Place) -> None:
    place.fill(2)
    plan = place.plan()
    with reading(plan) as reader:
        take(reader)
        mark = reader.mark()
    delete_topic(place.actions.url)
    create_topic(place.actions.url, place.impressions.settings()).close()
    with pytest.raises(TopicReplaced, match="deleted and created again"), reading(plan, mark):
        pass
    with pytest.raises(TopicReplaced), reading(plan):
        pass


@pytest.mark.parametrize("offset", [-1, 3])
def test_a_mark_outside_of_what_can_be_read_is_refused(place: Place, offset: int) -> None:
    place.fill(2)
    plan = place.plan()
    with reading(plan) as reader:
        mark = reader.mark()
    lost = PairMark(mark.impressions, Position(mark.actions.topic_id, 0, offset))
    with (
        pytest.raises(PositionLost, match=rf"position {offset} is outside the readable range \[0, 2\]") as caught,
        reading(plan, lost),
    ):
        pass
    assert caught.value.help


def test_each_partition_is_read_by_a_reader_of_its_own_and_leaves_no_thread(make: Make) -> None:
    place = make(partitions=3)
    place.fill(30, end=True)
    plan = place.plan()
    found = {}
    for partition in range(3):
        with reading(plan, partition=partition) as reader:
            found[partition] = sum(map(len, take_all(reader)))
    expected = dict.fromkeys(range(3), 0)
    for seed in range(30):
        expected[partition_of(f"q{seed}".encode(), 3)] += 2
    assert found == expected
    wait_until(
        lambda: not [one for one in threading.enumerate() if one.name.startswith("streamlearn-ingest")],
        "every thread has ended",
    )


def test_lineage_is_of_both_topics(place: Place) -> None:
    lineage = place.plan().lineage
    assert isinstance(lineage, Lineage)
    assert (lineage.events_topic_id, lineage.actions_topic_id) == (place.impressions.topic_id, place.actions.topic_id)


def test_a_reader_that_is_told_to_stop_says_so_once_and_how_far_it_came(make: Make) -> None:
    place = make()
    place.fill(20)
    plan = place.plan(acknowledged=True, flush_s=0.02)
    with reading(plan) as reader, ProgressLog.open(plan.progress_url, plan.access) as log:
        before = take(reader)
        reached_ms = reader.watermark_ms
        assert (before.closes, before.after_ms) == (False, reached_ms)
        log.stop(plan.run, plan.lineage)
        place.fill(5, first=20)
        blobs = take_all(reader)
        assert (blobs[-1].closes, blobs[-1].opens) == (True, False)
        assert reached_ms <= blobs[-1].after_ms < AFTER_ALL
        assert reader.watermark_ms == AFTER_ALL  # a runner ends the source by it
        assert reader.take() is None
        assert log.standing().stopped == plan.run
    newer = place.plan(acknowledged=True, flush_s=0.02)
    with reading(newer) as reader:  # that it was another run's is not its concern
        assert len(take_count(reader, 50)) > 0

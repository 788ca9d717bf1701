"""The source as a runner drives it, and without one: splits, marks, bundles that end in the middle."""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam import coders
from apache_beam.coders import BytesCoder, typecoders
from apache_beam.io.unbounded_source import _UnboundedSourceRestriction, _UnboundedSourceRestrictionTracker
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

from streamlearn.errors import ConfigError, TopicReplaced
from streamlearn.ingest.beam.cut_lots import CutLots
from streamlearn.ingest.beam.runners import runner_options
from streamlearn.ingest.beam.source import EventMark, EventReader, EventSource, read_events, timestamp_of
from streamlearn.ingest.reading.blob import decode_blob
from streamlearn.ingest.reading.mark import PairMark
from streamlearn.ingest.reading.puller import Puller
from streamlearn.ingest.reading.watermark import AFTER_ALL, BEFORE_ALL
from streamlearn.settings.ingest import IngestSettings
from streamlearn.testing import wait_until
from streamlearn.topics import Position, create_topic, delete_topic
from tests.ingest.conftest import Make
from tests.ingest.place import T_MS, Origin, Place, memory_root, origins

ALL = sorted((name, at) for name in ("impressions", "actions") for at in range(30))


def drain(reader: EventReader, most: int | None = None) -> Iterator[Origin]:
    """What a reader gives until it has ended, or so many blobs were given."""
    given, has_one = 0, reader.start()
    while most is None or given < most:
        if has_one:
            given += 1
            yield from origins(decode_blob(reader.get_current()))
        elif reader.get_watermark() == MAX_TIMESTAMP:
            return
        has_one = reader.advance() if most is None or given < most else False


def test_a_source_travels_and_splits_by_partition_whatever_is_desired(make: Make) -> None:
    place = make(partitions=3)
    source = pickle.loads(pickle.dumps(EventSource(place.plan())))
    splits = source.split(20)
    assert [split.partitions for split in splits] == [(0,), (1,), (2,)]
    assert splits[1].split(20) == [splits[1]]
    assert not source.is_bounded()
    assert isinstance(source.default_output_coder(), BytesCoder)
    (whole,) = EventSource(place.plan(), whole=True).split(20)
    assert whole.partitions == (0, 1, 2)
    assert whole.split(20) == [whole]


def test_a_split_that_was_kept_from_an_earlier_run_is_read_by_the_plan_of_this_one(place: Place) -> None:
    kept = EventSource(place.plan(), partitions=(0,), endless=True)
    now = EventSource(place.plan(), endless=True)
    assert now.plan.run > kept.plan.run
    assert now.renewed(kept) == replace(kept, plan=now.plan)
    own = replace(now, partitions=(0,))
    assert now.renewed(own) is own
    others = replace(kept, plan=replace(kept.plan, lineage=msgspec.structs.replace(kept.plan.lineage, lots_count=99)))
    with pytest.raises(ConfigError, match=f"the savepoint is from run {kept.plan.run}") as caught:
        now.renewed(others)
    assert "start without the savepoint" in caught.value.help


def test_one_split_of_all_partitions_has_the_time_of_the_one_that_is_least_and_goes_on_from_its_marks(
    make: Make,
) -> None:
    place = make(partitions=3)
    place.fill(30, end=True)
    (split,) = EventSource(place.plan(blob_bytes=1_000), whole=True).split(1)
    coder = split.get_checkpoint_mark_coder()
    found: list[tuple[int, Origin]] = []
    reader, watermark, rounds = split.create_reader(None, None), MIN_TIMESTAMP, 0
    while reader.get_watermark() < MAX_TIMESTAMP:
        assert reader.get_watermark() >= watermark
        watermark = reader.get_watermark()
        if reader.advance():
            assert reader.get_current_timestamp() >= watermark  # never late
            blob = decode_blob(reader.get_current())
            found += [(blob.partition, one) for one in origins(blob)]
            kept = coder.encode(reader.get_checkpoint_mark())
            reader.close()
            reader, rounds = split.create_reader(None, coder.decode(kept)), rounds + 1
    reader.close()
    assert len(found) == len(set(found))
    assert sum(name == "impressions" for _, (name, _) in found) >= 30
    assert {partition for partition, _ in found} == {0, 1, 2}
    assert rounds > 6


def test_a_reader_that_is_killed_is_replaced_from_its_mark_and_gives_exactly_the_rest(make: Make) -> None:
    place = make()
    place.fill(30, end=True)
    source = EventSource(place.plan(blob_bytes=1_000))
    (split,) = source.split(1)
    coder = split.get_checkpoint_mark_coder()
    reader = split.create_reader(None, None)
    before = list(drain(reader, most=2))
    kept = coder.encode(reader.get_checkpoint_mark())
    reader.get_checkpoint_mark().finalize_checkpoint()  # commits nothing
    reader.close()
    again = pickle.loads(pickle.dumps(split)).create_reader(None, coder.decode(kept))
    after = list(drain(again))
    again.close()
    assert before
    assert after
    assert sorted(before + after) == ALL
    anew = split.create_reader(None, None)
    assert sorted(drain(anew)) == ALL
    anew.close()


def test_beams_own_tracker_reads_everything_in_bundles_of_one_blob(make: Make) -> None:
    place = make()
    place.fill(30, end=True)
    restriction = _UnboundedSourceRestriction(EventSource(place.plan(blob_bytes=1_000), (0,)))
    found: list[Origin] = []
    watermark = MIN_TIMESTAMP
    bundles = 0

    def has_ended() -> bool:
        nonlocal restriction, watermark, bundles
        tracker = _UnboundedSourceRestrictionTracker(restriction)
        out: list[object] = [None]
        claims: list[bool] = []

        def has_claimed() -> bool:  # what the topics have is fetched meanwhile
            claims.append(tracker.try_claim(out))
            return not claims[-1] or isinstance(out[0], tuple)

        wait_until(has_claimed, "the source gives a blob, or ends")
        if not claims[-1]:
            assert tracker.current_restriction().watermark == MAX_TIMESTAMP
            return True
        assert isinstance(out[0], tuple)
        data, at, watermark_now = out[0]
        assert at >= watermark  # never late
        watermark = max(watermark, watermark_now)
        found.extend(origins(decode_blob(data)))
        split = tracker.try_split(0)
        assert split is not None
        restriction, bundles = split[1], bundles + 1
        tracker._close_reader_if_open()
        return False

    wait_until(has_ended, "the source ends")
    assert sorted(found) == ALL
    assert bundles > 3


def test_an_advance_never_waits_for_a_topic(place: Place) -> None:
    reader = EventSource(place.plan(fetch_wait_s=200.0), (0,)).create_reader(None, None)
    took_s = list[float]()
    for _ in range(100):
        begun_s = time.monotonic()
        assert not reader.advance()
        took_s.append(time.monotonic() - begun_s)
    assert statistics.median(took_s) < 0.02
    assert max(took_s) < 100.0  # a stalled machine may delay some, but less than a wait would
    reader.close()


def test_all_threads_of_readers_are_told_to_end_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place.make(memory_root(), partitions=3)
    pullers, told, close = list[Puller](), list[bool](), Puller.close

    def closing(puller: Puller) -> None:
        told.append(all(one._closing for one in pullers))
        close(puller)

    monkeypatch.setattr(Puller, "close", closing)
    reader: Any = EventSource(place.plan(), (0, 1, 2)).create_reader(None, None)
    pullers += [puller for one in reader._readers for puller in one._pullers]
    reader.close()
    assert told == [True] * 6
    place.close()


def test_a_checkpoint_of_another_topic_stops_with_help(place: Place) -> None:
    place.fill(3)
    split = EventSource(place.plan(), (0,))
    lost = PairMark(Position("another", 0, 1), Position(place.actions.topic_id, 0, 1))
    with pytest.raises(TopicReplaced, match="not another") as caught:
        split.create_reader(None, EventMark((lost,)))
    assert caught.value.help
    delete_topic(place.impressions.url)
    create_topic(place.impressions.url, place.actions.settings()).close()
    with pytest.raises(TopicReplaced):
        split.create_reader(None, None)


def test_times_are_beams() -> None:
    assert timestamp_of(BEFORE_ALL) == MIN_TIMESTAMP
    assert timestamp_of(AFTER_ALL) == MAX_TIMESTAMP
    assert timestamp_of(T_MS) == Timestamp(T_MS / 1000)


def test_the_step_that_reads_has_the_bounds_of_the_settings(place: Place) -> None:
    plan = place.plan()
    settings = msgspec.structs.replace(plan.settings, bundle_blobs_max=7, poll_s=0.5, bundle_s_max=3)
    step = read_events(replace(plan, settings=settings), whole=True)._step
    assert (step._max_records_per_bundle, step._poll_interval, step._max_read_time_seconds) == (7, 0.5, 3)


def test_lots_and_their_events_are_coded_and_not_pickled(place: Place) -> None:
    pipeline = beam.Pipeline(options=runner_options(IngestSettings()))
    cut = pipeline | read_events(place.plan(), whole=True) | beam.ParDo(CutLots(place.plan()))  # type: ignore[no-untyped-call]
    coder = typecoders.registry.get_coder(cut.element_type)
    assert isinstance(coder, coders.TupleCoder)
    assert [type(one) for one in coder.coders()] == [coders.VarIntCoder, coders.BytesCoder]
    assert coder.is_deterministic()


def test_a_worker_never_imports_tensorflow(tmp_path: Path) -> None:
    place = Place.make(f"{tmp_path.as_uri()}/")
    place.fill(3, end=True)
    (tmp_path / "source").write_bytes(pickle.dumps(EventSource(place.plan(), (0,))))
    script = (
        "import pickle, pathlib, pkgutil, sys, importlib, streamlearn.ingest as ingest\n"
        "for module in pkgutil.iter_modules(ingest.__path__, 'streamlearn.ingest.'):\n"
        "    importlib.import_module(module.name)\n"
        "for name in ingest.__all__: getattr(ingest, name)\n"
        f"source = pickle.loads(pathlib.Path({str(tmp_path / 'source')!r}).read_bytes())\n"
        "reader = source.create_reader(None, None)\n"
        "while not reader.advance(): pass\n"
        "reader.close()\n"
        "print(*[name for name in ('tensorflow', 'keras') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == []


def test_what_is_pure_loads_no_beam() -> None:
    script = (
        "import sys; from streamlearn.ingest import begin_run; from streamlearn.ingest.reading.pair import PairReader; "
        "print('apache_beam' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["False"]


def test_an_endless_split_never_says_that_it_has_ended_and_its_time_is_behind_everything(place: Place) -> None:
    place.fill(3, end=True)
    for endless in (False, True):
        reader = EventSource(place.plan(), (0,), endless=endless).create_reader(None, None)
        latest = Timestamp(micros=(MAX_TIMESTAMP.micros - 2 * 86_400 * 10**6)) if endless else MAX_TIMESTAMP

        def is_read(reader: EventReader = reader, latest: Timestamp = latest) -> bool:
            return not reader.advance() and reader.get_watermark() >= latest

        wait_until(is_read, "all is read")
        assert reader.get_watermark() == latest
        reader.close()

"""A backfill of records that are named: its samples are those of their impressions, and of no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import PositionLost, ServiceError, UsageError
from streamlearn.events import Producer
from streamlearn.ingest import HistoryRange, run_backfill
from streamlearn.testing import small_impression
from tests.ingest.history import STEP_MS, T_MS, Outcomes, fill, learned, outcomes, records_of, write_app
from tests.ingest.test_backfill import backfilled, letters
from tools.services import Kafka

REQUESTS = 240
Ranges = dict[int, tuple[int, int]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppFolder:
    folder = write_app(tmp_path_factory.mktemp("offsets") / "app", Path("/nowhere"), lots=3)
    for first in range(0, REQUESTS, 20):  # a pack ends where a Producer is closed
        fill(folder, first, 20, end=first == REQUESTS - 20)
        for name in ("impressions", "actions"):
            with folder.open_topic(name) as topic, topic.writer() as writer:
                writer.append(0, [b"garbage"], timestamps_ms=[T_MS + (first + 20) * STEP_MS])
    return folder


def ends(app: AppFolder) -> dict[int, int]:
    with app.open_topic("impressions") as topic, topic.reader() as reader:
        return {partition: reader.end(partition) for partition in range(topic.partitions)}


def written(offsets: dict[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())


def of_records(app: AppFolder, ranges: Ranges) -> Outcomes:
    """What is to be learned of the impressions of some records."""
    found = {}
    for key, label in outcomes(app).items():
        partition, offset, _ = key[0]
        begin, end = ranges.get(partition, (0, 0))
        if begin <= offset < end:
            found[key] = label
    return found


def test_two_ranges_of_offsets_are_learned_as_the_oracle_says_and_together_are_everything(app: AppFolder) -> None:
    end = ends(app)
    cut = {partition: last // 2 + partition for partition, last in end.items()}
    before: Ranges = {partition: (0, offset) for partition, offset in cut.items()}
    after: Ranges = {partition: (offset, end[partition]) for partition, offset in cut.items()}
    found, letters_found = Outcomes(), []
    for option, ranges in (("--to-offsets", before), ("--from-offsets", after)):
        made, report = backfilled(app, option.strip("-"), option, written(cut), "--set", "ingest.stretch_s=1500")
        assert report.stretches > 1
        assert "impressions_missed" not in report.counts
        part = learned(made)
        assert part == of_records(app, ranges)
        assert len(part) > 100
        assert not part.keys() & found.keys()
        found |= part
        # Of what cannot be used, a backfill of records sets aside those records, and no action.
        assert {one[0] for one in letters(made)} == {"small.impressions"}
        letters_found += letters(made)
    assert found == outcomes(app)
    with app.open_topic("impressions") as topic:
        garbage = [offset for _, offset, value in records_of(topic) if value == b"garbage"]
    assert letters_found == [("small.impressions", 0, offset, -1, "garbage") for offset in garbage]
    assert len(garbage) == REQUESTS // 20


def test_partitions_that_are_not_named_are_left_out(app: AppFolder) -> None:
    made, report = backfilled(app, "one", "--from-offsets", "1:3", "--to-offsets", "1:9")
    assert learned(made) == of_records(app, {1: (3, 9)})
    with app.open_topic("impressions") as topic:
        assert 0 < report.counts["impressions"] < sum(1 for _ in records_of(topic)) * 20
    made, report = backfilled(app, "none", "--to-offsets", "0:0")
    assert (report.stretches, learned(made)) == (0, {})


def test_what_cannot_be_is_refused_with_what_there_is(app: AppFolder) -> None:
    end = ends(app)
    with pytest.raises(PositionLost, match=f"from offset 0 up to {end[0]}; the backfill asks for 0 up to {end[0] + 1}"):
        run_backfill(app, HistoryRange(to_offsets={0: end[0] + 1}), runner="direct")
    with pytest.raises(UsageError, match="no partition 2: it has 2"):
        run_backfill(app, HistoryRange(from_offsets={2: 0}), runner="direct")
    with pytest.raises(UsageError, match="either event times or offsets"):
        HistoryRange(begin_ms=1, to_offsets={0: 1})
    with pytest.raises(UsageError, match="partition 1 from offset 7 to 7"):
        HistoryRange(from_offsets={1: 7}, to_offsets={1: 7})
    for text in ("0", "0:", "0:x", "0:1,,1:2", "-1:3", "0:1,0:2"):
        with pytest.raises(UsageError, match=r"invalid partition and offset|has two offsets") as caught:
            HistoryRange.of(from_offsets=text)
        assert "PARTITION:OFFSET" in caught.value.help


def test_a_runner_that_cannot_do_it_is_refused_at_once(app: AppFolder) -> None:
    for runner, error, help in (("spark", UsageError, "prism"), ("flink", UsageError, "ingest.job_endpoint")):
        with pytest.raises(error) as caught:
            run_backfill(app, runner=runner)
        assert help in caught.value.help
    with pytest.raises(ServiceError, match="cannot reach a job server"):
        run_backfill(load_app(app.folder, ["ingest.job_endpoint=127.0.0.1:1"]), runner="flink")


def test_the_verb_makes_samples_of_a_brokers_records_on_prism(
    prism: Path, kafka: Kafka, topic_name: str, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", prism, lots=3, prefix=f"kafka://{kafka.address}/{topic_name}-")
    for first in range(0, 120, 20):
        fill(app, first, 20, end=first == 100)
    end = ends(app)
    ranges = {0: (2, end[0] - 3), 1: (1, end[1])}
    begin = written({partition: one[0] for partition, one in ranges.items()})
    call = [sys.executable, "-m", "streamlearn", "backfill", str(app.folder), "--json"]
    words = ["--from-offsets", begin, "--to-offsets", f"0:{ranges[0][1]}"]
    done = subprocess.run([*call, *words], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    expected = of_records(app, ranges)
    assert learned(app) == expected
    assert len(expected) > 50
    assert report["counts"]["rows"] > 0
    assert report["stretches"] == 1


def test_impressions_that_came_far_too_late_are_counted_as_missed_and_found_when_told_how_late(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reading ends at the first late record: this history is shorter than the number that ends it otherwise.
    for limit in ("_RECORDS_MAX", "_LATE_RECORDS"):
        monkeypatch.setattr(f"streamlearn.ingest.backfill.stretch_reader.{limit}", 1)
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=3)
    fill(app, 0, 320)
    # The first stretch is a thousand seconds long, windows an hour, and the newest event is later than that.
    far_ms, near_ms = (100_000, 400_000, 900_000), (4_100_000, 6_000_000)
    first = ends(app)
    come(app, 9_000, far_ms)
    between = ends(app)
    come(app, 9_100, near_ms)
    fill(app, 320, 20, end=True)
    end, expected = ends(app), outcomes(app)
    far = of_records(app, {partition: (offset, between[partition]) for partition, offset in first.items()})
    assert len(far) >= 2 * len(far_ms)
    made, report = backfilled(app, "parts", "--to-offsets", written(end), "--set", "ingest.stretch_s=1500")
    assert learned(made) == {key: label for key, label in expected.items() if key not in far}
    assert report.counts["impressions_missed"] == len(far_ms)
    assert f"{len(far_ms)} impressions were out of order by more than the longest" in capsys.readouterr().err
    # They are found where reading goes on for as long as they were late.
    words = ("--from-offsets", written(first), "--to-offsets", written(between), "--set")
    for name, setting in (("alone", "ingest.stretch_s=10000000"), ("longer", "ingest.out_of_orderness_s=7200")):
        made, report = backfilled(app, name, *words, setting)
        assert learned(made) == (far if name == "longer" else {})
        assert report.counts.get("impressions_missed", 0) == (0 if name == "longer" else len(far_ms))
    changes = ("--set", "ingest.stretch_s=1500", "--set", "ingest.out_of_orderness_s=7200")
    made, report = backfilled(app, "all", "--to-offsets", written(end), *changes)
    assert learned(made) == expected
    assert "impressions_missed" not in report.counts


def come(app: AppFolder, seed: int, after_ms: Sequence[int]) -> None:
    """Impressions of some times come now, each clicked at once."""
    with Producer(app) as producer:
        for number, time_ms in enumerate(after_ms):
            given = small_impression(seed + number) | {"event_time_ms": T_MS + time_ms}
            producer.impression(**given)
            producer.action(given["request_id"], given["event_time_ms"], given["items"][0]["video_id"], "click")

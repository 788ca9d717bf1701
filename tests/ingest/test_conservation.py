"""No label is lost on the way: every action is a learned positive, or late, or an orphan, or refused by name."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.events import Producer
from streamlearn.ingest import JoinCore, JoinPlan, run_backfill
from streamlearn.ingest.backfill.stretch import stretch_of
from streamlearn.ingest.backfill.stretch_reader import read_stretch
from streamlearn.ingest.beam.cut_lots import cutter_of
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.ingest.join.time_order import in_time_order, joined_columns
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.ingest.reading.start import plan_backfill, start_ms
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.schemas import DEAD_LETTER
from streamlearn.schemas.schema import PREFIX_BYTES
from streamlearn.testing import small_impression
from streamlearn.topics import TopicSettings, create_topic, delete_topic
from streamlearn.trainer.intake.feed import Feed, Until, beginning_of
from streamlearn.trainer.intake.step_cutter import StepCutter
from streamlearn.trainer.shared_marks import SharedMarks
from tests.ingest.history import T_MS, outcomes, records_of, write_app

WINDOW_MS, LONGEST_MS = 600_000, 3_600_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class Click(NamedTuple):
    """One click, on an item nobody else clicks."""

    time_ms: int
    request: str
    item: int


class Lots(NamedTuple):
    """All events, as one lot."""

    lineage: Lineage
    impressions: ImpressionColumns
    actions: ActionColumns


class Account(NamedTuple):
    """What became of clicks."""

    clicks: int
    learned: int
    letters: Counter[str]
    refused: int


def log_of(
    requests: int, step_ms: int, late_share: float, late_ms_max: int
) -> tuple[list[dict[str, Any]], list[Click]]:
    """Requests at a steady pace, and a click on most; some late, and a few on requests that nobody was shown."""
    rng = np.random.default_rng(5)
    shown, clicks = [], []
    for number in range(requests):
        given = small_impression(number) | {"event_time_ms": T_MS + number * step_ms}
        shown.append(given)
        if rng.random() < 0.9:
            is_late = rng.random() < late_share
            after_ms = int(rng.integers(WINDOW_MS + 1, late_ms_max) if is_late else rng.integers(0, WINDOW_MS))
            request = given["request_id"] if rng.random() < 0.97 else f"nobody-{number}"
            clicks.append(Click(T_MS + number * step_ms + after_ms, str(request), given["items"][0]["video_id"]))
    return shown, sorted(clicks)


def write_log(app: AppFolder, shown: Sequence[dict[str, Any]], clicks: Sequence[Click]) -> None:
    """Write events in the order of their times, and the end."""
    with Producer(app) as producer:
        left = list(clicks)
        for given in shown:
            while left and left[0].time_ms < given["event_time_ms"]:
                click(producer, left.pop(0))
            producer.impression(**given)
        for one in left:
            click(producer, one)
        producer.end(max(clicks[-1].time_ms, shown[-1]["event_time_ms"]) + 1)


def click(producer: Producer, one: Click) -> None:
    producer.action(one.request, one.time_ms, one.item, "click")


def account_of(app: AppFolder, clicks: Sequence[Click]) -> Account:
    """What a trainer learns of the samples there are, and what the dead letters say of the rest."""
    learned, refused = learn(app)
    assert (refused, learned) == (0, outcomes(app))
    with app.open_topic("dead_letters") as topic:
        letters = [DEAD_LETTER.read(value[PREFIX_BYTES:]) for *_, value in records_of(topic)]
    assert len({(one["topic"], one["partition"], one["offset"], one["event_index"]) for one in letters}) == len(letters)
    return Account(len(clicks), sum(learned.values()), Counter(one["reason"] for one in letters), refused)


def conserves(app: AppFolder, clicks: Sequence[Click]) -> Account:
    """Hold that every click was learned or is named, and that no row was refused."""
    found = account_of(app, clicks)
    assert found.refused == 0
    assert set(found.letters) == {"late", "orphan"}
    assert found.learned + found.letters["late"] + found.letters["orphan"] == found.clicks
    return found


def ingest(app: AppFolder, changes: Sequence[str]) -> None:
    """Run ingest to the end of its topics."""
    call = [sys.executable, "-m", "streamlearn", "ingest", str(app.folder)]
    sets = [part for change in changes for part in ("--set", change)]
    done = subprocess.run([*call, *sets], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def learn(app: AppFolder) -> tuple[dict[tuple[tuple[int, int, int], int], int], int]:
    """The final label of all that a trainer learns, and how many rows it refused for their age."""
    horizon_ms = LONGEST_MS + round(app.settings.trainer.restart_slack_s * 1e3)
    remembered = SharedMarks(len(app.app.labels), app.settings.marks)
    stepping = StepCutter(remembered, app.settings.trainer.step_rows, (), horizon_ms)
    found: dict[tuple[tuple[int, int, int], int], int] = {}
    with app.open_topic("samples") as topic:
        with topic.reader() as reader:
            ends = {at: reader.end(at) for at in range(topic.partitions)}
        feed = Feed(app, topic, beginning_of(topic), stepping, until=Until(ends), keep_aside=unreadable)
        with closing(feed):
            for step in filter(None, feed.steps()):
                for piece in step.pieces:
                    requests = piece.batch.requests
                    for row, learns, corrects in zip(piece.rows, piece.learn, piece.correct, strict=True):
                        at = piece.batch.request_index[row]
                        origin = int(requests.partition[at]), int(requests.offset[at])
                        identity = (*origin, int(piece.batch.item_index[row]))
                        for bit, label in enumerate(piece.batch.labels):
                            if int(learns) >> bit & 1:
                                assert (identity, bit) not in found
                                found[identity, bit] = int(label.value[row])
                            if int(corrects) >> bit & 1:
                                assert found[identity, bit] == 0
                                found[identity, bit] = 1
                remembered.acknowledge(step.number)
                if step.reached.watermark_ms is not None:
                    remembered.forget(step.reached.watermark_ms - horizon_ms)
    return found, stepping.counts.old


def lots_of(app: AppFolder) -> Lots:
    """The events of an application of one lot, read and cut."""
    plan = plan_backfill(app)
    join_plan = JoinPlan.of(app.app, plan.lineage.events_topic_id, app.settings.join)
    stretch = stretch_of(join_plan, 0, T_MS + 100 * DAY_MS)
    cutter, _ = cutter_of(app, plan)
    parts = [events for blob in read_stretch(plan, stretch, 0) for events in cutter.cut(blob).lots]
    impressions, actions = (
        joined_columns([getattr(one, kind) for one in parts]) for kind in ("impressions", "actions")
    )
    return Lots(plan.lineage, impressions, actions)


def unreadable(name: str, value: bytes) -> None:
    pytest.fail(f"{name} of {len(value)} bytes cannot be read")


def anew(app: AppFolder, samples: int, *changes: str) -> tuple[AppFolder, tuple[str, ...]]:
    """The application with other settings and no samples yet, and what `--set` says of that."""
    changed = load_app(app.folder, changes)
    for topic, partitions in (("samples", samples), ("dead_letters", 1), ("progress", 1)):
        delete_topic(changed.topic_url(topic))
        create_topic(changed.topic_url(topic), changed.topic_settings(topic, partitions)).close()
    return changed, changes


@pytest.fixture(scope="module")
def late_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[AppFolder, list[Click]]:
    """A day of requests, of whose clicks a third is late by up to five hours."""
    app = write_app(tmp_path_factory.mktemp("late") / "app", Path("/nowhere"), lots=2)
    shown, clicks = log_of(720, 120_000, 0.35, 5 * HOUR_MS)
    write_log(app, shown, clicks)
    return app, clicks


@pytest.mark.parametrize(
    ("stretch_s", "rows_max", "samples", "order"),
    [
        (10_000_000, 20_000, 2, "arrival"),
        (10_000_000, 40, 2, "arrival"),
        (10_000_000, 40, 2, "strict"),
        (20_000, 25, 1, "strict"),
        # More partitions than lots: some of a lot have nothing but words of how far it is.
        (20_000, 40, 5, "arrival"),
        (10_000, 10, 3, "arrival"),
    ],
)
def test_a_backfill_of_any_cut_loses_no_label(
    late_log: tuple[AppFolder, list[Click]], stretch_s: int, rows_max: int, samples: int, order: str
) -> None:
    app, clicks = late_log
    sizes = (f"ingest.stretch_s={stretch_s}", f"samples.message_rows_max={rows_max}", f"trainer.order={order}")
    changed, changes = anew(app, samples, *sizes)
    counts = run_backfill(changed, changes=changes, runner="direct").counts
    found = conserves(changed, clicks)
    named = (counts["actions"], counts["positives"], counts["actions_late"], counts["actions_orphan"])
    assert named == (found.clicks, found.learned, found.letters["late"], found.letters["orphan"])
    if stretch_s == 10_000_000:  # a join that has seen every impression takes no late click for an orphan
        assert found.letters["orphan"] == sum(one.request.startswith("nobody") for one in clicks)


@pytest.fixture(scope="module")
def sparse_log(tmp_path_factory: pytest.TempPathFactory, prism: Path) -> tuple[AppFolder, list[Click]]:
    """Five hundred events of a month, in records that hold events of days."""
    app = write_app(tmp_path_factory.mktemp("sparse") / "app", prism, lots=2, partitions=1)
    shown, clicks = log_of(260, 10_000_000, 0.35, 5 * HOUR_MS)
    assert 480 < len(shown) + len(clicks) < 520
    write_log(load_app(app.folder, PACKED), shown, clicks)
    return app, clicks


PACKED = ("events.record_events_max=40", "events.linger_ms=60000")


@pytest.mark.parametrize("stretch_s", [10_000_000, 500_000])
def test_a_backfill_of_a_sparse_month_loses_no_label(sparse_log: tuple[AppFolder, list[Click]], stretch_s: int) -> None:
    app, clicks = sparse_log
    changed, changes = anew(app, 2, f"ingest.stretch_s={stretch_s}")
    run_backfill(changed, changes=changes, runner="direct")
    conserves(changed, clicks)


def test_ingest_of_a_sparse_month_loses_no_label(sparse_log: tuple[AppFolder, list[Click]]) -> None:
    app, clicks = sparse_log
    changed, changes = anew(app, 2)
    ingest(changed, changes)
    conserves(changed, clicks)


def test_an_ingest_that_catches_up_loses_no_label(late_log: tuple[AppFolder, list[Click]], prism: Path) -> None:
    app, clicks = late_log
    changed, changes = anew(app, 5, "samples.message_rows_max=40", f"ingest.prism_location={prism}")
    ingest(changed, changes)
    conserves(changed, clicks)


class Flush(NamedTuple):
    """The messages of one look, and the watermark that is progress once all of them are written."""

    batches: list[SampleBatch]
    watermark_ms: int


def flushes(app: AppFolder, given: Lots, step_events: int, from_ms: int | None = None) -> Iterator[Flush]:
    """What a run makes of one lot's events, from where it begins."""
    plan = JoinPlan.of(app.app, given.lineage.events_topic_id, app.settings.join, from_ms)
    core, maker = JoinCore(plan), SampleMaker(app, given.lineage, 1)
    with closing(maker):
        for shown, done, until_ms in in_time_order(given.impressions, given.actions, step_events):
            core.add_impressions(shown)
            core.add_actions(done)
            core.advance(until_ms)
            batches: list[SampleBatch] = []
            while core.ready:
                batches += maker.make(0, core.take(50), until_ms)
            yield Flush(batches, until_ms)
        core.advance(T_MS + 100 * DAY_MS)
        batches = []
        while core.ready:
            batches += maker.make(0, core.take(50), T_MS + 10 * DAY_MS)
        yield Flush(batches, T_MS + 10 * DAY_MS)


@pytest.mark.parametrize("order", ["arrival", "strict"])
def test_an_ingest_that_ends_between_two_messages_of_a_flush_loses_no_label(tmp_path: Path, order: str) -> None:
    app = write_app(tmp_path / "app", Path("/nowhere"), lots=1, partitions=1, samples=1)
    shown, clicks = log_of(160, 120_000, 0.0, HOUR_MS)
    write_log(app, shown, clicks)
    sizes = ("samples.message_rows_max=30", f"trainer.order={order}", "trainer.restart_slack_s=600")
    app, _ = anew(app, 1, *sizes)
    given, expected = lots_of(app), outcomes(app)
    first = list(flushes(app, given, 140))
    codec = SampleCodec(app.app, app.settings.samples)
    assert max(len(flush.batches) for flush in first) > 4
    acknowledged_ms: int | None = None
    written: list[SampleBatch] = []
    for flush in first:
        for batch in flush.batches:
            written.append(batch)
            # It ends here; the next run begins at T0, and takes other looks.
            reached = {} if acknowledged_ms is None else {0: acknowledged_ms}
            from_ms = start_ms(reached, 1, LONGEST_MS, 0)
            rest = [one for after in flushes(app, given, 90, from_ms) for one in after.batches]
            delete_topic(app.topic_url("samples"))
            with create_topic(app.topic_url("samples"), TopicSettings()) as topic, topic.writer() as writer:
                writer.append(0, [codec.encode(one) for one in [*written, *rest]])
            # Rows that were learned and come again from T0 on may be refused for their age; no others are.
            learned, _ = learn(app)
            assert learned == expected
        acknowledged_ms = flush.watermark_ms

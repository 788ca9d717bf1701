"""The join of impressions and actions on one core, the samples of its rows, and the trainer's marks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.result import Result
from streamlearn.apps import AppFolder
from streamlearn.events import EventDecoder
from streamlearn.events.encoder import EventEncoder
from streamlearn.features import Label, LabelGroup, keys_of
from streamlearn.ingest import JoinCore, JoinPlan
from streamlearn.ingest.join.columns import ActionColumns, ImpressionColumns
from streamlearn.ingest.output.progress import Lineage
from streamlearn.ingest.output.sample_maker import SampleMaker
from streamlearn.marks import MarkedRows, Marks
from streamlearn.settings.join import JoinSettings, MarksSettings
from streamlearn.testing import small_folder, small_impression

__all__ = ["measure_join", "run"]

Note = Callable[[str], None]

WINDOW_S, WAIT_S = 600, 60
PAYLOAD_BYTES, ID_BYTES = 260, 20
BATCH_IMPRESSIONS, BATCH_ACTIONS = 950, 50
HEX = np.frombuffer(b"".join(b"%02x" % number for number in range(256)), np.uint16)


def run(quick: bool, note: Note) -> Result:
    """Measure a join with few and with many pending impressions, samples, and marks."""
    result = Result("join")
    few, many = 100_000, 1_000_000 if quick else 10_000_000
    costs = {}
    for pending in (few, many):
        note(f"join, {pending:,} pending")
        costs[pending] = measure_join(pending, 400_000 if quick else 2_000_000, result.figures)
    result.figures["joincore_events_per_s_core"] = 1 / costs[many]
    result.figures["joincore_events_per_s_core_few"] = 1 / costs[few]
    result.figures["joincore_cost_growth"] = costs[many] / costs[few]
    result.figures["joincore_pending"] = many
    note("samples")
    for items in (1, 10):
        _samples(items, 20 if quick else 200, result.figures)
    note("marks")
    _marks(200 if quick else 2_000, result.figures)
    return result


def _ids(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return request ids of 20 characters, 16 of them different."""
    mixed = numbers * np.uint64(0x9E37_79B9_7F4A_7C15)
    ids = np.full((len(numbers), ID_BYTES), ord("r"), np.uint8)
    ids[:, 4:] = HEX[mixed.view(np.uint8)].view(np.uint8).reshape(len(numbers), 16)
    return ids.ravel()


class _Traffic:
    """Batches of events with times that keep `pending` impressions pending."""

    def __init__(self, pending: int) -> None:
        self._ms_each = 1_000 * WINDOW_S / pending
        self._pending = pending
        self._rng = np.random.default_rng(1)
        self._payload = self._rng.integers(0, 256, BATCH_IMPRESSIONS * PAYLOAD_BYTES, np.uint8)
        self._at = np.arange(BATCH_IMPRESSIONS + 1, dtype=np.int64)
        self._next = 0

    def batch(self) -> tuple[ImpressionColumns, ActionColumns, int]:
        """Return the next batch, and the watermark after it."""
        numbers = np.arange(self._next, self._next + BATCH_IMPRESSIONS, dtype=np.uint64)
        self._next += BATCH_IMPRESSIONS
        now_ms = int(self._next * self._ms_each)
        partition = np.zeros(BATCH_IMPRESSIONS, np.int32)
        at = self._at
        impressions = ImpressionColumns(
            _ids(numbers), at * ID_BYTES, (numbers * self._ms_each).astype(np.int64), partition,
            numbers.astype(np.int64), partition, numbers, at, self._payload, at * PAYLOAD_BYTES,
        )  # fmt: skip
        back = self._rng.integers(0, max(1, min(self._next, self._pending) - 1), BATCH_ACTIONS)
        acted = np.uint64(self._next - 1) - back.astype(np.uint64)
        zeros = np.zeros(BATCH_ACTIONS, np.int32)
        actions = ActionColumns(
            _ids(acted), at[: BATCH_ACTIONS + 1] * ID_BYTES, np.full(BATCH_ACTIONS, now_ms, np.int64), zeros,
            acted.astype(np.int64), zeros, acted, np.zeros(BATCH_ACTIONS, np.uint8), np.ones(BATCH_ACTIONS, np.float32),
            np.full(BATCH_ACTIONS, np.nan, np.float32),
        )  # fmt: skip
        return impressions, actions, now_ms


def measure_join(pending: int, events: int, figures: dict[str, float]) -> float:
    """Return the CPU seconds of an event while `pending` impressions are pending: add, join, take, expire."""
    plan = JoinPlan(
        (LabelGroup("fast", WAIT_S, WINDOW_S),), (Label("click", "click", "fast"),), "topic",
        JoinSettings(pending_bytes_max=16 << 30),
    )  # fmt: skip
    core, traffic = JoinCore(plan), _Traffic(pending)

    def step() -> float:
        impressions, actions, watermark_ms = traffic.batch()
        begin = time.process_time()
        core.add_impressions(impressions)
        core.add_actions(actions)
        core.advance(watermark_ms)
        core.take(10_000)
        return time.process_time() - begin

    # Fill 1.2 windows, so that impressions expire as fast as they arrive.
    for _ in range(int(1.2 * pending / BATCH_IMPRESSIONS)):
        step()
    steps = events // (BATCH_IMPRESSIONS + BATCH_ACTIONS)
    cost = sum(step() for _ in range(steps)) / (steps * (BATCH_IMPRESSIONS + BATCH_ACTIONS))
    figures["bytes_per_pending_impression"] = core.bytes / core.pending
    return cost


def _marks(batches: int, figures: dict[str, float]) -> None:
    """Measure batches of 1,000 rows, of records with 8 items and 3 labels. Every fifth batch is a repeat."""
    marks, rows, items = Marks(3, MarksSettings()), 1_000, 8
    index = np.repeat(np.arange(rows // items, dtype=np.int32), items)
    item = np.tile(np.arange(items, dtype=np.int32), rows // items)
    partition = np.zeros(rows // items, np.int32)
    settles, labels = np.full(rows, 7, np.uint32), np.zeros(rows, np.uint32)
    taken = 0.0
    for number in range(batches):
        first = (number - number // 5) * (rows // items)
        offset = np.arange(first, first + rows // items, dtype=np.int64)
        batch = MarkedRows("topic", partition, offset, offset, index, item, settles, labels)
        begin = time.process_time()
        marks.settle(number, batch)
        marks.acknowledge(number)
        taken += time.process_time() - begin
    figures["marks_rows_per_s_core"] = batches * rows / taken
    figures["marks_bytes_per_identity"] = marks.bytes / (marks.counters["learn"] / 3)
    figures["marks_save_bytes_per_identity"] = sum(map(len, marks.save().entries.values())) / (
        marks.counters["learn"] / 3
    )


def _samples(items: int, takes: int, figures: dict[str, float]) -> None:
    """Measure the samples of the small application, about 2,000 rows at a time, as the join returns them."""
    folder = small_folder(Path())
    app, shown = folder.app, 4_000 // items
    lineage = Lineage(16, app.window_settings, app.samples_fingerprint, "events", "actions")
    core, impressions = JoinCore(JoinPlan.of(app, "events", folder.settings.join)), _impressions(folder, shown, items)
    core.add_impressions(impressions)
    # Advance until the group with the shortest wait is due; it samples half of its negatives.
    core.advance(int(impressions.event_time_ms[-1]) + 1_000 * app.groups[0].wait_s + 1)
    taken, maker = core.take(1_000_000), SampleMaker(folder, lineage, 1)
    begin = time.process_time()
    for _ in range(takes):
        maker.make(0, taken, 0)
    figures[f"samples_rows_per_s_core_{items}_items"] = takes * len(taken.rows) / (time.process_time() - begin)


def _impressions(folder: AppFolder, shown: int, items: int) -> ImpressionColumns:
    encoder = EventEncoder(folder.app, folder.settings.events)
    events = [encoder.impression(small_impression(seed, items) | {"shown_wall_ms": 0}) for seed in range(shown)]
    columns = EventDecoder.of(folder).decode(events).impressions.columns
    zeros = np.zeros(shown, np.int32)
    return ImpressionColumns(
        columns["request_id"], columns["request_id$"].astype(np.int64), columns["event_time_ms"], zeros,
        np.arange(shown), zeros, keys_of(folder.app.features.slot("video_id"), columns["items.video_id"]),
        columns["items[]"].astype(np.int64), np.frombuffer(b"".join(events), np.uint8),
        np.cumsum([0, *map(len, events)]),
    )  # fmt: skip

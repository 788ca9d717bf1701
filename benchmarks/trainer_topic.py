"""The trainer's samples as ingest writes them: an application, and a topic of encoded messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keys import DIM, every_bit
from benchmarks.trainer_samples import DENSE_COLUMNS, ITEM_SLOTS, STEP_SAMPLES, USER_SLOTS, StepSamples
from streamlearn.apps import App, AppFolder
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Slot
from streamlearn.samples import (
    FeatureColumns,
    LabelColumns,
    RequestColumns,
    SampleBatch,
    SampleCodec,
    SampleHeader,
    SlotColumns,
)
from streamlearn.settings import Settings
from streamlearn.settings.tables import TableSettings
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.topics import TopicSettings, create_topic

__all__ = ["MESSAGE_ROWS", "STALENESS_STEPS", "batches", "samples_folder", "write_samples"]

MESSAGE_ROWS = 1_000  # plus the remaining rows of the last request
STALENESS_STEPS = 2
_WAIT_S, _WINDOW_S = 10, 60
_T_MS = 1_700_000_000_000
_ROWS_SPARE = 20_000_000  # reserves only address space
_STEP_WAIT_S = 3_600.0  # on a slow machine steps are complete too


def samples_folder(folder: Path, keys_count: int) -> AppFolder:
    """Return the application, with settings that equal the constants of the peers.

    Args:
        folder: The folder of its topic and store.
        keys_count: Number of keys that its table must hold.
    """
    features = FeatureSpec(
        slots=(
            *(Slot(f"user_{slot}", "user", dim=DIM) for slot in range(USER_SLOTS)),
            Slot("history", "user", dim=DIM, multi=True, pooling="mean"),
            *(Slot(f"item_{slot}", "item", dim=DIM) for slot in range(ITEM_SLOTS)),
        ),
        dense=(Dense("numbers", "item", width=DENSE_COLUMNS),),
        item_id="item_0",
    )
    groups = (LabelGroup("fast", wait_s=_WAIT_S, window_s=_WINDOW_S),)
    app = App("bench_trainer", features, groups, (Label("click", "click", "fast"),), model="deepfm")
    settings = Settings(
        tables=TableSettings(rows_max=keys_count + _ROWS_SPARE),
        trainer=TrainerSettings(
            step_rows=STEP_SAMPLES,
            step_wait_s=_STEP_WAIT_S,
            staleness_steps=STALENESS_STEPS,
            rate=0.001,
            row_gradients="mean",  # as for the peers
            xla="on",  # peers use it if it is faster
        ),
    )
    return AppFolder(app, folder, settings)


def write_samples(folder: AppFolder, steps: Sequence[StepSamples]) -> None:
    """Create the application's samples topic with one partition, and write all steps to it."""
    codec = SampleCodec(folder.app, folder.settings.samples)
    topic_settings = TopicSettings(partitions=1)
    with create_topic(folder.topic_url("samples"), topic_settings, folder.access) as topic, topic.writer() as writer:
        for batch in batches(folder.app, steps):
            writer.send(0, codec.encode(batch))
        writer.flush()


def batches(app: App, steps: Sequence[StepSamples], message_rows: int = MESSAGE_ROWS) -> Iterator[SampleBatch]:
    """Yield messages of whole requests with the rows of all steps; messages do not end where steps end.

    There is a request every millisecond. The watermark of a message is the due time of its last request.
    """
    begins = np.cumsum([0, *(step.requests for step in steps)])
    requests = np.concatenate([step.request_index + begin for step, begin in zip(steps, begins, strict=False)])
    lengths = np.concatenate([np.bincount(step.history_request, minlength=step.requests) for step in steps])
    users = every_bit(np.concatenate([step.user_ids for step in steps]))
    history = every_bit(np.concatenate([step.history_ids for step in steps]))
    items = every_bit(np.concatenate([step.item_ids for step in steps]))
    dense, label = (np.concatenate([getattr(step, name) for step in steps]) for name in ("dense", "label"))
    history_at = np.concatenate(([0], np.cumsum(lengths)))
    for rows in _cuts(requests, message_rows):
        first, last = int(requests[rows.start]), int(requests[rows.stop - 1]) + 1
        offsets = (history_at[first : last + 1] - history_at[first]).astype(np.int32)
        several = SlotColumns(history[history_at[first] : history_at[last]], offsets)
        shown_ms = _T_MS + np.arange(first, last)
        index = (requests[rows] - first).astype(np.int32)
        yield SampleBatch(
            header=_header(app, int(shown_ms[-1])),
            requests=_requests(first, shown_ms),
            user=FeatureColumns(_slots("user", users[first:last]) | {"history": several}, {}),
            request_index=index,
            item_index=np.arange(len(index), dtype=np.int32) - np.searchsorted(index, index).astype(np.int32),
            settle_time_ms=shown_ms[index] + 1_000 * _WAIT_S,
            item=FeatureColumns(_slots("item", items[rows]), {"numbers": dense[rows]}),
            labels=(_label(label[rows]),),
            segments=(),
        )


def _cuts(requests: NDArray[Any], message_rows: int) -> Iterator[slice]:
    """Yield the rows of each message: `message_rows`, and the remaining rows of their last request."""
    begin = 0
    while begin < len(requests):
        last = requests[min(begin + message_rows, len(requests)) - 1]
        end = int(np.searchsorted(requests, last, side="right"))
        yield slice(begin, end)
        begin = end


def _slots(side: str, keys: NDArray[np.uint64]) -> dict[str, SlotColumns]:
    return {f"{side}_{slot}": SlotColumns(np.ascontiguousarray(column)) for slot, column in enumerate(keys.T)}


def _header(app: App, shown_ms: int) -> SampleHeader:
    watermark_ms = shown_ms + 1_000 * _WAIT_S
    return SampleHeader(app.samples_fingerprint, app.window_settings, "bench", 0, 1, 1, watermark_ms)


def _requests(first: int, shown_ms: NDArray[np.int64]) -> RequestColumns:
    count = len(shown_ms)
    return RequestColumns(
        partition=np.zeros(count, np.int32),
        offset=first + np.arange(count, dtype=np.int64),
        event_time_ms=shown_ms,
        shown_wall_ms=shown_ms,
        served_version=np.full(count, -1, np.int64),
    )


def _label(positive: NDArray[np.float32]) -> LabelColumns:
    rows = len(positive)
    return LabelColumns(
        "click",
        value=positive.astype(np.uint8),
        settles=np.ones(rows, np.uint8),
        sample_rate=np.ones(rows, np.float32),
        weight=np.ones(rows, np.float32),
        served_score=np.full(rows, np.nan, np.float32),
    )

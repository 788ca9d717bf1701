"""Our side of the trainer's benchmark: the topic holds the peers' samples, and steps are theirs, each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.keys import every_bit
from benchmarks.ours.streamlearn_trainer import StreamLearner
from benchmarks.peers.answer import Wrong
from benchmarks.trainer_samples import STEP_SAMPLES, Workload
from benchmarks.trainer_topic import MESSAGE_ROWS, batches, samples_folder, write_samples
from streamlearn.samples import SampleBatch, SampleCodec

__all__: list[str] = []

_KEYS = 20_000
_WORKLOAD = Workload(_KEYS, 3)
_STEPS = _WORKLOAD.steps(3)


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[SampleBatch]:
    """What a reader of the topic gets."""
    folder = samples_folder(tmp_path_factory.mktemp("bench"), _KEYS)
    write_samples(folder, _STEPS)
    codec = SampleCodec(folder.app, folder.settings.samples)
    with folder.open_topic("samples") as topic, topic.reader() as reader:
        found: list[SampleBatch] = []
        offsets = {0: reader.earliest(0)}
        while offsets[0] < reader.end(0):
            for records in reader.read_many(offsets, max_records=1_000, max_bytes=1 << 30, wait_ms=0):
                offsets[0] = records.next_offset
                found += [codec.decode(value) for value in records.values if value is not None]
        return found


def test_messages_hold_the_peers_rows_in_their_order(messages: list[SampleBatch]) -> None:
    for slot in range(_STEPS[0].item_ids.shape[1]):
        found = np.concatenate([one.item.slots[f"item_{slot}"].keys for one in messages])
        assert np.array_equal(found, every_bit(np.concatenate([step.item_ids[:, slot] for step in _STEPS])))
    for slot in range(_STEPS[0].user_ids.shape[1]):
        found = np.concatenate([one.user.slots[f"user_{slot}"].keys for one in messages])
        assert np.array_equal(found, every_bit(np.concatenate([step.user_ids[:, slot] for step in _STEPS])))
    found = np.concatenate([one.user.slots["history"].keys for one in messages])
    assert np.array_equal(found, every_bit(np.concatenate([step.history_ids for step in _STEPS])))
    dense = np.concatenate([one.item.dense["numbers"] for one in messages])
    assert np.array_equal(dense, np.concatenate([step.dense for step in _STEPS]))
    label = np.concatenate([one.labels[0].value for one in messages])
    assert np.array_equal(label, np.concatenate([step.label for step in _STEPS]))


def test_histories_and_rows_are_of_their_own_request(messages: list[SampleBatch]) -> None:
    offsets = [one.user.slots["history"].offsets for one in messages]
    lengths = np.concatenate([np.diff(one) for one in offsets if one is not None])
    assert np.array_equal(lengths, np.concatenate([np.bincount(step.history_request) for step in _STEPS]))
    items = np.concatenate([np.bincount(one.request_index) for one in messages])
    assert np.array_equal(items, np.concatenate([np.bincount(step.request_index) for step in _STEPS]))


def test_messages_are_whole_requests_of_about_so_many_rows_and_time_goes_on(messages: list[SampleBatch]) -> None:
    assert all(MESSAGE_ROWS <= len(one) < MESSAGE_ROWS + 15 for one in messages[:-1])
    assert len({int(offset) for one in messages for offset in one.requests.offset}) == sum(
        step.requests for step in _STEPS
    )
    marks = [one.header.watermark_ms for one in messages]
    assert marks == sorted(set(marks))
    assert all((one.settle_time_ms <= one.header.watermark_ms).all() for one in messages)


def test_batches_do_not_hang_on_where_steps_end() -> None:
    app = samples_folder(Path("nowhere"), _KEYS).app
    sizes = [len(one) for one in batches(app, _STEPS)]
    assert sum(sizes) == len(_STEPS) * STEP_SAMPLES
    assert not any(end % STEP_SAMPLES == 0 for end in np.cumsum(sizes)[:-1])


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[StreamLearner]:
    with ExitStack() as ends:
        yield StreamLearner(tmp_path, _KEYS, ends)


def test_steps_are_the_peers_every_key_they_met_is_stored_and_one_that_is_not_whole_is_told(
    learner: StreamLearner,
) -> None:
    losses, fed = [], learner.feed([*_STEPS, *_WORKLOAD.steps(1)])
    for number, done in enumerate(islice(fed, len(_STEPS))):
        losses.append(learner.step(done))
        positive = done.columns.positive != 0
        assert np.array_equal(positive, _STEPS[number].label != 0)
    met = [ids.ravel() for step in _STEPS for ids in (step.user_ids, step.history_ids, step.item_ids)]
    assert learner.count() == len(np.unique(np.concatenate(met)))
    assert len(losses) == len(_STEPS)
    assert 0.3 < losses[-1] < losses[0] < 0.9
    done = next(fed)
    object.__setattr__(done.step, "pieces", done.step.pieces[:1])
    with pytest.raises(Wrong, match=r"step 4 had \d\d\d rows"):
        learner.step(done)


def test_keys_that_are_inserted_are_there_before_any_step(learner: StreamLearner) -> None:
    learner.insert(_WORKLOAD.ids(0, 1_000))
    assert learner.count() == 1_000

"""Chaos test: a short run with a seed, and the violations that broken invariants report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from streamlearn.errors import ServiceError
from streamlearn.samples import SampleBatch, SampleCodec
from streamlearn.serving.infer import InferAnswer, numbers_tensor
from streamlearn.testing import small_app, small_batch
from streamlearn.topics import TopicSettings, create_topic
from streamlearn.trainer.intake.extract import rows_of
from streamlearn.versions import Known, Pointer, VersionRef
from tests.trainer.stream import learnable_folder, messages_of
from tools.chaos.answer_log import AnswerLog, check_equal
from tools.chaos.faults import QUICK, faults_of
from tools.chaos.invariants import sample_violations, wrong_labels
from tools.chaos.plan import planned
from tools.chaos.run import ChaosOptions, Outcome, run
from tools.chaos.settled_labels import SettledLabels, ends_of_rows, row_id, settled_of
from tools.chaos.target import Target
from tools.demo import Board
from tools.services import Kafka, KafkaCluster, Redis

# The run ends after this time, or earlier after this number of faults. The longer it is, the fewer rows a second has.
_SEED, _SECONDS, _FAULTS = 12, 400.0, 2
# Most of what ingest costs is to look for events and to pass heartbeats on.
_CHANGES = ("ingest.poll_s=0.5", "replay.heartbeat_s=300", "up.workers=1")


def test_a_short_run_leaves_nothing_violated(tmp_path: Path) -> None:
    lines: list[str] = []
    options = ChaosOptions(_SECONDS, _SEED, recovery_s_max=120.0, is_quick=True, faults_max=_FAULTS)
    outcome = run(options, tmp_path, {}, _CHANGES, lines.append)
    assert outcome.violations == [], lines
    assert outcome.struck() == _FAULTS, lines
    assert set(outcome.recovery_s) == {"kill worker-1", "kill shard-0"}
    assert outcome.slices > 0
    assert outcome.rows > 1_000
    assert sum(outcome.compared) > 10


def test_a_seed_determines_the_order_of_all_faults() -> None:
    names = ["a", "b", "c", "d"]
    once, again = (list(islice(planned(3, names), 12)) for _ in range(2))
    assert once == again != list(islice(planned(4, names), 12))
    for at in range(0, 12, 4):
        assert {name for _, name in once[at : at + 4]} == set(names)
    assert list(planned(1, [])) == []


def test_quick_faults_are_among_all() -> None:
    class FakeTarget:
        services: dict[str, Any] = {"kafka": None}  # noqa: RUF012

    faults = faults_of(cast("Target", FakeTarget()), 60.0)
    assert set(QUICK) <= set(faults)
    assert "stop kafka for 60 s" in faults


def test_faults_strike_workers_alone_and_together_with_whom_they_learn_for() -> None:
    class FakeTarget:
        services: dict[str, Any] = {}  # noqa: RUF012

    faults = faults_of(cast("Target", FakeTarget()), 60.0)
    alone = {"kill worker-1", "stop worker-2 for seconds", "stop a worker for longer than the trainer waits"}
    assert alone | {"kill trainer and worker-1", "kill shard-0 and worker-2", "kill worker-1 and worker-2"} <= set(
        faults
    )


def test_faults_are_counted_by_whom_they_struck() -> None:
    outcome = Outcome({"kill worker-1": [1.0, 2.0], "kill trainer and worker-1": [3.0], "kill trainer": [4.0]})
    assert (outcome.struck(), outcome.struck("worker"), outcome.struck("node")) == (4, 3, 0)


def test_three_brokers_are_killed_and_badly_led_and_redis_forgets(tmp_path: Path) -> None:
    class FakeTarget:
        services: dict[str, Any] = {  # noqa: RUF012
            "kafka": KafkaCluster({node: cast("Kafka", None) for node in (1, 2, 3)}),
            "redis": Redis(tmp_path, (1,), Path("redis-server")),
        }

    faults = faults_of(cast("Target", FakeTarget()), 60.0)
    more = {"kill broker 1", "kill broker 2", "kill broker 3", "a broker that is not in sync leads the samples"}
    assert more | {"flush redis"} <= set(faults)


def test_messages_without_rows_at_the_end_need_no_version(tmp_path: Path) -> None:
    folder = learnable_folder(tmp_path)
    codec, ((_, batch), *_) = SampleCodec(folder.app, folder.settings.samples), messages_of(folder.app, 1, 10)
    full, empty = codec.encode(batch), codec.encode(rows_of(batch, np.arange(0)))
    with create_topic(folder.topic_url("samples"), TopicSettings(partitions=2)) as topic, topic.writer() as writer:
        writer.append(0, [full, empty, full, empty])
        writer.append(1, [empty])
    assert ends_of_rows(folder) == [3, 0]


_LABELS = ("click", "purchase")
_METRICS = {"labels_learned": 6.0, "labels_corrected": 1.0}
_ROW_IDS = tuple(row_id("q", item) for item in range(3))
_VALUES = ((1, 0), (0, 0), (0, 0))


def _settled(
    rows: Sequence[int] = _ROW_IDS, values: Sequence[Sequence[int]] = _VALUES, unknown: tuple[str, ...] = ()
) -> SettledLabels:
    return SettledLabels(np.array(rows, np.int64), np.array(values, np.int8), 1, unknown)


@pytest.mark.parametrize(
    ("settled", "metrics", "says"),
    [
        (_settled(), {}, []),
        (_settled(rows=_ROW_IDS[::-1], values=_VALUES[::-1]), {}, []),
        (
            _settled(rows=(_ROW_IDS[0], _ROW_IDS[1], _ROW_IDS[1])),  # as many as there are
            {},
            [
                "1 rows were shown, and are in no sample: item 2 of request q",
                "1 rows are in the samples under more than one identity: item 1 of request q",
            ],
        ),
        (
            _settled(rows=(*_ROW_IDS[:2], row_id("r", 2))),
            {},
            [
                "1 rows were shown, and are in no sample: item 2 of request q",
                "1 rows of samples were never shown: one that was not shown",
            ],
        ),
        (_settled(unknown=("item 4",)), {}, ["1 rows of samples were never shown: item 4"]),
        (
            _settled(values=((0, 0), (1, 0), (0, 0))),  # the number of positives is right, the rows are wrong
            {},
            [
                "1 rows lack a click that happened: item 0 of request q",
                "1 rows have a click that did not happen: item 1 of request q",
            ],
        ),
        (
            _settled(values=((1, 0), (0, -1), (0, 0))),
            {"labels_learned": 5.0},
            ["1 rows have an unsettled purchase: item 1 of request q"],
        ),
        (_settled(), {"labels_learned": 7.0}, ["6 labels are settled, and 7 were learned"]),
        (_settled(), {"labels_corrected": 2.0}, ["1 labels need a correction, and 2 were corrected"]),
    ],
)
def test_lost_and_doubled_rows_are_named(settled: SettledLabels, metrics: dict[str, float], says: list[str]) -> None:
    board = Board(small_app())
    none = np.zeros((3, 2), np.float32)
    three = np.arange(3)
    board.shown([("q", at) for at in range(3)], three, three, none, none[:, None])
    board.did({"request_id": np.array(["q"]), "item_id": np.array([0]), "action": np.array(["click"])})
    assert list(sample_violations(board, _LABELS, settled, _METRICS | metrics)) == says


def test_labels_count_once_and_corrections_by_their_order() -> None:
    batch = small_batch(small_app(), 3, 5, seed=1)
    settled = _valued(batch, 1, 0)
    shown = _shown_at(batch)
    once = settled_of([settled], shown, 2)
    assert (sorted(once.rows.tolist()), once.labels, once.corrected) == (
        sorted(shown.values()),
        10,
        0,
    )
    positive = _valued(batch, 1, 1)
    assert settled_of([settled, settled], shown, 2).labels == 10
    corrected = settled_of([settled, positive, settled, positive], shown, 2)
    assert (corrected.rows.tolist(), corrected.labels, corrected.corrected) == (once.rows.tolist(), 10, 10)
    assert corrected.values.all()
    assert settled_of([positive, settled], shown, 2).corrected == 0
    assert settled_of([_valued(batch, 0, 0)], shown, 2).labels == 0


def test_a_row_without_an_impression_is_unknown_and_no_batches_settle_nothing() -> None:
    batch = _valued(small_batch(small_app(), 3, 5, seed=1), 1, 0)
    shown = _shown_at(batch)
    (partition, offset, item), _ = shown.popitem()
    settled = settled_of([batch], shown, 2)
    assert settled.unknown == (f"item {item} of partition {partition} offset {offset}",)
    assert len(settled.rows) == 4
    assert settled_of([], shown, 2).values.shape == (0, 2)


def _shown_at(batch: SampleBatch) -> dict[tuple[int, int, int], int]:
    """Return a row id for each row of the batch."""
    at = batch.request_index
    partitions, offsets = batch.requests.partition[at].tolist(), batch.requests.offset[at].tolist()
    identities = zip(partitions, offsets, range(len(batch)), strict=True)
    return {identity: number for number, identity in enumerate(identities)}


def _valued(batch: SampleBatch, settles: int, value: int) -> SampleBatch:
    """Return the batch with all labels settled or not, and with one value."""
    rows = np.arange(len(batch), dtype=np.int32)
    labels = tuple(
        replace(label, settles=np.full(len(batch), settles, np.uint8), value=np.full(len(batch), value, np.uint8))
        for label in batch.labels
    )
    return replace(batch, labels=labels, item_index=rows)


def test_answers_of_another_version_or_with_other_scores_differ() -> None:
    def answer(version: str, score: float) -> InferAnswer:
        return InferAnswer("m", version, {"click": numbers_tensor("click", np.array([score], np.float32))})

    check_equal(answer("3", 0.5), answer("3", 0.500001), "a")
    for other in (answer("4", 0.5), answer("3", 0.5001), answer("3", float("nan"))):
        with pytest.raises(ServiceError, match="where version 3 gave"):
            check_equal(answer("3", 0.5), other, "a")


def test_labels_of_another_name_or_order_are_named() -> None:
    labels = ["click", "like"]
    assert not list(wrong_labels(3, labels, labels, [labels, ["click", "click:logit", "like"]]))
    (violation,) = wrong_labels(3, labels, ["like", "click"], [])
    assert "was written with the labels ['like', 'click']" in violation
    for answered in (["like", "click"], ["click"]):
        (violation,) = wrong_labels(3, labels, labels, [answered])
        assert f"version 3 answered with {answered}" in violation


def test_a_few_answers_of_each_version_are_kept() -> None:
    log = AnswerLog(small_app())
    for at in range(1_000):
        log(b"request", InferAnswer("m", str(1 + at // 500), {}))
    assert log.versions == [1, 2]
    assert 5 < len(log.of(2)) < 50
    assert log.of(3) == []


def test_the_log_has_the_time_of_each_version_s_last_answer() -> None:
    log = AnswerLog(small_app())
    log(b"", InferAnswer("m", "3", {}))
    between_s = time.monotonic()
    log(b"", InferAnswer("m", "4", {}))
    assert log.since(between_s) == {4}
    log(b"", InferAnswer("m", "3", {}))
    assert log.since(between_s) == {3, 4}


def test_a_tainted_version_that_answers_is_named() -> None:
    class FakeLoop:
        pointer = Pointer(taints=(3,))

    target = object.__new__(Target)
    refs = [VersionRef(version=number, run=1, sha256="0" * 64) for number in (2, 3, 4)]
    loop: Any = FakeLoop()
    loop.model, loop.versions = loop, lambda: [Known(ref=ref, kind="delta") for ref in refs]
    target.loop = loop
    target.check_clean({2})
    with pytest.raises(ServiceError, match="tainted versions: 3, 4"):
        target.check_clean({2, 4, 3})

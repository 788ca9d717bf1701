"""Chaos: a short run by a seed, and invariants that are broken by what breaks them."""

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
from tools.chaos.faults import QUICK, faults_of
from tools.chaos.ground import Ground
from tools.chaos.heard import Heard, differ
from tools.chaos.invariants import learned, misnamed
from tools.chaos.plan import planned
from tools.chaos.run import Wanted, run
from tools.chaos.settled import Settled, counted, ends_of_rows, mark_of
from tools.demo import Board
from tools.services import Kafka, KafkaCluster, Redis

# So many seconds at most: it is over after so many faults.
_SEED, _SECONDS, _FAULTS = 7, 200.0, 2


def test_a_short_run_leaves_nothing_violated(tmp_path: Path) -> None:
    said: list[str] = []
    wanted = Wanted(_SECONDS, _SEED, whole_s_max=120.0, is_quick=True, faults_max=_FAULTS)
    outcome = run(wanted, tmp_path, {}, (), said.append)
    assert outcome.violations == [], said
    assert sum(map(len, outcome.took_s.values())) == _FAULTS, said
    assert outcome.rows > 1_000
    assert sum(outcome.compared) > 10


def test_a_seed_says_which_faults_come_and_all_of_them_do() -> None:
    names = ["a", "b", "c", "d"]
    once, again = (list(islice(planned(3, names), 12)) for _ in range(2))
    assert once == again != list(islice(planned(4, names), 12))
    for at in range(0, 12, 4):
        assert {name for _, name in once[at : at + 4]} == set(names)
    assert list(planned(1, [])) == []


def test_quick_faults_are_among_all() -> None:
    class Stands:
        services: dict[str, Any] = {"kafka": None}  # noqa: RUF012

    found = faults_of(cast("Ground", Stands()), 60.0)
    assert set(QUICK) <= set(found)
    assert "stop kafka for 60 s" in found


def test_three_brokers_are_killed_and_badly_led_and_redis_forgets(tmp_path: Path) -> None:
    class Stands:
        services: dict[str, Any] = {  # noqa: RUF012
            "kafka": KafkaCluster({node: cast("Kafka", None) for node in (1, 2, 3)}),
            "redis": Redis(tmp_path, (1,), Path("redis-server")),
        }

    found = faults_of(cast("Ground", Stands()), 60.0)
    more = {"kill broker 1", "kill broker 2", "kill broker 3", "a broker that is not in sync leads the samples"}
    assert more | {"flush redis"} <= set(found)


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
_MARKS = tuple(mark_of("q", item) for item in range(3))
_VALUES = ((1, 0), (0, 0), (0, 0))


def _settled(
    rows: Sequence[int] = _MARKS, values: Sequence[Sequence[int]] = _VALUES, strange: tuple[str, ...] = ()
) -> Settled:
    return Settled(np.array(rows, np.int64), np.array(values, np.int8), 1, strange)


@pytest.mark.parametrize(
    ("settled", "metrics", "says"),
    [
        (_settled(), {}, []),
        (_settled(rows=_MARKS[::-1], values=_VALUES[::-1]), {}, []),
        (
            _settled(rows=(_MARKS[0], _MARKS[1], _MARKS[1])),  # one is dropped, another doubled: as many as there are
            {},
            [
                "1 rows were shown, and are in no sample: item 2 of request q",
                "1 rows are in the samples under more than one identity: item 1 of request q",
            ],
        ),
        (
            _settled(rows=(*_MARKS[:2], mark_of("r", 2))),
            {},
            [
                "1 rows were shown, and are in no sample: item 2 of request q",
                "1 rows of samples are of nothing that was shown: one that was not shown",
            ],
        ),
        (_settled(strange=("item 4",)), {}, ["1 rows of samples are of nothing that was shown: item 4"]),
        (
            _settled(values=((0, 0), (1, 0), (0, 0))),  # as many positives, of other rows
            {},
            [
                "1 rows have a click that nobody learned of: item 0 of request q",
                "1 rows have a click that nobody did: item 1 of request q",
            ],
        ),
        (
            _settled(values=((1, 0), (0, -1), (0, 0))),
            {"labels_learned": 5.0},
            ["1 rows have no purchase that is settled: item 1 of request q"],
        ),
        (_settled(), {"labels_learned": 7.0}, ["6 labels are settled, and 7 were learned"]),
        (_settled(), {"labels_corrected": 2.0}, ["1 labels are to be corrected, and 2 were"]),
    ],
)
def test_what_was_lost_or_learned_twice_is_named(settled: Settled, metrics: dict[str, float], says: list[str]) -> None:
    board = Board(small_app())
    none = np.zeros((3, 2), np.float32)
    three = np.arange(3)
    board.shown([("q", at) for at in range(3)], three, three, none, none[:, None])
    board.did({"request_id": np.array(["q"]), "item_id": np.array([0]), "action": np.array(["click"])})
    assert list(learned(board, _LABELS, settled, _METRICS | metrics)) == says


def test_labels_count_once_and_corrections_by_their_order() -> None:
    batch = small_batch(small_app(), 3, 5, seed=1)
    settled = _valued(batch, 1, 0)
    shown = _shown_at(batch)
    one = counted([settled], shown, 2)
    assert (sorted(one.rows.tolist()), one.labels, one.corrected) == (sorted(shown.values()), 10, 0)
    positive = _valued(batch, 1, 1)
    assert counted([settled, settled], shown, 2).labels == 10
    corrected = counted([settled, positive, settled, positive], shown, 2)
    assert (corrected.rows.tolist(), corrected.labels, corrected.corrected) == (one.rows.tolist(), 10, 10)
    assert corrected.values.all()
    assert counted([positive, settled], shown, 2).corrected == 0
    assert counted([_valued(batch, 0, 0)], shown, 2).labels == 0


def test_a_row_of_no_impression_is_strange_and_nothing_is_nothing() -> None:
    batch = _valued(small_batch(small_app(), 3, 5, seed=1), 1, 0)
    shown = _shown_at(batch)
    (partition, offset, item), _ = shown.popitem()
    found = counted([batch], shown, 2)
    assert found.strange == (f"item {item} of partition {partition} offset {offset}",)
    assert len(found.rows) == 4
    assert counted([], shown, 2).values.shape == (0, 2)


def _shown_at(batch: SampleBatch) -> dict[tuple[int, int, int], int]:
    """A mark for every row of it."""
    at = batch.request_index
    partitions, offsets = batch.requests.partition[at].tolist(), batch.requests.offset[at].tolist()
    places = zip(partitions, offsets, range(len(batch)), strict=True)
    return {place: mark for mark, place in enumerate(places)}


def _valued(batch: SampleBatch, settles: int, value: int) -> SampleBatch:
    """The batch with all labels settled or not, and of one value."""
    rows = np.arange(len(batch), dtype=np.int32)
    labels = tuple(
        replace(one, settles=np.full(len(batch), settles, np.uint8), value=np.full(len(batch), value, np.uint8))
        for one in batch.labels
    )
    return replace(batch, labels=labels, item_index=rows)


def test_answers_of_another_version_or_with_other_scores_differ() -> None:
    def answer(version: str, score: float) -> InferAnswer:
        return InferAnswer("m", version, {"click": numbers_tensor("click", np.array([score], np.float32))})

    differ(answer("3", 0.5), answer("3", 0.500001), "a")
    for other in (answer("4", 0.5), answer("3", 0.5001), answer("3", float("nan"))):
        with pytest.raises(ServiceError, match="where version 3 said"):
            differ(answer("3", 0.5), other, "a")


def test_labels_of_another_name_or_order_are_named() -> None:
    labels = ["click", "like"]
    assert not list(misnamed(3, labels, labels, [labels, ["click", "click:logit", "like"]]))
    (said,) = misnamed(3, labels, ["like", "click"], [])
    assert "was written with the labels ['like', 'click']" in said
    for answered in (["like", "click"], ["click"]):
        (said,) = misnamed(3, labels, labels, [answered])
        assert f"version 3 answered with {answered}" in said


def test_a_few_answers_of_each_version_are_kept() -> None:
    heard = Heard()
    for at in range(1_000):
        heard(b"asked", InferAnswer("m", str(1 + at // 500), {}))
    assert heard.versions == [1, 2]
    assert 5 < len(heard.of(2)) < 50
    assert heard.of(3) == []


def test_a_version_that_answered_is_remembered_by_when_it_did_so_last() -> None:
    heard = Heard()
    heard(b"", InferAnswer("m", "3", {}))
    between_s = time.monotonic()
    heard(b"", InferAnswer("m", "4", {}))
    assert heard.since(between_s) == {4}
    heard(b"", InferAnswer("m", "3", {}))
    assert heard.since(between_s) == {3, 4}


def test_a_tainted_version_that_answers_is_named() -> None:
    class Stands:
        pointer = Pointer(taints=(3,))

    ground = object.__new__(Ground)
    refs = [VersionRef(version=number, run=1, sha256="0" * 64) for number in (2, 3, 4)]
    loop: Any = Stands()
    loop.model, loop.known = loop, lambda: [Known(ref=ref, kind="delta") for ref in refs]
    ground.loop = loop
    ground.check_clean({2})
    with pytest.raises(ServiceError, match="tainted versions: 3, 4"):
        ground.check_clean({2, 4, 3})

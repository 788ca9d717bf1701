"""Workers that learn one model in slices: what they give, what they wait for, and what they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import msgspec
import numpy as np
import pytest

from streamlearn.errors import EpochOver, PushUnsure, ShardRefused, UsageError, WeightsDiffer
from streamlearn.ps import Epoch, Place, PsClient, ShardServer, Shelf
from streamlearn.ps.metrics import ShardCollector
from streamlearn.ps.remote import RemoteLink
from streamlearn.ps.slice_part import SlicePart
from streamlearn.table import Pushed
from streamlearn.testing import wait_until
from streamlearn.versions import Store
from tests.ps.conftest import SETTINGS, listening
from tests.ps.model import KEYS, MODEL, OPTIONS, Twin

_WAIT_S = 120.0
_ONES = np.ones((len(KEYS), 8), np.float32)


@pytest.fixture
def workers(store: Store) -> Iterator[tuple[PsClient, PsClient]]:
    """Two clients of two shards; the second one joined the epoch of the first."""
    with ExitStack() as stack:
        settings = listening(stack, store, 2)
        first, second = (stack.enter_context(PsClient.connect(MODEL, OPTIONS, settings)) for _ in range(2))
        first.restore(Epoch(1), None)
        second.join(Epoch(1))
        yield first, second


def test_slices_of_two_workers_are_learned_as_one_push(workers: tuple[PsClient, PsClient]) -> None:
    twin, rng = Twin(), np.random.default_rng(7)
    for step in range(1, 4):
        keys = [rng.permutation(KEYS)[:2_000] for _ in range(3)]
        gradients = [rng.normal(size=(2_000, 8)).astype(np.float32) for _ in range(3)]
        answers = []
        for slice in rng.permutation(3):
            worker = workers[slice % 2]
            part = SlicePart(step, int(slice), 3)
            answers.append(worker.push_part(part, "main", keys[slice], gradients[slice], now_ms=step))
        assert answers[:2] == [Pushed(0, 0, 0)] * 2
        pushed = twin.tables["main"].push(np.concatenate(keys), np.concatenate(gradients), now_ms=step)
        assert answers[2] == pushed
        assert np.array_equal(workers[0].pull("main", KEYS), twin.tables["main"].lookup(KEYS))
    asked = [one for worker in workers for one in worker.asked()]
    assert sum(one["part_requests"] for one in asked) > sum(one["push_requests"] for one in asked) == 0


def test_a_step_of_a_slice_that_is_not_finite_is_not_learned(workers: tuple[PsClient, PsClient]) -> None:
    nan = _ONES * np.nan
    before = workers[0].pull("main", KEYS)
    workers[0].push_part(SlicePart(1, 0, 2), "main", KEYS, _ONES, now_ms=0)
    workers[1].push_part(SlicePart(1, 1, 2), "main", KEYS, nan, now_ms=0, is_finite=False)
    assert np.array_equal(before, workers[0].pull("main", KEYS))
    workers[0].reduce(SlicePart(1, 0, 2), _ONES[0], digest=1, is_finite=True)
    workers[1].reduce(SlicePart(1, 1, 2), nan[0], digest=1, is_finite=False)
    assert workers[0].reduced(1, 2, np.empty(8, np.float32), wait_s=_WAIT_S) is False


def test_dense_sums_come_to_whoever_waits(workers: tuple[PsClient, PsClient]) -> None:
    values = np.random.default_rng(3).normal(size=(3, 1_001)).astype(np.float32)
    expected = (values[0] + values[1]) + values[2]
    outs = [np.empty(1_001, np.float32) for _ in workers]
    assert workers[0].reduced(1, 3, outs[0], wait_s=0) is None
    with ThreadPoolExecutor(2) as pool:
        waits = [
            pool.submit(worker.reduced, 1, 3, out, wait_s=_WAIT_S) for worker, out in zip(workers, outs, strict=True)
        ]
        for slice in (2, 0, 0, 1):
            workers[slice % 2].reduce(SlicePart(1, slice, 3), values[slice], digest=(1 << 64) - 1, is_finite=True)
        assert [wait.result(_WAIT_S) for wait in waits] == [True, True]
    assert all(np.array_equal(out, expected) for out in outs)
    assert workers[0].asked()[0]["reduce_requests"] > 0


def test_workers_of_different_weights_are_told_so(workers: tuple[PsClient, PsClient]) -> None:
    workers[0].reduce(SlicePart(1, 0, 2), _ONES[0], digest=1, is_finite=True)
    with pytest.raises(WeightsDiffer, match="digest"):
        workers[1].reduce(SlicePart(1, 1, 2), _ONES[0], digest=2, is_finite=True)
    with pytest.raises(WeightsDiffer):
        workers[0].reduced(1, 2, np.empty(8, np.float32), wait_s=_WAIT_S)
    workers[0].push("main", KEYS, _ONES, now_ms=0)


def test_a_slice_that_two_workers_give_stops_the_second_until_it_joins_again(
    workers: tuple[PsClient, PsClient],
) -> None:
    first, second = workers
    part = SlicePart(1, 0, 2)
    first.push_part(part, "main", KEYS, _ONES, now_ms=0)
    with pytest.raises(ShardRefused, match="already"):
        second.push_part(part, "main", KEYS, _ONES, now_ms=0)
    with pytest.raises(PushUnsure):
        second.push_part(SlicePart(1, 1, 2), "main", KEYS, _ONES, now_ms=0)
    first.restore(Epoch(1, 1), None)
    with pytest.raises(EpochOver):
        second.join(Epoch(0))
    second.join(Epoch(1, 1))
    second.push_part(part, "main", KEYS, _ONES, now_ms=0)
    assert first.push_part(SlicePart(1, 1, 2), "main", KEYS, _ONES, now_ms=0).learned == len(KEYS)


def test_slices_that_are_applied_at_once_are_pushes_of_their_own_whoever_repeats_them(
    workers: tuple[PsClient, PsClient],
) -> None:
    twin, rng = Twin(), np.random.default_rng(8)
    for step in range(1, 4):
        for slice in rng.permutation(3):
            keys, gradients = rng.permutation(KEYS)[:2_000], rng.normal(size=(2_000, 8)).astype(np.float32)
            part = SlicePart(step, int(slice), 3, may_repeat=True, at_once=True)
            first, second = rng.permutation(2)
            answer = workers[first].push_part(part, "main", keys, gradients, now_ms=step)
            assert answer == twin.tables["main"].push(keys, gradients, now_ms=step)
            again = rng.normal(size=(2_000, 8)).astype(np.float32)  # computed from rows that have changed since
            assert workers[second].push_part(part, "main", keys, again, now_ms=step) == Pushed(0, 0, 0)
        assert np.array_equal(workers[0].pull("main", KEYS), twin.tables["main"].lookup(KEYS))


def test_what_is_no_slice_is_refused_before_it_is_sent(workers: tuple[PsClient, PsClient]) -> None:
    out = np.empty(8, np.float32)
    for part in (SlicePart(1, 2, 2), SlicePart(1, 0, 0), SlicePart(-1, 0, 1), SlicePart(1, 0, 1025)):
        with pytest.raises(ValueError, match="expected"):
            workers[0].push_part(part, "main", KEYS, _ONES, now_ms=0)
        with pytest.raises(ValueError, match="expected"):
            workers[0].reduce(part, out, digest=0, is_finite=True)
    with pytest.raises(TypeError, match="float32"):
        workers[0].reduced(1, 1, np.empty(8), wait_s=0)  # type: ignore[arg-type]
    workers[0].push("main", KEYS, _ONES, now_ms=0)


def test_tables_in_process_have_no_slices(store: Store) -> None:
    out = np.empty(8, np.float32)
    with PsClient.local(OPTIONS, Shelf(store, MODEL)) as client:
        client.restore(Epoch(1), None)
        for call in (
            lambda: client.push_part(SlicePart(1, 0, 1), "main", KEYS, _ONES, now_ms=0),
            lambda: client.reduce(SlicePart(1, 0, 1), out, digest=0, is_finite=True),
            lambda: client.reduced(1, 1, out, wait_s=0),
        ):
            with pytest.raises(UsageError, match=r"ps\.addresses"):
                call()
        client.push("main", KEYS, _ONES, now_ms=0)


def test_a_shard_names_the_clients_that_are_connected_and_counts_their_slices(store: Store) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(ShardServer(Place(), OPTIONS, Shelf(store, MODEL), SETTINGS))
        settings = msgspec.structs.replace(SETTINGS, addresses=[server.addresses[0]])
        links = [stack.enter_context(closing(RemoteLink(MODEL, OPTIONS, settings))) for _ in range(2)]
        assert server.clients() == sorted(link.client for link in links)
        links[0].close()
        wait_until(lambda: server.clients() == [links[1].client], "the end of a connection", _WAIT_S)
        client = stack.enter_context(PsClient(links[1], settings))
        client.restore(Epoch(1), None)
        client.push_part(SlicePart(1, 0, 1), "main", KEYS, _ONES, now_ms=0)

        def rows() -> float:  # a shard counts after it has answered
            samples = [sample for family in ShardCollector(server).collect() for sample in family.samples]
            (found,) = (one for one in samples if "_ps_rows" in one.name and one.labels["verb"] == "part")
            return found.value

        wait_until(lambda: rows() == len(KEYS), "the rows of the slice", _WAIT_S)

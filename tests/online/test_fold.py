"""Folding a log into states: the same states as if every interaction had come once, whatever is killed or away."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.errors import FoldOver, StatesUnreachable, TopicReplaced
from streamlearn.features import Entity
from streamlearn.interactions import InteractionBatch
from streamlearn.native import native
from streamlearn.online import (
    FeatureReader,
    Fold,
    FoldLoop,
    Standing,
    StateGroup,
    StateStore,
    open_state_store,
    state_store_redis,
)
from streamlearn.online import fold as fold_module
from streamlearn.online.state_store import StatePlace
from streamlearn.online.state_store_redis import RedisStateStore
from streamlearn.settings.features import FeatureSettings
from streamlearn.testing import ManualClock
from streamlearn.topics import Topic, create_topic, delete_topic
from tests.online.shop import HOUR_MS, KINDS, PARTITIONS, SPEC, T_MS, batch_of, folder_of, some, topic_of, write
from tools.services import Redis

KEEP_MS, REPEATS_MAX = 10 * HOUR_MS, 100_000
Values = dict[int, list[list[Any]]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


class Place:
    """The topic and the store of an application."""

    def __init__(self, path: Path, store: str = "") -> None:
        self.folder = folder_of(path, store)
        self.topic: Topic = topic_of(self.folder)
        self.reader = self.topic.reader()
        self.store = open_state_store(self.folder)

    def group(self, entity: Entity) -> StateGroup:
        return StateGroup.of("shop", entity, PARTITIONS)

    def fold(
        self, entity: Entity, partition: int, store: StateStore | None = None, repeats_max: int = REPEATS_MAX
    ) -> Fold:
        settings = self.folder.settings.features
        group, of = self.group(entity), store or self.store
        return Fold(of, entity, group, self.reader, partition, repeats_max=repeats_max, settings=settings)

    def fold_all(self) -> None:
        for entity, partition in itertools.product(SPEC.entities, range(PARTITIONS)):
            fold = self.fold(entity, partition)
            while fold.step():
                pass
            assert not fold.behind

    def check(self, batch: InteractionBatch) -> None:
        """That the states of all entities are those of these interactions, each once."""
        for entity in SPEC.entities:
            wanted = states_of(entity, replace(batch, side=entity.side))
            places = [StatePlace(self.group(entity), key) for key in wanted]
            found = dict(zip(wanted, self.store.read(places), strict=True))
            assert values_of(entity, found) == values_of(entity, wanted)

    def close(self) -> None:
        self.store.close()
        self.reader.close()
        self.topic.close()
        delete_topic(self.topic.url)


def states_of(entity: Entity, batch: InteractionBatch) -> dict[int, bytes | None]:
    """The states of interactions that are folded at once, in the order of the batch."""
    keys, numbers = np.unique(batch.entity, return_inverse=True)
    columns = [batch.values[:, batch.sources.index(source)] for source in entity.sources]
    kinds = np.array([entity.kinds.index(kind) if kind in entity.kinds else 255 for kind in KINDS], np.uint8)[
        batch.kind
    ]
    kept = kinds != 255
    _, states, _ = native.Features(entity.definition).fold(
        [None] * len(keys),
        (
            numbers.astype(np.uint32)[kept],
            batch.event_time_ms[kept],
            batch.identity[kept],
            np.arange(len(batch), dtype=np.int64)[kept],
            kinds[kept],
            batch.number[kept],
            np.stack(columns, axis=1)[kept].reshape(-1).view(np.uint64),
        ),
    )
    return dict(zip(keys.tolist(), states, strict=True))


def values_of(entity: Entity, states: Mapping[int, bytes | None]) -> Values:
    """What states say an hour later; positions in the log, which they have too, differ."""
    numbers = np.arange(len(states), dtype=np.uint32)
    now_ms = np.full(len(states), T_MS + 2 * HOUR_MS, np.int64)
    read, _, arrays = native.Features(entity.definition).evaluate(list(states.values()), numbers, now_ms)
    assert set(read.tolist()) <= {0, 1}
    return {number: [array.tolist() for array in of] for number, of in enumerate(arrays)}


def test_what_is_folded_is_every_interaction_once(place: Place) -> None:
    batch = some(3_000)
    write(place.topic, batch)
    place.fold_all()
    place.check(batch)


@pytest.mark.parametrize("states_max", [1, 1_000_000])
def test_steps_grow_while_there_is_more_as_long_as_their_states_fit(
    place: Place, monkeypatch: pytest.MonkeyPatch, states_max: int
) -> None:
    batch, entity = some(3_000), SPEC.entities[0]
    write(place.topic, batch, rows_max=10)
    monkeypatch.setattr(fold_module, "_READ_BYTES", 2_000)
    monkeypatch.setattr(fold_module, "_STATES_BYTES_MAX", states_max * native.Features(entity.definition).bytes_max)
    fold = place.fold(entity, 0)
    steps = sum(1 for _ in iter(fold.step, False))
    messages = place.reader.end(0)
    assert steps > messages / 10 if states_max == 1 else steps < messages / 10
    place.fold_all()
    place.check(batch)


def test_interactions_that_come_again_count_once_also_after_a_restart(place: Place) -> None:
    batch = some(2_000)
    write(place.topic, batch)
    write(place.topic, batch.take(slice(500, None)))
    place.fold_all()
    place.check(batch)
    # A restart of ingest repeats what it had written, and a restart of the fold knows what it had folded.
    write(place.topic, batch.take(slice(1_000, None)))
    entity = SPEC.entities[0]
    fold = place.fold(entity, 0)
    while fold.step():
        pass
    assert fold.counts.folded == 0
    assert fold.counts.repeated > 100
    place.fold_all()
    place.check(batch)


def test_a_fold_that_ends_anywhere_is_gone_on_with(place: Place) -> None:
    batch = some(1_000)
    write(place.topic, batch, rows_max=7)
    steps = 0
    for entity, partition in itertools.product(SPEC.entities, range(PARTITIONS)):
        while place.fold(entity, partition).step():
            steps += 1
    place.fold_all()
    assert steps >= 2 * PARTITIONS
    place.check(batch)


def fold_on(loop: FoldLoop) -> None:
    """Fold until nothing is left."""
    while loop.behind:
        loop.step()


class Passing(StateStore):
    """A store that passes everything on."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store.url)
        self.store = store

    def claim(self, group: StateGroup, partition: int) -> Standing:
        return self.store.claim(group, partition)

    def standing(self, group: StateGroup, partition: int) -> Standing | None:
        return self.store.standing(group, partition)

    def read(self, places: Sequence[StatePlace]) -> list[bytes | None]:
        return self.store.read(places)

    def remove(self, group: StateGroup, partition: int, keys: Sequence[int]) -> int:
        return self.store.remove(group, partition, keys)

    def switch(self, group: StateGroup) -> None:
        self.store.switch(group)

    def filled(self, group: StateGroup) -> None:
        self.store.filled(group)

    def drop(self, group: StateGroup) -> None:
        self.store.drop(group)

    def close(self) -> None:
        self.store.close()

    def _current(self, base: str) -> tuple[int, int, bool] | None:
        return self.store._current(base)

    def _write(self, *given: Any) -> Any:
        return self.store._write(*given)


class Shaky(Passing):
    """One that fails again and again, before it writes or after it has."""

    def __init__(self, store: StateStore) -> None:
        super().__init__(store)
        self.calls = 0

    def read(self, places: Sequence[StatePlace]) -> list[bytes | None]:
        self._fail()
        return super().read(places)

    def _write(self, *given: Any) -> Any:
        self._fail()
        found = super()._write(*given)
        self._fail()
        return found

    def _fail(self) -> None:
        self.calls += 1
        if self.calls % 5 == 0:
            message = "away"
            raise StatesUnreachable(message, help="")


def test_a_store_that_fails_before_or_after_a_write_changes_nothing(place: Place) -> None:
    batch = some(1_500)
    write(place.topic, batch)
    write(place.topic, batch.take(slice(0, 700)))
    store, failures = Shaky(place.store), 0
    for entity, partition in itertools.product(SPEC.entities, range(PARTITIONS)):
        fold = place.fold(entity, partition, store)
        while True:
            try:
                if not fold.step():
                    break
            except StatesUnreachable:
                failures += 1
    assert failures >= 5
    place.check(batch)


def test_a_fold_that_ends_between_the_parts_of_a_write_is_gone_on_with(
    own_redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store_redis, "_WRITE_MAX", 3)
    monkeypatch.setattr(state_store_redis, "_READ_MAX", 2)
    write_part, written = RedisStateStore._write_part, 0

    def ends(self: RedisStateStore, *given: Any) -> Any:
        nonlocal written
        written += 1
        if written % 4 == 0:
            message = "the process was killed"
            raise KeyboardInterrupt(message)
        return write_part(self, *given)

    place = Place(tmp_path, own_redis.url)
    try:
        batch = some(600, users=40)
        write(place.topic, batch, rows_max=30)
        monkeypatch.setattr(RedisStateStore, "_write_part", ends)
        killed = 0
        for entity, partition in itertools.product(SPEC.entities, range(PARTITIONS)):
            while True:
                try:
                    if not place.fold(entity, partition).step():
                        break
                except KeyboardInterrupt:
                    killed += 1
                if killed > 40:
                    monkeypatch.setattr(RedisStateStore, "_write_part", write_part)
        assert killed > 5
        place.check(batch)
    finally:
        place.close()


def test_of_two_folds_the_newer_goes_on_and_the_other_ends(place: Place) -> None:
    first, second = some(500), some(500, seed=1)
    second = replace(second, identity=second.identity + np.uint64(1))
    write(place.topic, first)
    entity = SPEC.entities[0]
    older = place.fold(entity, 0)
    older.step()
    newer = place.fold(entity, 0)
    write(place.topic, second)
    with pytest.raises(FoldOver):
        older.step()
    newer.step()
    place.fold_all()
    place.check(InteractionBatch.concatenated([first, second]))


def test_a_store_that_lost_its_last_writes_is_folded_again_from_there(place: Place, tmp_path: Path) -> None:
    first, second = some(600), some(600, seed=1, span_ms=HOUR_MS)
    second = replace(second, identity=second.identity + np.uint64(1))
    write(place.topic, first)
    clock = ManualClock()
    with closing(FoldLoop(place.folder, clock=clock)) as loop:
        fold_on(loop)
        place.store.close()
        files = tmp_path / ".streamlearn"
        loop._store.close()
        shutil.copytree(files, tmp_path / "kept")
        write(place.topic, second)
        fold_on(loop)
        loop._store.close()
        shutil.rmtree(files)
        shutil.copytree(tmp_path / "kept", files)
        third = batch_of([("click", 1, 1, T_MS + 2 * HOUR_MS - 1, 1.0)] * 3, first=90_000)
        write(place.topic, third)
        clock.sleep(60)  # partitions without new interactions are looked at too
        loop.step()
        fold_on(loop)
    place.check(InteractionBatch.concatenated([first, second, third]))


def test_a_store_that_lost_everything_is_folded_from_the_first_interaction_that_is_kept(place: Place) -> None:
    batch = some(600)
    write(place.topic, batch)
    clock = ManualClock()
    with closing(FoldLoop(place.folder, clock=clock)) as loop:
        fold_on(loop)
        for entity in SPEC.entities:
            place.store.drop(place.group(entity))
        clock.sleep(60)
        more = batch_of([("click", user, user, T_MS + 2 * HOUR_MS - 1, 1.0) for user in range(20)], first=90_000)
        write(place.topic, more)
        fold_on(loop)
        assert loop.counts.states_bad == 0
    place.check(InteractionBatch.concatenated([batch, more]))


@pytest.mark.parametrize("is_redis", [False, True])
def test_states_are_not_read_while_they_are_folded_from_the_first_interaction(
    tmp_path: Path, own_redis: Redis, monkeypatch: pytest.MonkeyPatch, is_redis: bool
) -> None:
    # One message a step.
    for name in ("_READ_BYTES", "_READ_BYTES_MAX"):
        monkeypatch.setattr(fold_module, name, 1)
    with closing(Place(tmp_path, own_redis.url if is_redis else "")) as place:
        write(place.topic, some(600))

        def outcome() -> str:
            with FeatureReader(place.folder, wait_s=60.0) as reader:
                return reader.users([1], T_MS + 2 * HOUR_MS).outcomes[0]

        with closing(FoldLoop(place.folder)) as loop:
            assert loop.step()
            assert outcome() == "unavailable"
        # Another process goes on, and knows that it is not at the end.
        with closing(FoldLoop(place.folder)) as loop:
            assert loop.step()
            assert loop.behind
            assert outcome() == "unavailable"
            fold_on(loop)
            assert outcome() == "known"
            # New interactions do not make states unavailable again.
            write(place.topic, batch_of([("click", 1, 1, T_MS, 1.0)] * 100, first=90_000))
            assert loop.step()
            assert outcome() == "known"
            place.store.drop(place.group(SPEC.entities[0]))
            loop._check_s = 0.0  # the store is looked at once a second
            for _ in range(2):  # what was lost is noticed, and begun again
                loop.step()
            assert outcome() == "unavailable"
            fold_on(loop)
            assert outcome() == "known"


def test_times_far_ahead_and_far_back_count_as_any_other(place: Place) -> None:
    times = [T_MS, T_MS + 20 * HOUR_MS, T_MS - 90 * HOUR_MS, T_MS + 1, T_MS + 20 * HOUR_MS + 1]
    batches = [batch_of([("click", 1, 1, time_ms, 0.0)], first=50 + at) for at, time_ms in enumerate(times)]
    for batch in batches:
        write(place.topic, batch)
    place.fold_all()
    partition = int(batches[0].user[0]) % PARTITIONS
    standing = place.store.standing(place.group(SPEC.entities[0]), partition)
    assert standing is not None
    assert standing.newest_ms == T_MS + 20 * HOUR_MS + 1
    place.check(InteractionBatch.concatenated(batches))


@pytest.mark.parametrize("restarts", [False, True])
def test_as_many_interactions_are_remembered_as_it_is_said(place: Place, restarts: bool) -> None:
    rows = [("click", 1, 1, T_MS + at, 0.0) for at in range(100)]
    batch = batch_of(rows)
    entity, partition = SPEC.entities[0], int(batch.user[0]) % PARTITIONS
    fold = place.fold(entity, partition, repeats_max=40)
    for again in (0, 60, 70):
        write(place.topic, batch.take(slice(again, None)), rows_max=10)
        if restarts:
            fold = place.fold(entity, partition, repeats_max=40)
        while fold.step():
            pass
        if again == 60:
            standing = place.store.standing(place.group(entity), partition)
            assert standing is not None
            assert standing.seen_from > 0
        if restarts and again:
            assert (fold.counts.folded, fold.counts.repeated) == (0, 100 - again)
    if not restarts:
        assert (fold.counts.folded, fold.counts.repeated) == (100, 70)


def test_a_partition_that_was_idle_at_the_start_is_folded_later(place: Place, own_redis: Redis) -> None:
    settings = msgspec.structs.replace(
        place.folder.settings, features=FeatureSettings(store=own_redis.url, reach_s=60.0)
    )
    folder = replace(place.folder, settings=settings)
    with closing(FoldLoop(folder)) as loop:
        for _ in range(3):
            assert not loop.step()
        batch = some(300)
        write(place.topic, batch)
        fold_on(loop)
        assert loop.counts.folded > 0
        assert not loop.step()
        place.store.close()
        place.store = open_state_store(folder)
        place.check(batch)


def test_messages_and_states_that_cannot_be_read_are_counted(place: Place) -> None:
    batch = some(200)
    with place.topic.writer() as writer:
        for partition in range(PARTITIONS):
            writer.append(partition, [b"", b"garbage", b"\xc3\x01" + b"x" * 30])
    write(place.topic, batch)
    entity, partition = SPEC.entities[0], 0
    claimed = place.store.claim(place.group(entity), partition)
    keys = [int(key) for key in set(batch.user.tolist()) if int(key) % PARTITIONS == partition]
    moved = replace(claimed, position=0, topic_id=place.topic.topic_id)
    place.store.write(place.group(entity), partition, (claimed, moved), dict.fromkeys(keys, b"damaged"), KEEP_MS)
    fold = place.fold(entity, partition)
    while fold.step():
        pass
    assert (fold.counts.messages_bad, fold.counts.states_bad) == (3, len(keys))
    place.fold_all()
    place.check(batch)


def test_a_topic_that_is_another_or_has_lost_what_is_needed_is_told(place: Place) -> None:
    write(place.topic, some(50))
    place.fold_all()
    entity, url = SPEC.entities[0], place.topic.url
    settings = place.topic.settings()
    delete_topic(url)
    create_topic(url, settings).close()
    with pytest.raises(TopicReplaced):
        place.fold(entity, 0).step()

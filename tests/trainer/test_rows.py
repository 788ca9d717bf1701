"""Rows: what a step pulls and pushes, against a dict of keys and their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from streamlearn.apps import AppFolder
from streamlearn.errors import ConfigError
from streamlearn.features import Cross, PackSide, Slot
from streamlearn.native import native
from streamlearn.ps import Epoch, PsClient
from streamlearn.samples import FeatureColumns
from streamlearn.table import TableOptions, declared_tables
from streamlearn.trainer.columns import StepColumns, columns_of
from streamlearn.trainer.intake.message import Reached
from streamlearn.trainer.learner import Packed
from streamlearn.trainer.loss import TARGETS
from streamlearn.trainer.rows import Rows
from streamlearn.trainer.step import Piece, Step
from tests.trainer.plain import features_at
from tests.trainer.runs import local_client
from tests.trainer.stream import T_MS, VOCABULARY, learnable_app, learnable_folder, messages_of

_STEP_ROWS, _RATE = 64, 0.5
Floats = npt.NDArray[np.floating[Any]]


class Plain:
    """Tables as a dict: a row is what it was at first, less all it learned."""

    def __init__(self, client: PsClient) -> None:
        self._client = client
        self.learned: dict[tuple[str, int], Floats] = {}

    def row(self, table: str, key: int) -> Floats:
        if (table, key) not in self.learned:
            first = self._client.pull(table, np.array([key], np.uint64))[0]
            self.learned[table, key] = first.astype(np.float64)
        return self.learned[table, key]

    def packed(self, side: PackSide, features: FeatureColumns, count: int) -> tuple[Floats, Floats]:
        flat = np.zeros((count, side.flat_width))
        block = np.zeros((count, side.sequence_length, side.sequence_width))
        for at in range(count):
            given = features_at(features, at)
            for column in side.flat:
                place = slice(column.at, column.at + column.width)
                if column.pooling == "dense":
                    flat[at, place] = given[column.name]
                else:
                    found = [self.row(column.table, key) for key in given[column.name][0]]
                    total = np.sum(found, axis=0) if found else np.zeros(column.width)
                    flat[at, place] = total / max(len(found), 1) if column.pooling == "mean" else total
            for column in side.sequence:
                for position, key in enumerate(given[column.name][0][-side.sequence_length :]):
                    block[at, position, column.at : column.at + column.width] = self.row(column.table, key)
                    block[at, position, -1] = 1
        return flat, block

    def learn(self, side: PackSide, features: FeatureColumns, of_flat: Floats, of_block: Floats, rate: float) -> None:
        """Of the first rows of the gradients, as many as there are features; what is beyond them is nobody's."""
        count = len(next(iter(features.dense.values())))
        for at in range(count):
            given = features_at(features, at)
            for column in side.flat:
                if column.pooling != "dense":
                    keys = given[column.name][0]
                    share = 1 / len(keys) if column.pooling == "mean" and keys else 1.0
                    for key in keys:
                        self._step(column.table, key, of_flat[at, column.at : column.at + column.width], rate * share)
            for column in side.sequence:
                for position, key in enumerate(given[column.name][0][-side.sequence_length :]):
                    pulled = of_block[at, position, column.at : column.at + column.width]
                    self._step(column.table, key, pulled, rate)

    def _step(self, table: str, key: int, gradient: Floats, rate: float) -> None:
        self.learned[table, key] = self.row(table, key) - rate * gradient


@contextmanager
def rows_of_tables(path: Path, **more: Any) -> Iterator[tuple[AppFolder, PsClient, Rows]]:
    folder = learnable_folder(path, {"tables": {"optimizer": "sgd", "rate": _RATE, **more}})
    with local_client(folder) as client:
        client.restore(Epoch(1), None)
        yield folder, client, Rows(folder.app, client, _STEP_ROWS, folder.settings.tables)


def steps_of(folder: AppFolder, count: int) -> list[StepColumns]:
    """Steps of two pieces each, some rows of both."""
    rng = np.random.default_rng(5)

    def piece(batch: Any) -> Piece:
        rows = np.flatnonzero(rng.random(len(batch)) < 0.7)
        learn, correct = rng.integers(0, 4, (2, len(rows))).astype(np.uint32)
        return Piece(batch, rows, learn & ~correct, correct)

    batches = [batch for _, batch in messages_of(folder.app, 2 * count, 40)]
    pairs = [(piece(batches[2 * at]), piece(batches[2 * at + 1])) for at in range(count)]
    return [columns_of(Step(1, pair, Reached((), ()), 80)) for pair in pairs if sum(map(len, pair)) <= _STEP_ROWS]


def gradients_like(packed: Packed, seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(0, 1, one.shape).astype(np.float32) for one in packed.sides)


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_packed_and_pushed_is_what_a_dict_of_rows_says(tmp_path: Path) -> None:
    with rows_of_tables(tmp_path) as (folder, client, rows):
        plain, pack = Plain(client), folder.app.features.pack
        steps = steps_of(folder, 5)
        assert len(steps) >= 3
        for number, columns in enumerate(steps):
            found = rows.pack(columns)
            user, item = (
                plain.packed(pack.user, columns.user, columns.requests),
                plain.packed(pack.item, columns.item, len(columns)),
            )
            for side, expected in zip(found.sides, (*user, *item), strict=True):
                near(side[: len(expected)], expected)
                # What fills a step up is of zeros, whatever the buffers held.
                assert not side[len(expected) :].any()
            assert len(found.item_flat) == len(found.user_index) == _STEP_ROWS
            np.testing.assert_array_equal(found.user_index[: len(columns)], columns.request_index)
            scale, given = 0.5**number, gradients_like(found, number)
            pushed = rows.push(columns, given, T_MS, scale)
            packed = set(plain.learned)
            plain.learn(pack.user, columns.user, given[0], given[1], _RATE * scale)
            plain.learn(pack.item, columns.item, given[2], given[3], _RATE * scale)
            assert set(plain.learned) == packed
            keys = {
                (column.table, key)
                for side, features, count in (
                    (pack.user, columns.user, columns.requests),
                    (pack.item, columns.item, len(columns)),
                )
                for column in (*side.flat, *side.sequence)
                if column.pooling != "dense"
                for at in range(count)
                for key in _used(side, column, features, at)
            }
            assert pushed == len(keys)
        for (table, key), row in plain.learned.items():
            near(client.pull(table, np.array([key], np.uint64))[0], row)


def pair_keys(first: Any, second: Any, name: str) -> npt.NDArray[np.uint64]:
    """The keys of a cross: hashes of the bytes of both keys."""
    pairs = np.stack([first, second], axis=1).astype("<u8")
    return native.hash_strings(np.arange(len(pairs) + 1) * 16, pairs.view(np.uint8).ravel(), native.slot_salt(name))


def test_crosses_are_packed_and_learn_as_slots_of_pairs(tmp_path: Path) -> None:
    plain = learnable_app()
    crosses = (Cross("user_id", "video_id", table="pairs", dim=3), Cross("user_id", "city", table="pairs", dim=3))
    slots = (*plain.features.slots, Slot("city", "user", dim=8, default=0))
    app = replace(plain, features=replace(plain.features, slots=slots, derived=crosses))
    settings = {"tables": {"optimizer": "sgd", "rate": _RATE}}
    folder = learnable_folder(tmp_path, settings, app)
    with local_client(folder) as client:
        client.restore(Epoch(1), None)
        rows = Rows(app, client, _STEP_ROWS, folder.settings.tables)
        columns = steps_of(folder, 3)[0]
        user_ids, videos = columns.user.slots["user_id"].keys, columns.item.slots["video_id"].keys
        of_item = pair_keys(user_ids[columns.request_index], videos, "user_id_x_video_id")
        of_user = pair_keys(user_ids, columns.user.slots["city"].keys, "user_id_x_city")
        packed = rows.pack(columns)
        learned = []
        for keys, side, place in ((of_item, 2, app.features.pack.item.flat), (of_user, 0, app.features.pack.user.flat)):
            (column,) = (one for one in place if one.of)
            at = slice(column.at, column.at + 3)
            near(packed.sides[side][: len(keys), at], client.pull("pairs", keys))
            learned.append((keys, side, at, client.pull("pairs", keys)))
        given = gradients_like(packed, 1)
        rows.push(columns, given, T_MS, 1.0)
        for keys, side, at, before in learned:
            sums = np.zeros_like(before)
            same = keys[:, None] == keys[None, :]
            sums = same.astype(np.float32) @ given[side][: len(keys), at]
            near(client.pull("pairs", keys), before - _RATE * sums)


def test_a_threshold_may_be_that_of_a_cross(tmp_path: Path) -> None:
    plain = learnable_app()
    features = replace(plain.features, derived=(Cross("user_id", "video_id", dim=8, table="pairs"),))
    app = replace(plain, features=features)
    admission = {"admission_window_ms": 3_600_000, "admission_counts": {"user_id_x_video_id": 3}}
    folder = learnable_folder(tmp_path, {"tables": admission}, app)
    with local_client(folder) as client:
        client.restore(Epoch(1), None)
        rows = Rows(app, client, _STEP_ROWS, folder.settings.tables)
        columns = steps_of(folder, 3)[0]
        known = []
        for number in range(3):
            packed = rows.pack(columns)
            rows.push(columns, gradients_like(packed, number), T_MS, 1.0)
            known.append(keys_with_rows(client)["pairs"])
        assert known[2] > known[0]


def _used(side: PackSide, column: Any, features: FeatureColumns, at: int) -> list[int]:
    keys: list[int] = features_at(features, at)[column.name][0]
    return keys[-side.sequence_length :] if column.pooling == "sequence" else keys


def test_targets_say_what_of_each_label_is_learned_and_what_was_thinned(tmp_path: Path) -> None:
    assert TARGETS == ("target", "learn", "correct", "learned_as")
    with rows_of_tables(tmp_path) as (folder, _, rows):
        columns = steps_of(folder, 3)[0]
        targets = rows.pack(columns).targets
        assert targets.shape == (_STEP_ROWS, 2, 4)
        assert not targets[len(columns) :].any()
        for row in range(len(columns)):
            for label in range(2):
                positive, learn, correct, log_rate = targets[row, label]
                assert positive == (columns.positive[row] >> label & 1)
                assert learn == (columns.weights[row, label] if columns.learn[row] >> label & 1 else 0)
                assert correct == (columns.weights[row, label] if columns.correct[row] >> label & 1 else 0)
                assert log_rate == pytest.approx(np.log(columns.rates[row, label]))


def test_a_label_learns_from_rows_of_which_the_one_that_it_follows_is_known_by_this_row_or_an_earlier_one(
    tmp_path: Path,
) -> None:
    with rows_of_tables(tmp_path) as (folder, client, rows):
        click, bought = folder.app.labels
        app = replace(folder.app, labels=(click, replace(bought, follows=click.name)))
        following = Rows(app, client, _STEP_ROWS)
        columns = steps_of(folder, 3)[0]
        known = np.arange(len(columns), dtype=np.uint32) % 3 == 0
        before = rows.pack(columns).targets[: len(columns)]
        after = following.pack(replace(columns, known=known.astype(np.uint32))).targets[: len(columns)]
        np.testing.assert_array_equal(after[known], before[known])
        np.testing.assert_array_equal(after[~known][:, 0], before[~known][:, 0])
        assert not after[~known][:, 1, 1:3].any()
        assert before[~known][:, 1, 1:3].any()
        # Without marks of earlier rows, only the row itself says it.
        np.testing.assert_array_equal(columns.known, columns.positive)


def test_the_loss_of_a_label_weighs_as_much_as_it_says(tmp_path: Path) -> None:
    with rows_of_tables(tmp_path) as (folder, client, rows):
        labels = (folder.app.labels[0], replace(folder.app.labels[1], loss_weight=2.5))
        heavy = Rows(replace(folder.app, labels=labels), client, _STEP_ROWS)
        columns = steps_of(folder, 3)[0]
        before, after = rows.pack(columns).targets, heavy.pack(columns).targets
        np.testing.assert_allclose(after[:, 1, 1:3], 2.5 * before[:, 1, 1:3], rtol=1e-6)
        np.testing.assert_array_equal(after[:, 0], before[:, 0])
        np.testing.assert_array_equal(after[:, 1, [0, 3]], before[:, 1, [0, 3]])


def test_keys_get_a_row_once_they_were_seen_as_often_as_is_set(tmp_path: Path) -> None:
    admission = {"admission_window_ms": 3_600_000, "admission_count": 3}
    with rows_of_tables(tmp_path, **admission) as (folder, client, rows):
        columns = steps_of(folder, 3)[0]
        # One key once a step: the video of the first row, unless others have it too.
        keys, counts = np.unique(columns.item.slots["video_id"].keys, return_counts=True)
        history = columns.user.slots["history"].keys
        once = keys[(counts == 1) & ~np.isin(keys, history) & ~np.isin(keys, columns.user.slots["user_id"].keys)][:1]
        first = client.pull("main", once).copy()
        changed = []
        for _ in range(4):
            packed = rows.pack(columns)
            rows.push(columns, tuple(np.ones_like(one) for one in packed.sides), T_MS, 1.0)
            changed.append(bool((client.pull("main", once) != first).any()))
        assert changed == [False, False, True, True]


def with_users_apart(columns: StepColumns) -> StepColumns:
    """A step whose users' keys are no video's, as when they are hashed."""
    slots = dict(columns.user.slots)
    slots["user_id"] = replace(slots["user_id"], keys=slots["user_id"].keys + np.uint64(1 << 40))
    return replace(columns, user=replace(columns.user, slots=slots))


def keys_with_rows(client: PsClient) -> dict[str, int]:
    return {name: table.keys for name, table in client.stats()[0].tables.items()}


@pytest.mark.parametrize(
    ("tables", "main", "tags"),
    [
        ({"admission_counts": {"tags": 15}}, {"user_id", "video_id", "history"}, set()),
        ({"admission_counts": {"user_id": 15}}, {"video_id", "history"}, {"tags"}),
        ({"admission_counts": {"video_id": 15}}, {"user_id"}, {"tags"}),
        ({"admission_count": 15, "admission_counts": {"video_id": 1}}, {"video_id", "history"}, set()),
        ({"admission_count": 15, "admission_counts": {"tags": 1, "user_id": 1}}, {"user_id"}, {"tags"}),
    ],
)
def test_a_threshold_may_be_of_one_slot_whose_keys_alone_wait(
    tmp_path: Path, tables: dict[str, Any], main: set[str], tags: set[str]
) -> None:
    """In a table of its own, in one that it shares; and a history goes by the slot whose keys it has."""
    with rows_of_tables(tmp_path, admission_window_ms=3_600_000, **tables) as (folder, client, rows):
        columns = with_users_apart(steps_of(folder, 3)[0])
        slots = {**columns.user.slots, **columns.item.slots}
        every = {name: np.unique(slots[name].keys) for name in slots}
        assert np.isin(every["tags"], every["video_id"]).any()  # one key in both tables, for each has its own rows
        for table, of in (("main", ("user_id", "video_id", "history")), ("tags", ("tags",))):
            assert np.unique(np.concatenate([slots[name].keys for name in of]), return_counts=True)[1].max() < 15, table
        packed = rows.pack(columns)
        rows.push(columns, tuple(np.ones_like(one) for one in packed.sides), T_MS, 1.0)
        expected = {
            table: len(np.unique(np.concatenate([np.zeros(0, np.uint64), *(every[name] for name in names)])))
            for table, names in (("main", main), ("tags", tags))
        }
        assert keys_with_rows(client) == expected


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"admission_counts": {"vide_id": 2}}, r"'vide_id' is not a slot[\s\S]*user_id, video_id, tags"),
        ({"admission_counts": {"history": 2}}, r"'history' is not a slot[\s\S]*keys_of"),
        ({"admission_counts": {"tags": 2}, "admission_window_ms": 0}, r"admission_window_ms is 0[\s\S]*86400000"),
        ({"admission_count": 2, "admission_window_ms": 0}, r"admission_window_ms is 0"),
    ],
)
def test_thresholds_that_cannot_be_are_refused_before_anything_is_learned(
    tmp_path: Path, tables: dict[str, Any], said: str
) -> None:
    with (
        pytest.raises(ConfigError, match=said),
        rows_of_tables(tmp_path, **{"admission_window_ms": 1_000, **tables}),
    ):
        pass


_SCALES = (1.0, 0.5)


def rows_over_steps(path: Path, **tables: Any) -> list[dict[str, Floats]]:
    """Rows of all keys there may be, at first and after each of two steps, whose gradients hang on no row."""
    path.mkdir()
    vocabulary = np.arange(VOCABULARY, dtype=np.uint64)
    with rows_of_tables(path, **tables) as (folder, client, rows):

        def now() -> dict[str, Floats]:
            return {table: client.pull(table, vocabulary).astype(np.float64) for table in client.dims}

        found = [now()]
        for number, (columns, scale) in enumerate(zip(steps_of(folder, 4), _SCALES, strict=False)):
            rows.push(columns, gradients_like(rows.pack(columns), number), T_MS, scale)
            found.append(now())
        assert len(found) == 1 + len(_SCALES)
        return found


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_weight_decay_pulls_rows_of_a_step_and_no_others_to_zero(tmp_path: Path, optimizer: str) -> None:
    """By rate * decay * row beside what gradients teach: with sgd, descent on the loss and decay / 2 * row ** 2."""
    decay = 0.3
    free = rows_over_steps(tmp_path / "free", optimizer=optimizer)
    decayed = rows_over_steps(tmp_path / "decayed", optimizer=optimizer, weight_decay=decay)
    expected = dict(free[0])
    for number, scale in enumerate(_SCALES):
        for table, before in expected.items():
            taught = free[number + 1][table] - free[number][table]
            is_in_step = (taught != 0).any(axis=1)
            assert 0 < is_in_step.sum() < VOCABULARY
            expected[table] = before + taught - is_in_step[:, None] * (_RATE * scale * decay) * before
            near(decayed[number + 1][table], expected[table])
            was = decayed[number][table]
            np.testing.assert_array_equal(decayed[number + 1][table][~is_in_step], was[~is_in_step])
    # What it does is no rounding.
    assert np.abs(decayed[-1]["main"] - free[-1]["main"]).max() > 1e-2


def test_rows_do_not_decay_where_nothing_is_said_and_ftrl_has_no_decay(tmp_path: Path) -> None:
    assert {one.optimizer.weight_decay for one in declared(tmp_path) if one.optimizer is not None} == {0.0}
    assert {one.optimizer.weight_decay for one in declared(tmp_path, weight_decay=0.2) if one.optimizer} == {0.2}
    with pytest.raises(ConfigError, match=r"weight_decay is 0\.2[\s\S]*another optimizer"):
        declared(tmp_path, weight_decay=0.2, optimizer="ftrl")


def declared(path: Path, **tables: Any) -> tuple[TableOptions, ...]:
    folder = learnable_folder(path, {"tables": tables})
    return declared_tables(folder.app.tables, folder.settings.tables)

"""Predictions that wait in versions: whatever is killed, the next process scores what one process would have scored."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streamlearn.errors import BadRecord, VersionDefect
from streamlearn.features import Segment
from streamlearn.settings import ValidationSettings
from streamlearn.trainer.validation import ProgressiveValidation, WindowScore
from streamlearn.trainer.validation.prediction_tensors import state_of
from streamlearn.versions import (
    Chain,
    Committed,
    Cut,
    Head,
    Store,
    VersionRef,
    VersionWriter,
    compact,
    open_store,
    write_revert,
)
from streamlearn.versions.format.manifest import TableRecord
from streamlearn.versions.format.predictions import waiting_in
from streamlearn.versions.upkeep.verification import verify
from tests.campaign import examples
from tests.trainer.validation.predictions import BEGIN_MS, Row, app_of, step

SETTINGS = ValidationSettings(windows_s=[10, 30], summary_s=30)
_NUMBERS = itertools.count()


@dataclass
class Life:
    """A validation with the versions of its model; each process continues from the newest version."""

    found: ValidationSettings = SETTINGS
    app: Any = field(default_factory=app_of)
    store: Store = field(default_factory=lambda: open_store(f"memory://waiting-{next(_NUMBERS)}"))
    version: int = 0
    parent: VersionRef | None = None
    watermark_ms: int | None = None

    def __post_init__(self) -> None:
        self.validation = self._born()

    def _born(self) -> ProgressiveValidation:
        return ProgressiveValidation(self.app, self.found, is_versioned=True)

    def add(self, rows: Sequence[Row]) -> None:
        self.validation.add(step(rows))

    def close(self, watermark_ms: int) -> list[WindowScore]:
        self.watermark_ms = watermark_ms
        return self.validation.close(watermark_ms)

    def publish(self, *, is_lost: bool = False, without: tuple[str, ...] = ()) -> Committed | None:
        """Write a version, or fail to; `without` some columns."""
        note = self.validation.note()
        if is_lost:
            return None
        self.version += 1
        writer = VersionWriter(self.store, _head(self.version, self.parent))
        writer.add_rows([])
        tensors = self.validation.tensors(note, self.watermark_ms)
        writer.add_predictions({name: one for name, one in tensors.items() if name.split(".")[-1] not in without})
        done = writer.finish(Cut())
        self.validation.committed(note)
        self.parent = done.ref
        return done

    def kill(self) -> None:
        self.validation = self._born()
        if self.version:
            saved = waiting_in(self.store, Chain.find(self.store, "shown").links)
            assert saved is not None
            self.watermark_ms = self.validation.load(saved)


def _head(version: int, parent: VersionRef | None) -> Head:
    return Head(
        model="shown", run=1, version=version, kind="delta" if parent else "base", parent=parent, fingerprint="f",
        windows="w", tables=(TableRecord(name="main", dim=1, initial_range=0.1),),
    )  # fmt: skip


_ROW = st.builds(
    Row,
    identity=st.integers(0, 40),
    time_ms=st.just(0),
    logits=st.tuples(st.sampled_from([-2.0, 0.0, 0.5]), st.sampled_from([-1.0, 1.0])),
    learn=st.integers(0, 3),
    correct=st.integers(0, 3),
    positive=st.integers(0, 3),
)
# Each begins with rows, and moves the watermark by so much. Then a version is written or fails, or the process is
# killed, or a base is written.
_EVENT = st.tuples(
    st.lists(_ROW, max_size=8), st.integers(0, 30), st.sampled_from(["", "publish", "lose", "kill", "base"])
)


@settings(max_examples=examples(15), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(_EVENT, max_size=14))
def test_a_process_that_is_killed_is_followed_by_one_that_scores_the_same_windows_once(
    events: list[tuple[list[Row], int, str]],
) -> None:
    life, whole = Life(), ProgressiveValidation(app_of(), SETTINGS)
    expected: list[WindowScore] = []
    scores: list[WindowScore] = []
    since: list[tuple[list[Row], int]] = []  # what was learned since the newest version
    unsaved: list[WindowScore] = []
    at_s = 0
    for rows, more_s, then in events:
        timed = [Row(**vars(row) | {"time_ms": BEGIN_MS + row.identity * 1_700}) for row in rows]
        at_s += more_s
        watermark_ms = BEGIN_MS + at_s * 1_000
        if timed:
            life.add(timed)
            whole.add(step(timed))
        since.append((timed, watermark_ms))
        unsaved += life.close(watermark_ms)
        expected += whole.close(watermark_ms)
        if then in ("publish", "base") and life.publish():
            scores, unsaved, since = scores + unsaved, [], []
        if then == "base":
            compact(life.store, "shown")
        if then == "lose":
            life.publish(is_lost=True)
        if then == "kill":
            life.kill()
            unsaved = []
            for again, again_ms in since:
                if again:
                    life.add(again)
                unsaved += life.close(again_ms)
    assert scores + unsaved == expected
    assert life.validation.summary() == whole.summary()


def rows_of(begin: int, count: int, **more: Any) -> list[Row]:
    return [Row(number, BEGIN_MS, (0.5, -0.5), learn=1, **more) for number in range(begin, begin + count)]


def test_a_delta_holds_only_what_came_since_the_version_before_it_and_a_base_all_that_waits() -> None:
    life, sizes = Life(), []
    for number in range(4):
        life.add(rows_of(number * 2_000, 2_000))
        done = life.publish()
        assert done is not None
        sizes.append(sum(entry.bytes for entry in done.manifest.of_kind("predictions")))
    life.publish()
    # 26 bytes a row, and one for its segment.
    assert all(27 * 2_000 < size < 27 * 2_000 + 12_288 for size in sizes), sizes
    base = compact(life.store, "shown")
    saved = waiting_in(life.store, Chain.find(life.store, "shown").links)
    assert base.is_new
    assert saved is not None
    assert sorted(saved["click.rows.identity"].tolist()) == list(range(8_000))


def test_versions_of_an_earlier_release_that_know_no_answers_are_continued_and_compacted() -> None:
    life = Life()
    for number in range(2):
        life.add(rows_of(number * 100, 100))
        life.publish(without=("served", "user"))
    life.kill()
    life.add(rows_of(200, 100))
    life.publish()
    for _ in range(2):
        life.kill()
        compact(life.store, "shown")
    life.add(rows_of(300, 100))
    life.publish()
    life.kill()
    saved = waiting_in(life.store, Chain.find(life.store, "shown").links)
    assert saved is not None
    assert sorted(saved["click.rows.identity"].tolist()) == list(range(400))
    assert len(saved["click.rows.served"]) == len(saved["click.rows.user"]) == 400
    assert verify(life.store, "shown", everything=True).not_finite == ()  # NaN, where no node answered, is not reported
    closed = [one for one in life.close(BEGIN_MS + 10_000_000) if not one.segment and one.label == "click"]
    assert {one.rows for one in closed} == {400}


def test_versions_hold_at_most_rows_max_predictions_even_if_none_was_written_for_long() -> None:
    life = Life(ValidationSettings(windows_s=[10, 30], rows_max=2_048))
    life.publish()
    for number in range(40):
        life.add(rows_of(number * 500, 500))
        life.publish(is_lost=True)
    note = life.validation.note()
    assert sum(len(run) for label in note.labels for runs in label.runs for run in runs) <= 2_048
    life.publish()
    life.add(rows_of(20_000, 600))
    life.publish()
    life.kill()
    assert life.validation.held_rows <= 2_048
    (score, *_) = life.close(BEGIN_MS + 60_000)
    # Each of the rows that stay counts for those that went.
    assert score.rows / score.kept == pytest.approx(20_600, rel=0.2)
    assert not score.is_complete


def test_a_revert_keeps_the_predictions_of_the_versions_that_it_takes_back() -> None:
    life = Life()
    for begin in (0, 3):
        life.add(rows_of(begin, 3))
        life.publish()
    done = write_revert(life.store, "shown", to=1, run=1)
    life.version, life.parent = done.manifest.version, done.ref
    life.kill()
    assert life.validation.held_rows == 6
    life.add(rows_of(6, 3))
    life.publish()
    compact(life.store, "shown", done.manifest.version)
    life.kill()
    assert life.validation.held_rows == 9


def test_the_text_of_a_segment_is_scored_by_its_name_though_the_segments_of_the_application_changed() -> None:
    life = Life()
    life.add([*rows_of(0, 3), Row(3, BEGIN_MS, learn=1, positive=1)])
    life.publish()
    features = replace(life.app.features, segments=(Segment("place"), Segment("page")))
    life.app = replace(life.app, features=features)
    life.kill()
    life.publish()
    life.kill()
    scores = {(one.segment, one.text): one.rows for one in life.close(BEGIN_MS + 30_000) if one.label == "click"}
    assert scores == {
        ("", ""): 4, ("place", "(other)"): 4, ("page", "home"): 2, ("page", "search"): 1, ("page", "mail"): 1
    }  # fmt: skip


def test_windows_of_other_widths_begin_afresh() -> None:
    life = Life()
    life.add(rows_of(0, 3))
    life.publish()
    life.found = ValidationSettings(windows_s=[5, 30])
    life.kill()
    assert life.validation.held_rows == 0
    life.add(rows_of(3, 2))
    life.publish()
    life.kill()
    assert life.validation.held_rows == 2


def test_what_cannot_be_read_is_refused_by_name() -> None:
    life = Life()
    life.add(rows_of(0, 3))
    tensors = life.validation.tensors(life.validation.note(), None)
    with pytest.raises(BadRecord, match="predictions of this version cannot be read"):
        state_of(tensors | {"state": np.frombuffer(b"{", np.uint8)})
    writer = VersionWriter(life.store, _head(1, None))
    writer.add_rows([])
    writer.add_predictions(tensors | {"click.rows.counts": np.array([2])})
    done = writer.finish(Cut())
    with pytest.raises(VersionDefect, match="predictions do not fit together"):
        waiting_in(life.store, [done])

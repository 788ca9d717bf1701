"""The testing module itself: the manual clock, waiting, small data."""

from __future__ import annotations

import numpy as np
import pytest

from streamlearn.apps import App
from streamlearn.features import Dense, FeatureSpec, Label, LabelGroup, Segment, Slot
from streamlearn.samples import SampleCodec
from streamlearn.settings.events import SampleSettings
from streamlearn.testing import ManualClock, small_app, small_batch, small_impression, wait_until


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(wall_ms=1_000)
    assert (clock.wall_ms(), clock.monotonic_s()) == (1_000, 0.0)
    clock.sleep(0.25)
    clock.sleep(0)
    assert (clock.wall_ms(), clock.monotonic_s()) == (1_250, 0.25)


def test_a_manual_clock_never_goes_back() -> None:
    with pytest.raises(AssertionError):
        ManualClock().sleep(-1)


def test_waiting_gives_the_first_truthy_value() -> None:
    answers = iter([0, None, "", 7, 8])
    assert wait_until(lambda: next(answers), "seven") == 7


def test_waiting_past_its_deadline_says_for_what() -> None:
    with pytest.raises(AssertionError, match=r"^waited 0\.01 s for the moon$"):
        wait_until(lambda: False, "the moon", deadline_s=0.01)


def test_a_small_impression_is_the_same_for_the_same_seed() -> None:
    assert small_impression(3) == small_impression(3)
    assert small_impression(3) != small_impression(4)
    assert len(small_impression(3, items=5)["items"]) == 5


def lean_app() -> App:
    features = FeatureSpec(slots=(Slot("sku", "item", value="str"),), item_id="sku")
    return App("lean", features, (LabelGroup("g", 1, 1),), (Label("click", "click", "g"),))


def wide_app() -> App:
    features = FeatureSpec(
        slots=(
            Slot("sku", "item"),
            Slot("words", "item", multi=True, pooling="weighted"),
            Slot("likes", "user", multi=True, pooling="weighted"),
            Slot("seen", "user", multi=True, pooling="sequence", length=2),
            Slot("seen_for_s", "user", multi=True, pooling="sequence", length=2),
        ),
        dense=(Dense("a", "user", width=3), Dense("b", "item", width=2)),
        item_id="sku",
        segments=(Segment("page"),),
    )
    labels = (Label("click", "click", "g"), Label("bought", "buy", "g", sample_rate=0.1))
    return App("wide", features, (LabelGroup("g", 1, 9),), labels)


@pytest.mark.parametrize("app", [small_app(), lean_app(), wide_app()], ids=lambda app: app.name)
@pytest.mark.parametrize(("requests", "rows"), [(0, 0), (1, 0), (1, 1), (7, 40)])
def test_a_small_batch_fits_any_application(app: App, requests: int, rows: int) -> None:
    batch = small_batch(app, requests, rows, seed=5)
    codec = SampleCodec(app, SampleSettings())
    message = codec.encode(batch)
    assert (len(batch.requests), len(batch)) == (requests, rows)
    assert codec.encode(small_batch(app, requests, rows, seed=5)) == message
    assert len(codec.decode(message)) == rows
    for label in batch.labels:
        assert not np.any(label.value & ~label.settles & 1)


def test_the_sequences_of_a_small_batch_are_columns_of_one_history() -> None:
    slots = small_batch(wide_app(), 9, 9).user.slots
    first, second = slots["seen"].offsets, slots["seen_for_s"].offsets
    assert first is not None
    assert second is not None
    assert first.tolist() == second.tolist()
    assert len(slots["seen"].keys) == len(slots["seen_for_s"].keys) > 0

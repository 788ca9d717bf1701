"""Labels and their groups: what is refused, and what the window settings id notices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamlearn.apps import App
from streamlearn.errors import SpecError
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot, window_settings_id

FEATURES = FeatureSpec(slots=(Slot("video_id", "item"),), item_id="video_id")
FAST = LabelGroup("fast", wait_s=60, window_s=600)
CLICK = Label("click", "click", "fast")
ORDER = Label("order", "order", "slow", follows="click")
SLOW = LabelGroup("slow", wait_s=600, window_s=3_600)


def app_of(groups: tuple[LabelGroup, ...] = (FAST,), labels: tuple[Label, ...] = (CLICK,)) -> App:
    return App("shop", FEATURES, groups, labels)


@pytest.mark.parametrize(
    ("groups", "labels", "named", "advice"),
    [
        pytest.param((FAST, FAST), (CLICK,), "'fast'", "its own name", id="two groups of one name"),
        pytest.param((FAST,), (CLICK, CLICK), "'click'", "its own name", id="two labels of one name"),
        pytest.param((FAST,), (), "no labels", "at least one", id="no labels"),
        pytest.param((), (CLICK,), "'fast', which is not declared", "none", id="no groups"),
        pytest.param((FAST,), (replace(CLICK, group="slow"),), "'slow'", "the groups are fast", id="an unknown group"),
        pytest.param(
            (FAST, replace(FAST, name="slow")), (CLICK,), "'slow' has no labels", "remove it", id="idle group"
        ),
        pytest.param((replace(FAST, name="Fast"),), (CLICK,), "'Fast'", "lower-case", id="a group's name"),
        pytest.param((FAST,), (replace(CLICK, name="Click"),), "'Click'", "lower-case", id="a label's name"),
        pytest.param((FAST,), (replace(CLICK, action="a b"),), "'a b'", "lower-case", id="an action's name"),
        pytest.param((FAST,), (replace(CLICK, name="served_x"),), "'served_x'", "reserved", id="a reserved name"),
        pytest.param((replace(FAST, wait_s=0),), (CLICK,), "wait_s is 0", "from 1", id="no wait"),
        pytest.param((replace(FAST, window_s=90 * 86_400 + 1),), (CLICK,), "window_s is 7776001", "7776000", id="long"),
        pytest.param(
            (replace(FAST, wait_s=601),),
            (CLICK,),
            "wait_s 601 is longer than window_s 600",
            "same value",
            id="wait",
        ),
        pytest.param((replace(FAST, wait_s=True),), (CLICK,), "wait_s is True", "whole number", id="a wait of True"),
        pytest.param((FAST,), (replace(CLICK, sample_rate=0.0),), "is 0.0", "above 0", id="a rate of 0"),
        pytest.param((FAST,), (replace(CLICK, sample_rate=1.1),), "is 1.1", "at most 1", id="a rate above 1"),
        pytest.param((FAST,), (replace(CLICK, sample_rate=float("nan")),), "is nan", "above 0", id="nan"),
        pytest.param((FAST,), (replace(CLICK, sample_rate=True),), "is True", "above 0", id="a rate of True"),
        pytest.param((FAST,), (replace(CLICK, loss_weight=0),), "is 0", "above 0", id="a loss_weight of 0"),
        pytest.param((FAST,), (replace(CLICK, loss_weight=True),), "is True", "above 0", id="a loss_weight of True"),
        pytest.param((FAST,), (replace(CLICK, loss_weight=float("inf")),), "is inf", "at most", id="inf"),
        pytest.param((FAST, SLOW), (CLICK, replace(ORDER, follows="view")), "'view'", "are click, order", id="of none"),
        pytest.param(
            (FAST, SLOW), (CLICK, replace(ORDER, follows="order")), "order follows order", "none", id="of itself"
        ),
        pytest.param(
            (FAST, replace(SLOW, wait_s=599)),
            (CLICK, ORDER),
            "'order' is settled 599 s after the impression, but 'click', which it follows, is final only after 600 s",
            "a wait_s of at least 600",
            id="before the other is final",
        ),
        pytest.param(
            (FAST, SLOW),
            (replace(CLICK, follows="order"), ORDER),
            "click follows order follows click",
            "leave out its `follows`",
            id="in a circle",
        ),
    ],
)
def test_a_contradiction_is_refused_by_name_and_with_advice(groups: Any, labels: Any, named: str, advice: str) -> None:
    with pytest.raises(SpecError) as caught:
        app_of(groups, labels)
    assert named in caught.value.message
    assert advice in caught.value.help


def test_a_rate_that_is_no_number_is_refused() -> None:
    rate: Any = "0.5"
    with pytest.raises(SpecError, match=r"'click': sample_rate is '0\.5'"):
        app_of(labels=(replace(CLICK, sample_rate=rate),))


def test_a_window_of_its_wait_alone_is_allowed() -> None:
    assert app_of((LabelGroup("fast", 600, 600),)).groups[0].wait_s == 600


def test_the_window_settings_id_of_fixed_groups_never_changes() -> None:
    """A change here says that ingest's state and samples from before no longer fit."""
    assert window_settings_id((FAST,), (CLICK,)) == "9fb0da800588f02e"
    assert app_of().window_settings == window_settings_id((FAST,), (CLICK,))


@pytest.mark.parametrize(
    ("groups", "labels"),
    [
        pytest.param((replace(FAST, name="quick"),), (replace(CLICK, group="quick"),), id="a group's name"),
        pytest.param((replace(FAST, wait_s=61),), (CLICK,), id="wait_s"),
        pytest.param((replace(FAST, window_s=601),), (CLICK,), id="window_s"),
        pytest.param((FAST,), (replace(CLICK, name="tap"),), id="a label's name"),
        pytest.param((FAST,), (replace(CLICK, action="tap"),), id="action"),
        pytest.param((FAST,), (replace(CLICK, sample_rate=0.5),), id="sample_rate"),
        pytest.param((FAST,), (CLICK, Label("view", "view", "fast")), id="a label more"),
    ],
)
def test_the_window_settings_id_changes_with_all_a_join_depends_on(groups: Any, labels: Any) -> None:
    assert window_settings_id(groups, labels) != window_settings_id((FAST,), (CLICK,))


def test_equal_labels_have_one_window_settings_id_however_their_rate_is_written() -> None:
    whole, real = replace(CLICK, sample_rate=1), replace(CLICK, sample_rate=1.0)
    assert window_settings_id((FAST,), (whole,)) == window_settings_id((FAST,), (real,))


def test_samples_are_the_same_whatever_labels_follow_or_weigh_and_models_only_if_they_follow_the_same() -> None:
    alone = replace(ORDER, follows=None)
    plain, following = app_of((FAST, SLOW), (CLICK, alone)), app_of((FAST, SLOW), (CLICK, ORDER))
    heavy = app_of((FAST, SLOW), (replace(CLICK, loss_weight=2.0), alone))
    for other in (following, heavy):
        assert (other.window_settings, other.samples_fingerprint) == (plain.window_settings, plain.samples_fingerprint)
    assert heavy.model_fingerprint == plain.model_fingerprint != following.model_fingerprint
    assert [output.followed for output in (*plain.outputs, *following.outputs)] == [None, None, None, 0]


def test_windows_and_features_are_told_apart() -> None:
    slower = app_of((replace(FAST, wait_s=61),))
    assert slower.features.fingerprint == app_of().features.fingerprint
    assert slower.window_settings != app_of().window_settings
    assert slower.samples_fingerprint == app_of().samples_fingerprint
    assert slower.model_fingerprint == app_of().model_fingerprint

"""Weights that a release adds to a ready-made model: versions of the release before go on with the same scores."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from streamlearn.errors import UsageError
from streamlearn.models import DcnV2, DeepFm
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.trainer.learner import Learner
from tests.trainer.stream import learnable_app
from tests.trainer.test_learner import packed

_APP = learnable_app()


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
@pytest.mark.parametrize("kind", [DeepFm, DcnV2])
def test_a_model_goes_on_from_weights_of_before_it_had_pairs(kind: Any, optimizer: str) -> None:
    settings = msgspec.convert({"device": "cpu", "optimizer": optimizer}, TrainerSettings)
    one, other = (Learner(_APP, kind(hidden=(4, 3), pairs=pairs), settings) for pairs in (False, True))
    lacking = sorted(other.shapes.keys() - one.shapes.keys())
    assert lacking == ["mlp_0_pairs_both", "mlp_0_pairs_user"]
    begun = other.optimizer_state()
    for seed in range(3):
        one.learn(packed(seed))
    other.load(one.dense(), one.optimizer_state())
    before, after = one.dense(), other.dense()
    np.testing.assert_allclose(other.score(packed(3)), one.score(packed(3)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(other.score(packed(3), other.end_to_end(before)), other.score(packed(3)))
    assert other.steps == one.steps
    for name, number in one.optimizer_state().items():
        if name.startswith("slot"):
            state, first = other.named(other.optimizer_state()[name]), other.named(begun[name])
            for weight, learned in one.named(number).items():
                np.testing.assert_array_equal(state[weight], learned)
            assert all(np.array_equal(state[weight], first[weight]) for weight in lacking)
    assert all(not after[weight].any() for weight in lacking)
    other.learn(packed(3))
    assert all(other.dense()[weight].any() for weight in lacking)
    with pytest.raises(UsageError, match="has shape None"):
        other.load({name: weight for name, weight in before.items() if name != "bias"}, one.optimizer_state())

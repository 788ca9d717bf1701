"""The protocol of models, and that reading it costs no TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from streamlearn.features import FeatureSpec
from streamlearn.models import Model, PackedSide
from streamlearn.testing import small_app


class Constant:
    """The least a model can be."""

    def build(self, features: FeatureSpec, labels: Sequence[str], seed: int) -> Sequence[Any]:
        return [[float(seed)] * len(labels)]

    def user(self, weights: Sequence[Any], inputs: PackedSide) -> PackedSide:
        return PackedSide(inputs.flat, None)

    def score(self, weights: Sequence[Any], user: PackedSide, user_index: Any, inputs: PackedSide) -> Any:
        return [weights[0] for _ in user_index]


def test_whatever_has_the_three_functions_is_a_model() -> None:
    model: Model = Constant()
    assert isinstance(model, Model)
    weights = model.build(small_app().features, ["click", "bought"], 3)
    user = model.user(weights, PackedSide([[1.0]], None))
    assert model.score(weights, user, [0, 0], PackedSide(None, None)) == [[3.0, 3.0], [3.0, 3.0]]


def test_whatever_lacks_one_is_none() -> None:
    class Half:
        def build(self) -> None: ...

        def user(self) -> None: ...

    assert not isinstance(Half(), Model)


def test_what_every_process_imports_loads_nothing_heavy() -> None:
    code = (
        "import json, sys, streamlearn, streamlearn.models, streamlearn.apps, streamlearn.events, "
        "streamlearn.samples, streamlearn.telemetry, streamlearn.testing, streamlearn.topics;"
        "heavy = ('tensorflow', 'apache_beam', 'kafka', 'redis', 'fsspec', 'pyarrow', 'prometheus_client');"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert json.loads(ended.stdout) == []

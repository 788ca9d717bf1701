"""Which model an application chose, and what is no model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import ConfigError, SpecError
from streamlearn.models import DeepFm, Model, model_of
from streamlearn.models.chosen import READY_MADE
from streamlearn.settings import Settings
from streamlearn.settings.trainer import TrainerSettings
from streamlearn.testing import small_app, small_folder

_OWN = """
from streamlearn.models import DeepFm, PackedSide

class Constant:
    def __init__(self, number=0.0):
        self.number = number
    def build(self, features, labels, seed):
        return []
    def user(self, weights, inputs):
        return PackedSide(None, None)
    def score(self, weights, user, user_index, inputs):
        return self.number

ready = Constant(3.0)
number = 7

def small():
    return DeepFm(hidden=(8,))

class Needs:
    def __init__(self, width): ...

class Scoreless:
    build = user = lambda self, *given: None

class Short(Constant):
    def score(self, weights, user): ...

class Fails(Constant):
    def __init__(self):
        raise RuntimeError("no such file")
"""


def folder(path: Path, model: str) -> AppFolder:
    app = small_app()
    (path / "model.py").write_text(_OWN)
    return small_folder(path, type(app)(app.name, app.features, app.groups, app.labels, model=model))


@pytest.mark.parametrize("name", READY_MADE)
def test_a_ready_made_model_is_chosen_by_its_name_and_works_on_one_of_everything(tmp_path: Path, name: str) -> None:
    chosen = folder(tmp_path, name)
    model = model_of(chosen)
    assert isinstance(model, Model)
    assert type(model).__name__ == READY_MADE[name][1]
    weights = model.build(chosen.app.features, [label.name for label in chosen.app.labels], 0)
    assert weights[-1].shape == (2,)


def test_a_class_a_function_or_a_model_beside_the_application_is_chosen(tmp_path: Path) -> None:
    assert model_of(folder(tmp_path, "model:Constant")).score([], None, None, None) == 0.0  # type: ignore[arg-type]
    assert model_of(folder(tmp_path, "model:ready")).score([], None, None, None) == 3.0  # type: ignore[arg-type]
    small = model_of(folder(tmp_path, "model:small"))
    assert isinstance(small, DeepFm)
    assert small.hidden == (8,)


@pytest.mark.parametrize(
    ("model", "said", "helped"),
    [
        ("dcn", "unknown ready-made model 'dcn'", "logistic, deepfm, dcn_v2, din"),
        ("model:Nobody", "has no Nobody", "model='model:Nobody'"),
        (
            "model:number",
            "model:number cannot be used as a model: its `build` is missing",
            "build(self, features, labels, seed)",
        ),
        ("model:Scoreless", "its `score` is missing", "score(self, weights, user, user_index, inputs)"),
        ("model:Short", "its `score` does not take 4 arguments", "Choose and write models"),
        ("model:Needs", "TypeError", "without arguments"),
        ("model:Fails", "RuntimeError: no such file", "without arguments"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, model: str, said: str, helped: str) -> None:
    with pytest.raises(SpecError) as refused:
        model_of(folder(tmp_path, model))
    assert said in refused.value.message
    assert helped in refused.value.help


def test_a_module_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no other\.py"):
        model_of(folder(tmp_path, "other:Model"))


@pytest.mark.parametrize("example", ["kuairand", "synthetic"])
def test_examples_choose_models_that_can_be_built(example: str) -> None:
    found = load_app(Path(__file__).parents[2] / "examples" / example)
    model = model_of(found)
    names = [label.name for label in found.app.labels]
    assert model.build(found.app.features, names, 0)[-1].shape == (len(names),)


def test_a_ready_made_model_computes_as_the_settings_say_and_an_own_one_decides_itself(tmp_path: Path) -> None:
    settings = Settings(trainer=TrainerSettings(compute="bfloat16"))
    chosen = model_of(small_folder(tmp_path, replace(small_app(), model="deepfm"), settings))
    assert getattr(chosen, "compute", "") == "bfloat16"
    with pytest.raises(SpecError, match="the application's own"):
        model_of(small_folder(tmp_path, replace(small_app(), model="own:Model"), settings))

"""Applications: how a folder becomes one, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import App, AppFolder, load_app
from streamlearn.errors import ConfigError, SpecError
from streamlearn.features import Calibration, FeatureSpec, Label, LabelGroup, Number, Slot
from streamlearn.settings import Settings
from streamlearn.settings.topics import TopicsSettings
from streamlearn.testing import small_app, small_folder
from streamlearn.topics import AccessSettings, WriterSettings, create_topic

DECLARES = """
from streamlearn.apps import App
from streamlearn.features import FeatureSpec, Label, LabelGroup, Slot

NAME = {name!r}
app = App(
    NAME,
    FeatureSpec(slots=(Slot("video_id", "item"),), item_id="video_id"),
    groups=(LabelGroup("fast", 60, 600),),
    labels=(Label("click", "click", "fast"),),
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(DECLARES.format(name="shop"))
    return tmp_path


def test_a_folder_becomes_an_application_with_its_settings(folder: Path) -> None:
    (folder / "app.toml").write_text("[events]\nlinger_ms = 7\nrecord_bytes_max = 2048\n")
    loaded = load_app(folder, ["events.linger_ms=9"])
    assert loaded.app.name == "shop"
    assert loaded.folder == folder
    assert (loaded.settings.events.linger_ms, loaded.settings.events.record_bytes_max) == (9, 2048)
    assert load_app(str(folder)).app == loaded.app


def test_a_folder_without_app_py_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no app\.py") as caught:
        load_app(tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "name the folder" in caught.value.help


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("1 / 0", "app.py:1 failed: ZeroDivisionError", id="fails"),
        pytest.param("def", "app.py failed: SyntaxError", id="no Python"),
        pytest.param("import no_such_package", "failed: ModuleNotFoundError", id="a missing package"),
        pytest.param("x = 1", "declares no application: `app` is NoneType", id="no app"),
        pytest.param("app = 'shop'", "declares no application: `app` is str", id="a wrong type"),
        pytest.param(DECLARES.format(name="My Shop"), "app name 'My Shop'", id="a contradiction"),
    ],
)
def test_an_app_py_at_fault_is_refused_and_forgotten(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "app.py").write_text(text)
    before = set(sys.modules)
    with pytest.raises(SpecError) as caught:
        load_app(tmp_path)
    assert said in caught.value.message
    assert caught.value.help
    assert not {name for name in set(sys.modules) - before if name.startswith("streamlearn_app_")}


@pytest.mark.parametrize("heavy", ["tensorflow", "apache_beam", "kafka"])
def test_an_app_py_that_loads_a_heavy_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heavy: str
) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / f"{heavy}.py").write_text("")
    (tmp_path / "app.py").write_text(f"import {heavy}\n" + DECLARES.format(name="shop"))
    monkeypatch.syspath_prepend(str(stubs))
    # Put back after the test, so that no stub and no missing package is left to others.
    for name in [name for name in sys.modules if name.partition(".")[0] == heavy]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, heavy, None)
    del sys.modules[heavy]
    with pytest.raises(SpecError, match=f"app.py loads {heavy}") as caught:
        load_app(tmp_path)
    assert "MODULE:CLASS" in caught.value.help


def test_app_toml_at_fault_is_refused_by_its_path(folder: Path) -> None:
    (folder / "app.toml").write_text("[events]\nlinger = 7\n")
    with pytest.raises(ConfigError, match=r"app\.toml: unknown setting"):
        load_app(folder)


def test_two_applications_of_one_process_do_not_meet(tmp_path: Path) -> None:
    loaded = []
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text(DECLARES.format(name=name))
        loaded.append(load_app(tmp_path / name))
    again = load_app(tmp_path / "left")
    assert [one.app.name for one in (*loaded, again)] == ["left", "right", "left"]
    loaded_names = [name for name in sys.modules if name.startswith("streamlearn_folder_")]
    names = {getattr(sys.modules[name], "NAME", "") for name in loaded_names}
    assert {"left", "right"} <= names


FEATURES = FeatureSpec(slots=(Slot("video_id", "item"),), item_id="video_id")


def app_of(name: str = "shop", model: str = "dcn_v2") -> App:
    return App(name, FEATURES, (LabelGroup("fast", 60, 600),), (Label("click", "click", "fast"),), model)


@pytest.mark.parametrize("model", ["dcn_v2", "model:MyModel", "models.din:Din_2"])
def test_a_model_is_a_ready_made_name_or_a_class_of_a_module(model: str) -> None:
    assert app_of(model=model).model == model


@pytest.mark.parametrize("model", ["", "DCN", "model:", ":MyModel", "a b", "model:My.Model", "model:A:B"])
def test_any_other_model_is_refused(model: str) -> None:
    with pytest.raises(SpecError, match="neither a ready-made model's name") as caught:
        app_of(model=model)
    assert "model:MyModel" in caught.value.help


@pytest.mark.parametrize("label", ["order", "seconds"])
def test_a_calibration_is_of_a_label_that_is_positive_or_negative(label: str) -> None:
    features = replace(FEATURES, derived=(Calibration(label, "video_id"),))
    labels = (Label("click", "click", "fast"), Label("seconds", "watch", "fast", number=Number(missing=0)))
    with pytest.raises(SpecError, match=f"calibration '{label}_by_video_id' is of '{label}'") as caught:
        App("shop", features, (LabelGroup("fast", 600, 600),), labels)
    assert "such labels are click" in caught.value.help


def test_a_label_has_one_isotonic_calibration() -> None:
    curve = Calibration("click", "video_id", method="isotonic")
    features = replace(FEATURES, derived=(curve, replace(curve, name="other", method="platt")))
    assert replace(app_of(), features=features).outputs[0].curve == curve
    with pytest.raises(SpecError, match="label 'click' has two isotonic calibrations"):
        replace(app_of(), features=replace(FEATURES, derived=(curve, replace(curve, name="other"))))


def test_an_application_of_an_unusable_name_is_refused() -> None:
    with pytest.raises(SpecError, match="app name 'Shop'"):
        app_of("Shop")


def test_the_fingerprints_of_a_fixed_application_never_change() -> None:
    """A change says that no samples made before are read, or no model continued: mean it, and say so in CHANGELOG."""
    assert small_app().samples_fingerprint == "f523cf85197ee698"
    assert small_app().model_fingerprint == "4aa3b5ee87906676"


def slot_changed(number: int, **fields: Any) -> App:
    app = small_app()
    slots = list(app.features.slots)
    slots[number] = replace(slots[number], **fields)
    return replace(app, features=replace(app.features, slots=tuple(slots)))


def labels_changed(*labels: Label) -> App:
    return replace(small_app(), labels=labels)


_CLICK, _BOUGHT = small_app().labels


@pytest.mark.parametrize(
    ("other", "samples", "model"),
    [
        pytest.param(small_app("renamed"), False, False, id="the name"),
        pytest.param(replace(small_app(), model="deepfm"), False, False, id="the model"),
        pytest.param(slot_changed(2, default="SE"), False, False, id="a default"),
        pytest.param(labels_changed(replace(_CLICK, sample_rate=0.25), _BOUGHT), False, False, id="a rate"),
        pytest.param(slot_changed(0, table="users", dim=8), False, True, id="a dim"),
        pytest.param(slot_changed(0, table="users", initial_range=0.5), False, True, id="an initial range"),
        pytest.param(slot_changed(4, pooling="sum"), False, True, id="mean or sum"),
        pytest.param(slot_changed(4, pooling="weighted"), True, True, id="weighted"),
        pytest.param(slot_changed(1, length=9), True, True, id="a length"),
        pytest.param(slot_changed(1, keys_of=None), True, True, id="whose keys"),
        pytest.param(slot_changed(0, value="str"), True, True, id="a type"),
        pytest.param(slot_changed(0, name="person"), True, True, id="a slot's name"),
        pytest.param(slot_changed(0, multi=True), True, True, id="many values"),
        pytest.param(labels_changed(_BOUGHT, _CLICK), True, True, id="the order of labels"),
        pytest.param(labels_changed(replace(_CLICK, name="share"), _BOUGHT), True, True, id="a label's name"),
        pytest.param(labels_changed(_CLICK, _BOUGHT, Label("view", "view", "fast")), True, True, id="a label more"),
    ],
)
def test_samples_depend_on_what_is_written_and_models_on_all(other: App, samples: bool, model: bool) -> None:
    app = small_app()
    assert (other.samples_fingerprint != app.samples_fingerprint) == samples
    assert (other.model_fingerprint != app.model_fingerprint) == model


def test_actions_are_named_once_each() -> None:
    labels = (Label("click", "click", "fast"), Label("click_again", "click", "fast"))
    app = App("shop", FEATURES, (LabelGroup("fast", 60, 600),), labels)
    assert app.actions == ("click",)
    assert small_app().actions == ("click", "purchase")


def folder_with(**topics: Any) -> AppFolder:
    return small_folder(Path("/somewhere"), settings=Settings(topics=TopicsSettings(**topics)))


def test_a_topic_is_beside_the_application_unless_something_says_otherwise() -> None:
    assert folder_with().topic_url("samples") == "file:///somewhere/.streamlearn/topics/small.samples"


@pytest.mark.parametrize("root", ["kafka://127.0.0.1:9092", "kafka://127.0.0.1:9092/"])
def test_a_topic_is_under_the_root_by_the_applications_name(root: str) -> None:
    folder = folder_with(root=root)
    assert folder.topic_url("impressions") == "kafka://127.0.0.1:9092/small.impressions"
    assert folder.topic_url("dead_letters") == "kafka://127.0.0.1:9092/small.dead-letters"


def test_a_topic_is_where_its_own_setting_says_whatever_the_root() -> None:
    folder = folder_with(root="kafka://127.0.0.1:9092", actions="memory://acts")
    assert folder.topic_url("actions") == "memory://acts"


def test_a_folder_of_an_odd_name_has_topics_too(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "50% #1? ü")
    with create_topic(folder.topic_url("samples")) as topic:
        assert topic.partitions == 1
    assert (tmp_path / "50% #1? ü" / ".streamlearn" / "topics" / "small.samples").exists()


def test_every_setting_of_topics_arrives_where_topics_are_opened_and_written(folder: Path) -> None:
    numbers = {"reach_s": 61.5, "delivery_timeout_s": 99.5}
    loaded = load_app(folder, [f"topics.{name}={value}" for name, value in numbers.items()] + ["topics.fsync=batch"])
    access, writer = loaded.access, loaded.writer_settings
    assert access.unreachable_after_ms == 61_500
    assert (writer.delivery_timeout_ms, writer.fsync) == (99_500, "batch")


def test_defaults_of_topics_are_said_once_and_outlast_a_minute_without_a_broker(folder: Path) -> None:
    loaded = load_app(folder)
    assert (loaded.access, loaded.writer_settings) == (AccessSettings(), WriterSettings())
    assert min(loaded.access.unreachable_after_ms, loaded.writer_settings.delivery_timeout_ms) > 60_000

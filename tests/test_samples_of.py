"""Two applications on one topic of samples: ingest of one is for both, and other features are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlearn.apps import load_app
from streamlearn.apps.folder import TOPICS
from streamlearn.cli.main import cli
from streamlearn.errors import SpecError, UnknownSchema
from streamlearn.manifest.values import values_of
from streamlearn.samples import SampleCodec
from streamlearn.schemas.events import action_schema, impression_schema
from streamlearn.settings.events import SampleSettings
from streamlearn.supervision.plan import UpOptions, planned
from streamlearn.testing import small_app, small_batch

_APP = """\
from dataclasses import replace

from streamlearn.testing import small_app

app = replace(small_app(), name="{name}", samples_of="{of}", model="logistic")
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    both = tmp_path / "one", tmp_path / "two"
    for folder, of in zip(both, ("", "one"), strict=True):
        folder.mkdir()
        (folder / "app.py").write_text(_APP.format(name=folder.name, of=of))
        (folder / "app.toml").write_text(f'topics.root = "file://{tmp_path}/topics"\n')
    return both


def test_all_topics_are_of_the_one_that_makes_the_samples(folders: tuple[Path, Path]) -> None:
    one, two = map(load_app, folders)
    assert [one.topic_url(topic) for topic in TOPICS] == [two.topic_url(topic) for topic in TOPICS]
    for schema in (impression_schema, action_schema):
        assert schema(one.app).fingerprint == schema(two.app).fingerprint
    assert two.app.served_name == "two"
    assert (one.store_url, one.registry_url) != (two.store_url, two.registry_url)


def test_samples_are_learned_by_both_and_by_none_with_other_features(folders: tuple[Path, Path]) -> None:
    one, two = (load_app(folder).app for folder in folders)
    message = SampleCodec(one, SampleSettings()).encode(small_batch(one, 2, 3))
    wide = replace(two, features=replace(two.features, slots=tuple(replace(s, dim=32) for s in two.features.slots)))
    assert len(SampleCodec(wide, SampleSettings()).decode(message)) == len(small_batch(one, 2, 3))
    renamed = replace(two, labels=(replace(two.labels[0], name="tap"), *two.labels[1:]))
    with pytest.raises(UnknownSchema, match="expects tap, bought"):
        SampleCodec(renamed, SampleSettings()).decode(message)


def test_only_the_one_runs_ingest(folders: tuple[Path, Path]) -> None:
    names = [[member.name for member in planned(load_app(folder), UpOptions()).members] for folder in folders]
    assert "ingest" in names[0]
    assert [name for name in names[0] if name != "ingest"] == names[1]
    chosen = [values_of(load_app(folder), None, (), (), in_image=True) for folder in folders]
    assert [values["ingest"] for values in chosen] == [True, False]
    for verb in (["ingest"], ["backfill"], ["features", "fold"]):
        done = CliRunner().invoke(cli, [*verb, str(folders[1])])
        assert done.exit_code != 0
        assert "uses the samples of 'one'" in str(done.exception or done.output)


def test_arms_of_one_model_share_its_events_whatever_callers_call_them() -> None:
    arm = replace(small_app(), name="two", serves="one", samples_of="one")
    assert (arm.served_name, arm.events_name, arm.samples_name) == ("one", "one", "one")
    with pytest.raises(SpecError):
        replace(small_app(), samples_of="No Name")

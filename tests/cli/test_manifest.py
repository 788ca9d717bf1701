"""`streamlearn manifest`: prints what an application needs, of its own settings and files, and none of its secrets."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import streamlearn.manifest.values as values_module
from tests.cli.place import Verb

__all__: list[str] = []

APP = """\
from streamlearn.testing import small_app

from .more import NAME

app = small_app()
"""
SETTINGS = """\
[topics]
root = "kafka://kafka:9092"
[registry]
url = "redis://redis:6379"
[ingest]
runner = "prism"
[tables]
rate = 0.1
"""
Printed = Callable[..., dict[tuple[str, str], dict[str, Any]]]
GIVEN = ("--value", "image=shop:1", "--value", "tokens_secret=tokens")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "app.py").write_text(APP)
    (folder / "more.py").write_text("NAME = 1\n")
    (folder / "notes.txt").write_text("not of the application\n")
    (folder / "app.toml").write_text(SETTINGS)
    return folder


@pytest.fixture
def printed(ended: Verb, shop: Path) -> Printed:
    """Prints the objects of the shop, and returns them by kind and name."""

    def run(*words: object) -> dict[tuple[str, str], dict[str, Any]]:
        done = ended("manifest", shop, *words)
        assert done.status == 0, done.err
        return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.out)}

    return run


def test_it_prints_the_applications_files_and_settings_with_those_of_this_run(printed: Printed, tmp_path: Path) -> None:
    file = tmp_path / "values.toml"
    file.write_text(
        'shards = 3\nimage = "old:1"\n[settings.trainer]\nstep_rows = 512\n[roles.nodes]\nimage = "gpu:1"\n'
    )
    objects = printed("--values", file, *GIVEN, "--set", "tables.rate=0.2", "--value", "partitions=4")
    data = objects["ConfigMap", "small-app"]["data"]
    assert set(data) == {"app.toml", "app.py", "more.py"}
    assert data["app.py"] == APP
    settings = tomllib.loads(data["app.toml"])
    assert (settings["tables"]["rate"], settings["trainer"]["step_rows"]) == (0.2, 512)
    assert (settings["ingest"]["runner"], len(settings["ps"]["addresses"])) == ("prism", 3)
    assert objects["StatefulSet", "small-shards"]["spec"]["replicas"] == 3
    images = {
        name: one["spec"]["template"]["spec"]["containers"][0]["image"]
        for (kind, name), one in objects.items()
        if kind in ("Deployment", "StatefulSet")
    }
    assert images.pop("small-nodes") == "gpu:1"
    assert set(images.values()) == {"shop:1"}
    (topics,) = objects["StatefulSet", "small-trainer"]["spec"]["template"]["spec"]["initContainers"]
    assert topics["args"][:3] == ["topics", "/srv/app", "--create"]
    assert not [kind for kind, _ in objects if kind in ("Pod", "Secret")]


def test_an_application_in_the_image_is_not_printed_and_computed_features_are_folded(
    printed: Printed, shop: Path
) -> None:
    (shop / "app.py").write_text(
        "from streamlearn.apps import App\n"
        "from streamlearn.features import Count, Dense, FeatureSpec, Label, LabelGroup, Slot\n"
        "features = FeatureSpec(slots=(Slot('user_id', 'user'), Slot('item_id', 'item')), item_id='item_id',\n"
        "    dense=(Dense('clicks', 'user', computed=Count('click', '1h'), default=0.0),))\n"
        "app = App(name='my_shop', features=features, groups=(LabelGroup('fast', wait_s=60, window_s=600),),\n"
        "    labels=(Label('click', 'click', 'fast'),))\n"
    )
    objects = printed("--in-image", *GIVEN, "--set", "features.store=redis://redis:6379/1")
    assert set(objects["ConfigMap", "my-shop-app"]["data"]) == {"app.toml"}
    (fold,) = objects["Deployment", "my-shop-fold"]["spec"]["template"]["spec"]["containers"]
    assert fold["args"] == ["features", "fold", "/srv/app"]
    mounts = {mount["mountPath"] for mount in fold["volumeMounts"]}
    assert {"/srv/app/.streamlearn", "/srv/app/app.toml"} <= mounts
    assert "/srv/app" not in mounts


def test_all_that_is_missing_is_named_at_once_and_settings_for_replays_are_pointed_out(ended: Verb, shop: Path) -> None:
    (shop / "app.toml").write_text('[topics]\ntime = "event"\n')
    done = ended("manifest", shop)
    assert (done.status, done.out) == (2, "")
    for said in (
        "the value image is needed",
        "settings.topics.root must begin with kafka://",
        "settings.registry.url must begin with redis://",
        "settings.ingest.job_endpoint is needed",
        "tokens.metrics",
        'warning: topics.time is "event", which is for replays',
        'help: "On Kubernetes" in the documentation',
    ):
        assert said in done.err, done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the value image is needed"),
        ((*GIVEN, "--name", "My_Shop"), "'My_Shop' cannot begin the names"),
        ((*GIVEN, "--values", "there-is-none.toml"), "there-is-none.toml cannot be read"),
        ((*GIVEN, "--value", "shard=2"), "--value: unknown setting 'shard'"),
        ((*GIVEN, "--value", "shards"), "--value 'shards' is not NAME=VALUE"),
        ((*GIVEN, "--value", "shards=many"), "--value: shards: expected `int`, got `str`"),
        ((*GIVEN, "--value", "roles.nodes.pod={containers = []}"), "roles.nodes.pod has containers"),
        ((*GIVEN, "--set", "topics.root=file:///topics"), "settings.topics.root must begin with kafka://"),
        ((*GIVEN, "--set", "registry.url=redis://me:pass-word@redis:6379"), "registry.url has a user or a password"),
    ],
)
def test_a_wrong_value_is_refused_in_two_lines_without_secrets(
    ended: Verb, shop: Path, words: tuple[str, ...], said: str
) -> None:
    done = ended("manifest", shop, *words)
    assert done.status in (1, 2)
    assert done.out == ""
    error, help = done.err.splitlines()
    assert said in error
    assert help.startswith("help: ")
    assert "pass-word" not in done.err


def test_files_that_no_configmap_holds_are_refused(ended: Verb, shop: Path) -> None:
    (shop / "more.py").write_text("NAME = 1\n" + "#" * values_module.APPLICATION_BYTES_MAX)
    done = ended("manifest", shop, *GIVEN)
    assert done.status == 2
    assert "a ConfigMap holds 900,000" in done.err
    assert "--in-image" in done.err


def test_a_key_of_tokens_stands_nowhere_but_in_the_secret(printed: Printed) -> None:
    tokens = {"nodes": "n-word", "shards": "s-word", "console": "c-word", "metrics": "m-word"}
    given = [word for name, value in tokens.items() for word in ("--value", f"tokens.{name}={value}")]
    objects = printed("--value", "image=shop:1", *given)
    assert objects.pop(("Secret", "small-tokens"))["stringData"] == tokens
    assert not [value for value in tokens.values() if value in json.dumps([*objects.values()])]

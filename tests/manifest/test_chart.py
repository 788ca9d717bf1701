"""The chart, by the real Helm: it makes what `streamlearn manifest` prints, and Kubernetes has all fields of it."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamlearn.errors import UsageError
from tests.manifest.openapi import Schemas
from tests.manifest.value_sets import NAME, SETS, objects_of, read_set
from tools.helm_chart import CHART
from tools.services.kubernetes import KUBERNETES_VERSION

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
# Of texts that two encoders of JSON have written.
_HASH = "streamlearn/settings"


def run(helm: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm / "helm", *words], capture_output=True, text=True, timeout=600, check=False)


def template(helm: Path, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(helm, "template", NAME, str(ROOT / CHART), "--kube-version", KUBERNETES_VERSION, "-f", str(file), *words)


def by_name(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Objects by kind and name, with settings as data, and without the hashes of texts."""
    named = {}
    for document in documents:
        if document["kind"] == "ConfigMap":
            document["data"]["app.toml"] = tomllib.loads(document["data"]["app.toml"])
        pod = document.get("spec", {}).get("template", {}).get("metadata", {})
        assert len(pod.get("annotations", {}).pop(_HASH, "0" * 64)) == 64
        named[f"{document['kind']} {document['metadata']['name']}"] = document
    assert len(named) == len(documents)
    return named


@pytest.fixture(scope="module")
def schemas(helm: Path) -> Schemas:
    return Schemas(helm / "openapi")


def test_there_are_thirteen_value_sets() -> None:
    assert len(SETS) == 13


@pytest.mark.parametrize("file", SETS, ids=lambda file: file.stem)
def test_helm_makes_the_objects_that_the_verb_prints_and_kubernetes_knows_all_their_fields(
    helm: Path, schemas: Schemas, file: Path
) -> None:
    done = template(helm, file)
    assert done.returncode == 0, done.stderr
    of_helm = [document for document in yaml.safe_load_all(done.stdout) if document]
    ours = objects_of(read_set(file))
    assert [problem for document in (*of_helm, *ours) for problem in schemas.problems(document)] == []
    assert by_name(of_helm) == by_name(ours)


def test_helm_finds_nothing_wrong_with_the_chart(helm: Path) -> None:
    for file in SETS:
        done = run(helm, "lint", "--strict", "--kube-version", KUBERNETES_VERSION, str(ROOT / CHART), "-f", str(file))
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("settings.ingest.lots=0", "minimum: got 0, want 1"),
        ("settings.ingest.lost=1", "additional properties 'lost' not allowed"),
        ("settings.ps.frame_bytes_max=1", "additional properties 'frame_bytes_max' not allowed"),
        ("settings.trainer.device=tpu", "value must be one of"),
        ("shards=two", "got string, want integer"),
        ("workers=1001", "maximum: got 1,001, want 1,000"),
        ("roles.nodes.pod.containers=none", "value must be one of"),
        ("replicas=2", "additional properties 'replicas' not allowed"),
    ],
)
def test_helm_refuses_a_value_that_the_schema_does_not_have(helm: Path, change: str, reason: str) -> None:
    done = template(helm, SETS[0], "--set", change)
    assert done.returncode != 0
    assert reason in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"image": ""},
        {"settings": {"topics": {"root": "file:///topics"}}},
        {"settings": {"registry": {"url": "sqlite:///registry.db"}}},
        {"fold": True, "settings": {"features": {"store": ""}}},
        {"fold": False},
        {"settings": {"features": {"store": "redis://redis:6379/1"}}},
        {"settings": {"ingest": {"job_endpoint": ""}}},
        {"settings": {"ingest": {"environment": "LOOPBACK"}}},
        {"workers": 3},
        {"workers": 3, "settings": {"workers": {"slices": 1}}},
        {"workers": 3, "settings": {"workers": {"slices": 4}}, "shards": 0},
        {"tokens_secret": "", "tokens": {"shards": ""}},
    ],
    ids=json.dumps,
)
def test_helm_and_the_verb_refuse_values_that_lack_something_with_the_same_words(
    helm: Path, change: dict[str, Any], tmp_path: Path
) -> None:
    values = read_set(next(file for file in SETS if file.stem == "tls_and_clear_tokens"))
    for name, value in change.items():
        values[name] = value
        if isinstance(value, dict):
            values[name] = {**read_set(SETS[0]).get(name, {}), **value}
    (tmp_path / "values.json").write_text(json.dumps(values))
    with pytest.raises(UsageError) as caught:
        objects_of(values)
    done = template(helm, tmp_path / "values.json")
    assert done.returncode != 0
    # Helm ends at the first one.
    assert caught.value.message.split("; ")[0] in done.stderr


def test_a_name_that_would_be_too_long_for_the_labels_of_pods_is_refused(helm: Path) -> None:
    values = read_set(SETS[0])
    assert objects_of(values, "s" * 44)
    with pytest.raises(UsageError, match="more than 44 characters"):
        objects_of(values, "s" * 45)
    chart = ("template", "s" * 45, str(ROOT / CHART), "--kube-version", KUBERNETES_VERSION, "-f", str(SETS[0]))
    assert "more than 44 characters" in run(helm, *chart).stderr


def test_a_field_that_kubernetes_does_not_have_is_found(schemas: Schemas) -> None:
    (pod,) = [document for document in objects_of(read_set(SETS[0])) if document["kind"] == "Pod"]
    assert schemas.problems(pod) == []
    container = pod["spec"]["containers"][0]
    container |= {
        "imagePolicy": "Always",
        "ports": [{"containerPort": "8001"}],
        "resources": {"limits": {"cpu": "many"}},
    }
    del pod["spec"]["containers"][0]["name"]
    assert schemas.problems(pod) == [
        "Pod.spec.containers[0].name is missing",
        "Pod.spec.containers[0].resources.limits.cpu is 'many', not a quantity",
        "Pod.spec.containers[0].imagePolicy is not a field",
        "Pod.spec.containers[0].ports[0].containerPort is '8001', not of type integer",
    ]
    assert schemas.problems(pod | {"apiVersion": "v2"}) == ["there is no Pod in v2"]

"""Helm and Kubernetes: built from one module of ours, and named where they cannot be built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamlearn.errors import ServiceError
from tools.services import Cache
from tools.services.kubernetes import KUBERNETES_VERSION, Helm, module

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
_OF_KUBERNETES = """\
module k8s.io/kubernetes

require example.org/x v1.0.0

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
)
"""


def test_our_module_takes_kubernetes_staged_modules_of_the_same_release() -> None:
    lines = module(_OF_KUBERNETES).splitlines()
    release = KUBERNETES_VERSION.partition(".")[2]
    assert f"replace k8s.io/api => k8s.io/api v0.{release}" in lines
    assert f"replace k8s.io/client-go => k8s.io/client-go v0.{release}" in lines
    assert f"require k8s.io/kubernetes v{KUBERNETES_VERSION}" in lines
    assert "staging" not in "".join(lines)


def test_where_there_is_no_go_it_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cache = Cache(tmp_path / "cache")
    with pytest.raises(ServiceError, match="helm cannot be built: there is no go on PATH") as caught:
        Helm.fetch(cache)
    assert "install Go" in caught.value.help
    assert Helm.find(cache) is None
    assert not [path for path in cache.folder.iterdir() if path.is_dir()]


def test_the_test_with_an_api_server_fails_by_name_where_it_cannot_be_built(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.kube"], cwd=ROOT, env={"PATH": str(tmp_path), "STREAMLEARN_CACHE": str(tmp_path)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "kube-apiserver" in done.stderr
    assert "there is no go on PATH" in done.stderr
    assert done.stdout == ""


def test_the_program_is_of_the_version_that_it_is_called_by_and_the_schemas_are_there(helm: Path) -> None:
    done = subprocess.run([helm / "helm", "version"], capture_output=True, text=True, timeout=600, check=True)
    assert "v3.19" in done.stdout
    assert {file.name for file in (helm / "openapi").iterdir()} >= {
        "api__v1_openapi.json", "apis__apps__v1_openapi.json", "apis__policy__v1_openapi.json",
    }  # fmt: skip

"""Kubernetes: Helm, the API's schemas and the programs of an API server, which Go builds into the cache.

They come from one module of ours, because Kubernetes' own takes the modules of its staging folder from there, which
`go install` refuses: ours takes those of the same release instead.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.process import run_to_end

__all__ = ["ETCD_VERSION", "HELM_VERSION", "KUBERNETES_VERSION", "Helm", "control_plane", "module"]

HELM_VERSION, KUBERNETES_VERSION, ETCD_VERSION = "3.19.5", "1.34.4", "3.6.4"
_HELM = f"helm-{HELM_VERSION}-kubernetes-{KUBERNETES_VERSION}"
_CONTROL_PLANE = f"kubernetes-{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}"
_MODULE = f"k8s.io/kubernetes@v{KUBERNETES_VERSION}"
_SCHEMAS = re.compile(
    r".*/openapi-spec/v3/apis?__(v1|(apps|autoscaling|batch|networking\.k8s\.io|policy)__v\d)_openapi\.json"
)
_STAGED = re.compile(r"^\s+(k8s\.io/\S+) => \./staging/", re.MULTILINE)
_COMMANDS = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "etcd": "go.etcd.io/etcd/server/v3",
}
# Without it the programs have no version, and Helm refuses charts that name the versions they need.
_VERSION = f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}"
_DOWNLOAD_WAIT_S_MAX, _BUILD_WAIT_S_MAX = 600.0, 5_400.0


class Helm:
    """The program in the cache, with the OpenAPI schemas that objects are checked against."""

    @classmethod
    def find(cls, cache: Cache) -> Path | None:
        """Return the folder of `helm` and `openapi`, or None if it is not in the cache."""
        return cache.find(_HELM)

    @classmethod
    def fetch(cls, cache: Cache) -> Path:
        """Return the folder, after building what is missing.

        Raises:
            ServiceError: There is no Go, or the build failed.
        """
        return cache.get(_HELM, _make_helm)


def control_plane(cache: Cache) -> Path:
    """Return the folder of etcd, kube-apiserver and kube-controller-manager, after building what is missing.

    Raises:
        ServiceError: There is no Go, or the build failed.
    """
    return cache.get(_CONTROL_PLANE, _make_control_plane)


def _make_control_plane(folder: Path) -> None:
    _build(folder, _COMMANDS)


def _make_helm(folder: Path) -> None:
    source = _build(folder, {"helm": "helm.sh/helm/v3/cmd/helm"})
    (folder / "openapi").mkdir()
    with zipfile.ZipFile(source) as archive:
        for name in filter(_SCHEMAS.fullmatch, archive.namelist()):
            (folder / "openapi" / name.rpartition("/")[2]).write_bytes(archive.read(name))


def _build(folder: Path, commands: dict[str, str]) -> Path:
    """Build programs into a folder, and return the archive of Kubernetes' module."""
    go = shutil.which("go")
    if go is None:
        message = f"{', '.join(commands)} cannot be built: there is no go on PATH"
        raise ServiceError(message, help="install Go 1.24 or newer")
    work = folder / "module"
    work.mkdir()
    run_to_end("go", [go, "mod", "download", "-json", _MODULE], work, wait_s_max=_DOWNLOAD_WAIT_S_MAX)
    text = (work / "go.log").read_text()
    facts = json.loads(text[text.index("{") :])
    (work / "go.mod").write_text(module(Path(facts["GoMod"]).read_text()))
    environment = {"GOFLAGS": "-mod=mod -trimpath -buildvcs=false", "GOWORK": "off", "CGO_ENABLED": "0"}
    for name, package in commands.items():
        # One package at a time at the lowest priority: an API server takes minutes of all cores and gigabytes.
        command = ["nice", "-n", "19", go, "build", "-p", "1", f"-ldflags={_VERSION}"]
        command += ["-o", str(folder / name), package]
        run_to_end("go", command, work, wait_s_max=_BUILD_WAIT_S_MAX, environment=environment)
    shutil.rmtree(work)
    return Path(facts["Zip"])


def module(kubernetes: str) -> str:
    """Return our go.mod, for that of Kubernetes."""
    staging = f"v0.{KUBERNETES_VERSION.partition('.')[2]}"
    needed = {
        "go.etcd.io/etcd/server/v3": ETCD_VERSION,
        "helm.sh/helm/v3": HELM_VERSION,
        "k8s.io/kubernetes": KUBERNETES_VERSION,
    }
    lines = ["module streamlearn/kubernetes", "go 1.24.0"]
    lines += [f"require {name} v{version}" for name, version in needed.items()]
    lines += [f"replace {name} => {name} {staging}" for name in _STAGED.findall(kubernetes)]
    return "\n".join(lines) + "\n"

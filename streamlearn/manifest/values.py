"""Values of an installation on Kubernetes: those of the Helm chart, and of `streamlearn manifest`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from streamlearn.apps import AppFolder
from streamlearn.config import apply_overrides, read_bounded, read_settings, without_login
from streamlearn.errors import UsageError
from streamlearn.settings import Settings

__all__ = ["APPLICATION_BYTES_MAX", "POD_FIELDS", "Role", "Roles", "Tokens", "Values", "values_of"]

APPLICATION_BYTES_MAX = 900_000
"""Most bytes of the files of an application: the API server refuses a ConfigMap of more than 1 MiB."""
POD_FIELDS = (
    "affinity", "dnsConfig", "hostAliases", "nodeSelector", "priorityClassName", "runtimeClassName", "schedulerName",
    "tolerations", "topologySpreadConstraints",
)  # fmt: skip
"""Fields of a pod that `roles.ROLE.pod` may have."""
_SETTINGS: dict[str, dict[str, Any]] = {
    "topics": {"root": ""},
    "registry": {"url": ""},
    "versions": {"store": ""},
    "features": {"store": ""},
    "workers": {"slices": 1},
    "retrieval": {"nearline": "off"},
    "front": {"drain_s": 10},
    "ingest": {"runner": "flink", "job_endpoint": "", "environment": "EXTERNAL", "environment_config": ""},
}
"""The settings that an installation begins with; an application's own override them."""


class Role(Struct, frozen=True, forbid_unknown_fields=True):
    """The pods of one kind of process."""

    image: str = ""
    """Image of these pods; empty is `image`."""
    resources: dict[str, Any] = {}
    """Requests and limits, such as `limits: {nvidia.com/gpu: 1}`."""
    environment_secret: str = ""
    """Secret whose keys are environment variables of these pods, such as keys that only read the store. Empty is
    `environment_secret`."""
    account_annotations: dict[str, str] = {}
    """Annotations of a ServiceAccount of their own, such as a role that only reads the store. Empty: they use that of
    the installation."""
    pod: dict[str, Any] = {}
    """Further fields of the pod: nodeSelector, tolerations, affinity, runtimeClassName and the like."""


def _requesting(cpu: str, memory: str) -> Role:
    """A role whose pods request this much, which is enough for a small model."""
    return Role(resources={"requests": {"cpu": cpu, "memory": memory}})


class Roles(Struct, frozen=True, forbid_unknown_fields=True):
    """The pods of each kind of process."""

    shards: Role = _requesting("250m", "1Gi")
    trainer: Role = _requesting("500m", "2Gi")
    workers: Role = _requesting("500m", "1Gi")
    nodes: Role = _requesting("500m", "1Gi")
    console: Role = _requesting("50m", "256Mi")
    access: Role = _requesting("100m", "256Mi")
    fold: Role = _requesting("100m", "512Mi")
    nearline: Role = _requesting("100m", "768Mi")
    ingest: Role = _requesting("250m", "1Gi")


class Tokens(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens in clear text, for a try: without `tokens_secret` they become a Secret."""

    nodes: str = ""
    """Token that callers of nodes send."""
    shards: str = ""
    """Token that the trainer and workers send to shards, and workers to the trainer."""
    console: str = ""
    """Token that readers of the console send."""
    metrics: str = ""
    """Token that Prometheus sends."""


class Values(Struct, frozen=True, forbid_unknown_fields=True):
    """All values of an installation."""

    image: str = ""
    """Image with the command `streamlearn`. Needed."""
    pull_secret: str = ""
    """Secret with which the image is pulled."""
    shards: Annotated[int, Meta(ge=0, le=64)] = 2
    """Shards of the parameter server. Change it at any time; 0 keeps the tables in the trainer."""
    workers: Annotated[int, Meta(ge=0, le=1_000)] = 0
    """Workers that learn with the trainer. They need shards, and `workers.slices` above 1 in `settings`. Change it
    at any time."""
    nodes: Annotated[int, Meta(ge=1, le=1_000)] = 2
    """Serving nodes, at least."""
    nodes_max: Annotated[int, Meta(ge=0, le=1_000)] = 0
    """Above 0, a HorizontalPodAutoscaler runs up to this number of nodes. It needs an adapter that serves the metric
    `streamlearn_serving_lanes_busy_ratio`."""
    nodes_busy: str = "700m"
    """Share of busy lanes, as a quantity, that the autoscaler keeps."""
    console: bool = True
    """Whether the console runs."""
    access: Annotated[int, Meta(ge=0, le=100)] = 0
    """Pods of Envoy in front of the nodes, at port 8080. Their image needs the extra `access`."""
    fold: bool = False
    """Whether interactions are folded into states. Turn it on if the application has computed features."""
    nearline: bool = False
    """Whether lists of candidates are kept for users who just acted. It needs `retrieval.nearline` in `settings`, as
    "found" or "ranked", and `fold`."""
    ingest: bool = True
    """Whether ingest runs here. With `ingest.runner = flink` it submits to a job server that exists."""
    partitions: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Above 0, the trainer's pod first creates the topics that are missing, with this number of partitions."""
    application: dict[str, str] = {}
    """Files of the application by name, such as `app.py`. Empty: the image has them in /srv/app."""
    settings: dict[str, Any] = field(default_factory=lambda: _SETTINGS)
    """The text of app.toml, by section. The chart itself sets addresses, token files and `ps.addresses`."""
    tokens_secret: str = ""
    """Secret with the keys `nodes`, `shards`, `console` and `metrics`."""
    tokens: Tokens = Tokens()
    tls_secret: str = ""
    """Secret of the type kubernetes.io/tls with which nodes and the console serve. Empty turns TLS off. `access`,
    `nearline` and `helm test` also need its key `ca.crt`: the authority of the certificate."""
    environment_secret: str = ""
    """Secret whose keys are environment variables, such as STREAMLEARN_KAFKA_PASSWORD."""
    store_size: str = "20Gi"
    """Size of the volume of versions; used if `versions.store` is empty."""
    store_class: str = ""
    """StorageClass of that volume; empty is the cluster's default."""
    store_access: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Its access: all pods mount it, so ReadWriteOnce needs them on one machine."""
    state_size: str = "1Gi"
    """Size of the trainer's volume of validation scores and rows that were set aside. Empty: lost with the pod."""
    nodes_cache: str = ""
    """PersistentVolumeClaim, of the access ReadWriteMany, that keeps what nodes compiled. Empty: each new pod compiles
    again."""
    network_policy: bool = True
    """Whether NetworkPolicies let only the trainer and workers reach shards, only workers learn with the trainer, only
    `callers` reach nodes and the console, and others reach the trainer, ingest and folding for metrics alone."""
    callers: list[dict[str, Any]] = []
    """Peers of a NetworkPolicy, such as `podSelector: {matchLabels: {app: feed}}`. Empty lets all in."""
    account_annotations: dict[str, str] = {}
    """Annotations of the ServiceAccount, such as a cloud's role for the store."""
    volumes: list[dict[str, Any]] = []
    """Further volumes of all pods, such as CA certificates."""
    mounts: list[dict[str, Any]] = []
    """Where they are mounted."""
    roles: Roles = Roles()


def values_of(
    folder: AppFolder, file: Path | None, overrides: Sequence[str], changes: Sequence[str], *, in_image: bool
) -> dict[str, Any]:
    """Return the values of an application: a file and overrides, with its settings and, unless `in_image`, its files.

    Raises:
        ConfigError: The file or an override is wrong.
        UsageError: A setting has a password, the files are too large for a ConfigMap, or a pod has a wrong field.
    """
    if file is not None:
        read_bounded(file, "the values")  # one that is not there is refused
    values: dict[str, Any] = msgspec.to_builtins(read_settings(Values, file, overrides, option="--value"))
    for name, role in values["roles"].items():
        if wrong := role["pod"].keys() - POD_FIELDS:
            message = f"roles.{name}.pod has {', '.join(sorted(wrong))}"
            raise UsageError(message, help=f"it may have {', '.join(POD_FIELDS)}")
    path = folder.folder / "app.toml"
    given = tomllib.loads(read_bounded(path, "the settings").decode()) if path.exists() else {}
    more = {} if values["settings"] == _SETTINGS else values["settings"]
    settings = apply_overrides(Settings, _merged(_SETTINGS, given, more), changes)
    _check_logins(settings)
    files = {} if in_image else values["application"] or _files(folder.folder)
    makes = not folder.app.samples_of
    fold = makes and (values["fold"] or bool(folder.app.features.entities))
    nearline = values["nearline"] or settings["retrieval"]["nearline"] != "off"
    return values | {
        "settings": settings, "application": files, "fold": fold, "nearline": nearline,
        "ingest": makes and values["ingest"],
    }  # fmt: skip


def _merged(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections of settings, later ones over earlier ones."""
    merged: dict[str, Any] = {}
    for tree in trees:
        for section, values in tree.items():
            merged[section] = merged.get(section, {}) | values
    return merged


def _check_logins(settings: Mapping[str, Any]) -> None:
    for section, values in settings.items():
        for name, value in values.items():
            if value != without_login(value):
                message = f"{section}.{name} has a user or a password, which all who read a ConfigMap would see"
                raise UsageError(message, help="put it into the Secret of the value environment_secret")


def _files(folder: Path) -> dict[str, str]:
    """Return the texts of an application's files. Settings name some of them, such as schemas."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".py", ".avsc", ".pem")]
    texts = {file.name: read_bounded(file, "the application").decode() for file in files}
    size = sum(len(text.encode()) for text in texts.values())
    if size > APPLICATION_BYTES_MAX:
        message = f"the files of {folder} have {size:,} bytes; a ConfigMap holds {APPLICATION_BYTES_MAX:,}"
        raise UsageError(message, help="put the application into the image, at /srv/app, and give --in-image")
    return texts

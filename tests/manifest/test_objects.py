"""The objects of an installation: their commands are ours, their settings are read, and pods may do little."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlearn.apps import load_app
from streamlearn.config import read_settings
from streamlearn.errors import UsageError
from streamlearn.settings import Settings
from tests.cli.test_printed_commands import reach
from tests.manifest.value_sets import SETS, objects_of, read_set
from tools.declared_metrics import declared_metrics

__all__: list[str] = []

GOLDEN = Path(__file__).parent / "golden.json"
OBJECTS = {file.stem: objects_of(read_set(file)) for file in SETS}
_FIELDS = {"$(POD_INDEX)": "0", "$(POD_NAME)": "shop-nodes-abc"}


def pods(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pods of objects, with the volumes that each pod of a StatefulSet claims."""
    for document in documents:
        if document["kind"] == "Pod":
            yield document["spec"]
        elif "template" in document.get("spec", {}):
            pod = document["spec"]["template"]["spec"]
            claims = [{"name": one["metadata"]["name"]} for one in document["spec"].get("volumeClaimTemplates", ())]
            yield pod | {"volumes": [*pod["volumes"], *claims]}


def containers(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for pod in pods(documents):
        yield from [*pod.get("initContainers", ()), *pod["containers"]]


def commands(documents: list[dict[str, Any]]) -> Iterator[list[str]]:
    """All commands that are run in containers."""
    for container in containers(documents):
        yield [*container["command"], *container["args"]]
        probes = [container[name]["exec"]["command"] for name in container if "exec" in (container[name] or ())]
        yield from probes


def told(name: str, kind: str, of: str) -> dict[str, Any]:
    """One object of a set."""
    return next(one for one in OBJECTS[name] if (one["kind"], one["metadata"]["name"]) == (kind, f"shop-{of}"))


def summary() -> dict[str, list[str]]:
    """The objects of each set, and the commands of all sets."""
    objects = {
        name: [f"{document['kind']} {document['metadata']['name']}" for document in documents]
        for name, documents in OBJECTS.items()
    }
    words = [" ".join(command) for documents in OBJECTS.values() for command in commands(documents)]
    return {**objects, "commands": sorted({line for line in words if line.startswith("streamlearn ")})}


def test_the_objects_and_commands_are_those_of_the_golden_file() -> None:
    assert summary() == json.loads(GOLDEN.read_text()), "if they should change: python -m tests.manifest.test_objects"


@pytest.mark.parametrize("name", OBJECTS)
def test_each_command_is_one_that_the_command_line_takes(name: str) -> None:
    seen = set()
    for program, *words in commands(OBJECTS[name]):
        if program == "streamlearn":
            for field, value in _FIELDS.items():
                words = [word.replace(field, value) for word in words]
            assert not [word for word in words if "$(" in word]
            reach(words)
            seen.add(words[0])
    assert {"serve", "train", "probe"} <= seen


@pytest.mark.parametrize("name", OBJECTS)
def test_settings_are_read_as_they_were_given(name: str, tmp_path: Path) -> None:
    config = told(name, "ConfigMap", "app")["data"]
    for file, text in config.items():
        (tmp_path / file).write_text(text)
    settings = read_settings(Settings, tmp_path / "app.toml")
    given = read_set(next(file for file in SETS if file.stem == name))
    written = tomllib.loads(config["app.toml"])
    for section, values in given["settings"].items():
        for setting, value in values.items():
            if (section, setting, value) != ("versions", "store", ""):
                assert written[section][setting] == value
    shards = given.get("shards", 2)
    assert settings.ps.addresses == [f"shop-shards-{number}.shop-shards:7301" for number in range(shards)]
    assert settings.versions.store == given["settings"]["versions"]["store"] or "file:///var/lib/streamlearn/versions"
    assert (settings.front.listen, settings.telemetry.listen) == ("0.0.0.0:8001", "0.0.0.0:9460")
    if "application" in given:
        assert load_app(tmp_path).app.name == "small"


@pytest.mark.parametrize("name", OBJECTS)
def test_no_pod_may_do_more_than_it_must(name: str) -> None:
    for pod in pods(OBJECTS[name]):
        assert pod["automountServiceAccountToken"] is False
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10_001)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "tokens"]
        tokens = {item["key"] for item in secret["items"]} - {"metrics"}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            files = {
                word.rpartition("/")[2] for word in container["args"] if word.startswith("/run/streamlearn/tokens/")
            }
            needs_none = container in pod.get("initContainers", ())
            assert files == tokens or needs_none or container["command"] != ["streamlearn"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_envoy_is_reached_by_callers_and_reaches_nodes() -> None:
    (container,) = told("callers", "Deployment", "access")["spec"]["template"]["spec"]["containers"]
    assert container["args"][:3] == ["access", "/srv/app", "--run"]
    assert "access]" in told("callers", "ConfigMap", "app")["data"]["app.toml"]
    (let_in, _) = told("callers", "NetworkPolicy", "nodes")["spec"]["ingress"]
    labels = [one.get("podSelector", {}).get("matchLabels", {}) for one in let_in["from"]]
    assert "access" in [one.get("app.kubernetes.io/component") for one in labels]
    assert told("callers", "Service", "access")["spec"]["ports"][0]["port"] == 8080
    (secured,) = told("tls_and_clear_tokens", "Deployment", "access")["spec"]["template"]["spec"]["containers"]
    assert secured["args"][-2:] == ["--ca", "/run/streamlearn/tls/ca.crt"]
    assert not [one for one in OBJECTS["smallest"] if one["metadata"]["name"] == "shop-access"]


def peers(policy: dict[str, Any], port: int) -> list[str]:
    """The roles whose pods a NetworkPolicy lets reach a port."""
    (rule,) = [one for one in policy["spec"]["ingress"] if one["ports"] == [{"port": port}]]
    return [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in rule["from"]]


def test_workers_reach_shards_and_the_port_of_the_trainer_and_nothing_else() -> None:
    workers = told("workers", "Deployment", "workers")["spec"]
    (container,) = workers["template"]["spec"]["containers"]
    token = ["--token-file", "/run/streamlearn/tokens/shards"]
    assert workers["replicas"] == 6
    assert container["args"] == ["work", "/srv/app", "--leader", "shop-trainer:7302", *token]
    (leader,) = told("workers", "StatefulSet", "trainer")["spec"]["template"]["spec"]["containers"]
    assert leader["args"] == ["train", "/srv/app", *token]
    assert {"name": "workers", "containerPort": 7302} in leader["ports"]
    named = {one["name"]: one["port"] for one in told("workers", "Service", "trainer")["spec"]["ports"]}
    assert named == {"metrics": 9460, "workers": 7302}
    config = tomllib.loads(told("workers", "ConfigMap", "app")["data"]["app.toml"])["workers"]
    assert (config["listen"], config["slices"]) == (["0.0.0.0:7302"], 8)
    assert peers(told("workers", "NetworkPolicy", "shards"), 7301) == ["trainer", "workers"]
    assert peers(told("workers", "NetworkPolicy", "trainer"), 7302) == ["workers"]
    assert told("workers", "NetworkPolicy", "workers")["spec"]["ingress"] == [{"ports": [{"port": 9460}]}]
    others = [one for one in OBJECTS["workers"] if one["kind"] == "NetworkPolicy" and "workers" in json.dumps(one)]
    assert {one["metadata"]["name"] for one in others} == {"shop-shards", "shop-trainer", "shop-workers"}


def test_a_worker_needs_no_volume_that_outlives_it() -> None:
    workers = told("workers", "Deployment", "workers")["spec"]["template"]["spec"]
    assert not [volume for volume in workers["volumes"] if "persistentVolumeClaim" in volume]
    assert "store" in {
        volume["name"] for volume in told("workers", "StatefulSet", "trainer")["spec"]["template"]["spec"]["volumes"]
    }


def test_without_workers_the_trainer_listens_for_none() -> None:
    (trainer,) = told("smallest", "StatefulSet", "trainer")["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in trainer["ports"]] == ["metrics"]
    assert [one["name"] for one in told("smallest", "Service", "trainer")["spec"]["ports"]] == ["metrics"]
    assert peers(told("smallest", "NetworkPolicy", "shards"), 7301) == ["trainer"]
    assert tomllib.loads(told("smallest", "ConfigMap", "app")["data"]["app.toml"])["workers"] == {"slices": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "settings.workers.slices must be above 1, because workers is above 0"),
        ({"settings": {"workers": {"slices": 4}}, "shards": 0}, "shards must be above 0, because workers is above 0"),
    ],
)
def test_workers_without_slices_or_without_shards_are_refused(change: dict[str, Any], reason: str) -> None:
    values = read_set(next(file for file in SETS if file.stem == "smallest"))
    values["settings"] |= change.get("settings", {})
    with pytest.raises(UsageError, match=reason):
        objects_of({**values, **change, "settings": values["settings"], "workers": 2})


def test_nodes_may_have_an_account_a_secret_and_a_cache_of_their_own() -> None:
    of = {name: told("volumes_and_account", "Deployment", name) for name in ("nodes", "console")}
    pods = {name: one["spec"]["template"]["spec"] for name, one in of.items()}
    assert {name: pod["serviceAccountName"] for name, pod in pods.items()} == {"nodes": "shop-nodes", "console": "shop"}
    account = told("volumes_and_account", "ServiceAccount", "nodes")
    assert account["metadata"]["annotations"] == {"cloud/role": "models-only-reader"}
    secrets = {name: pod["containers"][0]["envFrom"] for name, pod in pods.items()}
    assert secrets["nodes"] == [{"secretRef": {"name": "shop-readers"}}]
    assert secrets["console"] == [{"secretRef": {"name": "shop-environment"}}]
    caches = {name: next(one for one in pod["volumes"] if one["name"] == "cache") for name, pod in pods.items()}
    assert caches["nodes"] == {"name": "cache", "persistentVolumeClaim": {"claimName": "shop-compiled"}}
    assert caches["console"] == {"name": "cache", "emptyDir": {}}


def test_only_metrics_of_ingest_are_reached_and_all_pods_request_something() -> None:
    for name in ("ingest", "trainer"):
        assert told("smallest", "NetworkPolicy", name)["spec"]["ingress"] == [{"ports": [{"port": 9460}]}]
    assert all({"cpu", "memory"} == one["resources"]["requests"].keys() for one in containers(OBJECTS["smallest"]))


def test_only_pods_that_write_versions_may_write_to_the_store() -> None:
    writers = {
        container["name"]
        for container in containers(OBJECTS["volume_store"])
        for mount in container["volumeMounts"]
        if mount["name"] == "store" and not mount.get("readOnly")
    }
    assert writers == {"shards", "trainer", "console"}


def test_a_node_has_time_to_drain_and_all_pods_start_again_when_their_settings_change() -> None:
    node = told("autoscaled", "Deployment", "nodes")["spec"]["template"]
    assert node["spec"]["terminationGracePeriodSeconds"] == 3 * 13 + 30
    assert "replicas" not in told("autoscaled", "Deployment", "nodes")["spec"]
    values = read_set(next(file for file in SETS if file.stem == "autoscaled"))
    values["settings"]["front"]["drain_s"] = 5
    hashes = [
        {document["spec"]["template"]["metadata"].get("annotations", {}).get("streamlearn/settings")}
        for documents in (OBJECTS["autoscaled"], objects_of(values))
        for document in documents
        if document["kind"] in ("Deployment", "StatefulSet")
    ]
    assert not set.union(*hashes[: len(hashes) // 2]) & set.union(*hashes[len(hashes) // 2 :])
    assert all(len(one) == 1 and None not in one for one in hashes)


def test_the_autoscaler_goes_by_a_metric_that_nodes_have() -> None:
    (metric,) = told("autoscaled", "HorizontalPodAutoscaler", "nodes")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in {declared.name for declared in declared_metrics()}


def test_those_who_only_ask_nodes_over_tls_have_no_key_of_theirs() -> None:
    for name, kind in (("nearline", "Deployment"), ("test", "Pod")):
        found = told("tls_and_clear_tokens", kind, name)["spec"]
        pod = found["template"]["spec"] if kind == "Deployment" else found
        assert pod["containers"][0]["args"][-2:] == ["--ca", "/run/streamlearn/tls/ca.crt"]
        (secret,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "tls"]
        assert secret["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


if __name__ == "__main__":
    text = ",\n".join(f'"{name}": {json.dumps(lines, indent=None)}' for name, lines in summary().items())
    GOLDEN.write_text(f"{{\n{text}\n}}\n")

"""Settings of stores and registries, seen in a node."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from streamlearn.apps import load_app
from streamlearn.models.tf_calls import Place
from streamlearn.serving.node import Node
from streamlearn.settings.versions import RegistrySettings
from streamlearn.testing import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "synthetic"


def said(folder: Path, listen: str) -> list[str]:
    places = [f"versions.store={folder}/store", f"registry.url=sqlite://{folder}/registry.db"]
    return [*places, f"front.listen={listen}", "front.http=", "serving.device=cpu"]


@pytest.mark.parametrize(("listen", "host"), [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", socket.gethostname())])
def test_a_node_has_a_name_that_no_node_of_another_machine_has(tmp_path: Path, listen: str, host: str) -> None:
    with Node(load_app(EXAMPLE, said(tmp_path, listen)), places=[Place("/CPU:0")]) as node:
        names = wait_until(lambda: [each.name for each in node._registry.nodes()], "its first heartbeat")
        assert names == [f"{host}:{node.grpc.rpartition(':')[2]}"]


def test_a_node_opens_its_registry_and_its_store_with_the_settings(tmp_path: Path) -> None:
    odd = {"reach_s": 1.25, "poll_ms": 17, "node_ttl_s": 21.5, "acks_max": 77, "connections_max": 5, "notes_max": 79}
    folder = load_app(EXAMPLE, said(tmp_path, "127.0.0.1:0"))
    settings = folder.settings
    registry, versions = structs.replace(settings.registry, **odd), structs.replace(settings.versions, fetch_threads=3)
    folder = replace(folder, settings=structs.replace(settings, registry=registry, versions=versions))
    with Node(folder, places=[Place("/CPU:0")]) as node:
        assert node._registry.settings == folder.settings.registry
        assert folder.settings.registry == RegistrySettings(url=f"sqlite://{tmp_path}/registry.db", **odd)  # type: ignore[arg-type]
        source = node._replica._stager._source
        assert source.store.settings == folder.settings.versions
        assert source.loading.fetch_threads == 3

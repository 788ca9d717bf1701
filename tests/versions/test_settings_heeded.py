"""Settings of stores and registries, each set to an odd value and seen where it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from streamlearn.apps import AppFolder, load_app
from streamlearn.errors import Oversize
from streamlearn.publisher import compact_apart
from streamlearn.settings.versions import RegistrySettings, VersionSettings
from streamlearn.versions import Chain, load, open_store
from streamlearn.versions.format import fetch as fetching
from streamlearn.versions.format import loading
from streamlearn.versions.pointer.model import Model
from streamlearn.versions.store import remote
from tests.versions.history import MODEL, Trainer, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "synthetic"
ODD_VERSIONS: dict[str, Any] = {
    "file_bytes_max": 65_537, "fetch_threads": 3, "request_timeout_ms": 12_345, "attempts_max": 7, "entries_max": 9,
}  # fmt: skip
ODD_REGISTRY: dict[str, Any] = {
    "reach_s": 1.25, "poll_ms": 17, "node_ttl_s": 21.5, "acks_max": 77, "move_acks_max": 78, "connections_max": 5,
    "notes_max": 79, "silent_s": 123.5,
}  # fmt: skip


@pytest.fixture
def app(tmp_path: Path) -> AppFolder:
    """An application in whose folder every setting of stores and registries is odd."""
    said = [f"versions.store={tmp_path}/store", f"registry.url=sqlite://{tmp_path}/registry.db"]
    folder = load_app(EXAMPLE, said)
    versions = structs.replace(folder.settings.versions, **ODD_VERSIONS)
    registry = structs.replace(folder.settings.registry, **ODD_REGISTRY)
    return replace(folder, settings=structs.replace(folder.settings, versions=versions, registry=registry))


def test_every_setting_of_stores_and_registries_is_odd_here(app: AppFolder) -> None:
    keys = {"signing_key", "trusted_keys"}  # test_signatures.py sees them
    for kind, mine in ((VersionSettings(), app.settings.versions), (RegistrySettings(), app.settings.registry)):
        same = {name for name, value in structs.asdict(kind).items() if getattr(mine, name) == value}
        assert same - keys == set(), "give it an odd value here, and see it at its use"


def test_a_store_gives_its_settings_to_whoever_writes_and_reads_versions_in_it(app: AppFolder) -> None:
    store = open_store(app.store_url, settings=app.settings.versions)
    assert store.files.file_bytes_max == ODD_VERSIONS["file_bytes_max"]
    assert store.loading.fetch_threads == ODD_VERSIONS["fetch_threads"]


def test_files_are_no_larger_than_the_setting_whoever_writes_them(tmp_path: Path) -> None:
    small = VersionSettings(file_bytes_max=ODD_VERSIONS["file_bytes_max"])
    url = str(tmp_path / "store")
    trainer = Trainer(open_store(url, settings=small), settings=None)
    for seed in range(1, 40):
        keys = np.arange(seed * 1_000, seed * 1_000 + 500, dtype=np.uint64)
        trainer.tables["main"].push(keys, np.ones((500, 4), np.float32), now_ms=seed * 1_000, admit=[(500, 1)])
    trainer.cut(1)
    trainer.learn(2)
    trainer.cut(2)

    def largest(version: int) -> tuple[int, int]:
        files = Chain.find(trainer.store, MODEL, version).links[0].manifest.of_kind("rows")
        return max(file.bytes for file in files), len(files)

    assert largest(1)[0] <= small.file_bytes_max
    assert largest(1)[1] > 3
    compact_apart(url, MODEL, small)(2)
    assert largest(2)[0] <= small.file_bytes_max
    assert largest(2)[1] > 3


def test_files_are_fetched_by_as_many_threads_as_the_setting_says(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainer(local).story([1])
    seen: list[int] = []

    def spied(jobs: Any, work: Callable[[Any], Any], *, threads: int) -> Any:
        seen.append(threads)
        return fetching.in_order(jobs, work, threads=threads)

    monkeypatch.setattr(loading, "in_order", spied)
    store = open_store(local.url, settings=VersionSettings(fetch_threads=3))
    load(Chain.find(store, MODEL), serving("float32"))
    assert set(seen) == {3}


def test_requests_to_an_object_store_are_bounded_by_the_settings() -> None:
    odd = VersionSettings(request_timeout_ms=12_345, attempts_max=7)
    bounds = remote._bounded("s3", odd, {})["config_kwargs"]
    assert bounds["connect_timeout"] == bounds["read_timeout"] == 12.345
    assert bounds["retries"] == {"total_max_attempts": 7}


def test_a_folder_with_more_entries_than_the_setting_is_not_listed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), settings=VersionSettings(entries_max=2))
    for name in ("a", "b", "c"):
        store.create(f"ctr/{name}", b"1")
    with pytest.raises(Oversize, match="entries, but the limit is 2"):
        store.entries("ctr")


def test_verbs_and_the_console_open_store_and_registry_with_the_settings(app: AppFolder) -> None:
    model = Model(app.app.name, app.store_url, app.registry_url, app.settings)
    assert model.store.settings == app.settings.versions
    assert model.registry is not None
    with model.registry as registry:
        assert registry.settings == app.settings.registry

"""The compile cache: only what is as it was written reaches TensorFlow, and there is a bound of it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from streamlearn.errors import UsageError
from streamlearn.serving.graphs.compile_cache import CompileCache, kind_of_machine
from streamlearn.settings import ServingSettings


def files_of(cache: CompileCache) -> list[str]:
    return sorted(file.name for file in cache.folder.iterdir())


def test_files_are_kept_while_they_are_as_they_were_written(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "kept", 1_000)
    for name in ("cut", "changed", "whole"):
        (cache.folder / f"{name}.pb").write_bytes(name.encode() * 10)
    cache.seal()
    (cache.folder / "unsealed.pb").write_bytes(b"a process died while it wrote this")
    (cache.folder / "cut.pb").write_bytes(b"cutcut")
    (cache.folder / "changed.pb").write_bytes(b"chanGed" * 10)
    (cache.folder / "gone.pb.sha256").write_text("of a file that is no more")
    (cache.folder / "gone.pb.sha256.77").write_text("of a file that is no more")
    CompileCache(cache.folder, 1_000).sweep()
    assert files_of(cache) == ["whole.pb", "whole.pb.sha256"]
    assert sum(file.stat().st_size for file in cache.folder.glob("*.pb")) == len("whole") * 10


def test_what_was_not_read_for_longest_goes_first(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, 250)
    for age_s, name in ((30, "b"), (20, "c"), (40, "a"), (10, "d")):
        (tmp_path / f"{name}.pb").write_bytes(name.encode() * 100)
        os.utime(tmp_path / f"{name}.pb", (1_000_000 - age_s, 900_000))
    cache.seal()
    assert files_of(cache) == ["c.pb", "c.pb.sha256", "d.pb", "d.pb.sha256"]
    CompileCache(tmp_path, 0).sweep()
    assert files_of(cache) == []


def test_tensorflow_is_told_before_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServingSettings(cache_folder=str(tmp_path))
    monkeypatch.setenv("TF_XLA_FLAGS", "--other=1")
    with pytest.raises(UsageError, match="TensorFlow is already loaded"):
        CompileCache.open(settings)
    for name in [name for name in sys.modules if name == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    cache = CompileCache.open(settings)
    assert cache.folder.parent == tmp_path
    assert os.environ["TF_XLA_FLAGS"] == f"--other=1 --tf_xla_persistent_cache_directory={cache.folder}"
    with pytest.raises(UsageError, match="remove it there"):
        CompileCache.open(settings)


def test_other_flags_are_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    one = kind_of_machine(False)
    assert one == kind_of_machine(False)
    assert one.startswith("tensorflow-2.")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert kind_of_machine(False) != one


def test_the_smaller_tensorflow_for_processors_is_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "tensorflow-cpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.99.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert kind_of_machine(False).startswith("tensorflow-cpu-2.99.0-cpu-")

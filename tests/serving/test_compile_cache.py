"""The compile cache: only what is as it was written reaches TensorFlow, and there is a bound of it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamlearn.errors import UsageError
from streamlearn.serving.graphs import compile_cache
from streamlearn.serving.graphs.compile_cache import CompileCache, kind_of_machine
from streamlearn.settings import ServingSettings
from streamlearn.struct_decoder import from_plain


def files_of(cache: CompileCache) -> list[str]:
    return sorted(file.name for file in cache.folder.iterdir())


def compiled_again(file: Path) -> None:
    sealed_ns = file.with_name(f"{file.name}.sha256").stat().st_mtime_ns
    file.write_bytes(b"other bytes of the same computation")
    os.utime(file, ns=(sealed_ns + 1, sealed_ns + 1))


def test_files_are_kept_while_they_are_as_they_were_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CompileCache(tmp_path / "kept", 1_000)
    for name in ("cut", "changed", "whole", "again"):
        (cache.folder / f"{name}.pb").write_bytes(name.encode() * 10)
    cache.seal()
    begun_ns = (cache.folder / "whole.pb").stat().st_mtime_ns
    (cache.folder / "unsealed.pb").write_bytes(b"a process died while it wrote this")
    (cache.folder / "cut.pb").write_bytes(b"cutcut")
    (cache.folder / "changed.pb").write_bytes(b"chanGed" * 10)
    for name in ("cut", "changed"):  # no process wrote these
        os.utime(cache.folder / f"{name}.pb", ns=(begun_ns, begun_ns))
    compiled_again(cache.folder / "again.pb")
    (cache.folder / "gone.pb.sha256").write_text("of a file that is no more")
    (cache.folder / "gone.pb.sha256.77").write_text("of a file that is no more")
    CompileCache(cache.folder, 1_000).sweep()
    assert files_of(cache) == ["whole.pb", "whole.pb.sha256"]
    # Other processes may be about to seal the others: that is nothing to warn of.
    assert {record.args for record in caplog.records} == {("changed.pb", "is damaged"), ("cut.pb", "is damaged")}
    assert sum(file.stat().st_size for file in cache.folder.glob("*.pb")) == len("whole") * 10


def test_a_file_that_is_compiled_again_is_sealed_again(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, 1_000)
    file = tmp_path / "one.pb"
    file.write_bytes(b"first")
    cache.seal()
    compiled_again(file)
    cache.seal()
    CompileCache(tmp_path, 1_000).sweep()
    assert file.exists()


def test_processes_may_sweep_one_folder_at_the_same_time(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "kept", 1 << 20)
    for number in range(200):
        (cache.folder / f"{number}.pb").write_bytes(bytes([number]) * 1_000)
    cache.seal()
    for number in range(0, 200, 2):
        (cache.folder / f"{number}.pb").write_bytes(b"changed")
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(CompileCache(cache.folder, 20_000).sweep) for _ in range(8)]:
            done.result()
    assert len(list(cache.folder.glob("*.pb"))) == len(list(cache.folder.glob("*.sha256"))) == 20


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
    one = kind_of_machine("cpu")
    assert one == kind_of_machine("cpu")
    assert one.startswith("tensorflow-2.")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert kind_of_machine("cpu") != one


def test_the_smaller_tensorflow_for_processors_is_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "tensorflow-cpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.99.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert kind_of_machine("cpu").startswith("tensorflow-cpu-2.99.0-cpu-")


def driver(folder: Path, *models: str, version: str = "570.1", bus: str = "01") -> Path:
    """What NVIDIA's driver shows of GPUs in /proc."""
    for number, model in enumerate(models):
        gpu = folder / "gpus" / f"{number}:{bus}"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 4\nBus Location: \t {number}:{bus}\n")
    (folder / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}\nGCC version:  gcc\n")
    return folder


def test_a_gpu_and_its_driver_are_a_kind_of_machine_and_its_slot_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def kind(name: str, *models: str, device: str = "auto", **shown: str) -> str:
        monkeypatch.setattr(compile_cache, "_GPUS", driver(tmp_path / name, *models, **shown))
        return kind_of_machine(device)

    one = kind("one", "NVIDIA H200")
    assert "-nvidia-h200-" in one
    assert one == kind("moved", "NVIDIA H200", bus="c1")
    others = [
        kind("model", "NVIDIA H100 80GB HBM3"),
        kind("driver", "NVIDIA H200", version="580.2"),
        kind("several", "NVIDIA H200", "NVIDIA H100"),
        kind("cpu", "NVIDIA H200", device="cpu"),
    ]
    assert len({one, *others}) == 5
    assert others[-1] == kind_of_machine("cpu")
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert kind_of_machine("auto") == others[-1]


def test_where_the_drivers_files_are_hidden_its_program_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(compile_cache, "_GPUS", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kind_of_machine("auto") == kind_of_machine("cpu")
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "NVIDIA L4, 570.1"\n')
    program.chmod(0o755)
    assert "-nvidia-l4-570-1-" in kind_of_machine("auto")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert kind_of_machine("auto") == kind_of_machine("cpu")


def test_processes_on_gpus_share_what_xla_has_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(compile_cache, "_GPUS", driver(tmp_path / "proc", "NVIDIA H200"))
    for name in [name for name in sys.modules if name == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    for own, device in (("", "auto"), ("--xla_gpu_per_fusion_autotune_cache_dir=/own", "gpu"), ("", "cpu")):
        monkeypatch.setenv("XLA_FLAGS", own)
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        cache = CompileCache.open(from_plain({"cache_folder": str(tmp_path), "device": device}, ServingSettings))
        shared = f"--xla_gpu_per_fusion_autotune_cache_dir={cache.folder / 'autotune'}" if device == "auto" else own
        assert os.environ["XLA_FLAGS"] == shared
        assert (cache.folder / "autotune").is_dir() == (device == "auto")


def test_xla_knows_the_flag_and_would_end_the_process_otherwise(tmp_path: Path) -> None:
    script = "import tensorflow as tf; print(tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1.0)).numpy())"
    flags = f"{compile_cache._AUTOTUNE_FLAG}{tmp_path}"
    environment = {**os.environ, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "2.0"

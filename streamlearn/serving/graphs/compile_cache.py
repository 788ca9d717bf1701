"""CompileCache: a folder with what XLA compiled, for one kind of machine, kept between starts.

TensorFlow finds a file by its computation and reads it without any check. A truncated file would be an error at every
start, and a changed one is code that runs. So each file has a digest file, and a file without its digest is deleted
before TensorFlow sees it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from streamlearn.cache import cache_folder
from streamlearn.errors import UsageError
from streamlearn.extras import check_tensorflow
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.settings import ServingSettings

__all__ = ["CompileCache", "kind_of_machine"]

_LOG = logging.getLogger("streamlearn.serving.CompileCache")
_FLAG = "--tf_xla_persistent_cache_directory="
_AUTOTUNE_FLAG, _AUTOTUNE = "--xla_gpu_per_fusion_autotune_cache_dir=", "autotune"
_HIDDEN = ("", "-1", "NoDevFiles")
_SMI, _SMI_S_MAX = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"), 20
_GPUS = Path("/proc/driver/nvidia")
_CPU = Path("/proc/cpuinfo")
_NAME_CHARS_MAX = 40


class CompileCache:
    """The folder of this kind of machine, limited to `bytes_max`: the least recently read file is deleted first."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self._bytes_max = folder, bytes_max
        self._meters = ExecutionMeters()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def open(cls, settings: ServingSettings) -> CompileCache:
        """Let TensorFlow keep what it compiles, in this process and in those that it starts.

        On GPUs they also share what XLA has measured of kernels: each process would choose others, which differ in the
        last bits. Call it before TensorFlow is loaded.
        """
        flags = os.environ.get("TF_XLA_FLAGS", "").split()
        if any(flag.startswith(_FLAG) for flag in flags):
            message = f"TF_XLA_FLAGS already has {_FLAG}"
            raise UsageError(message, help="remove it there, and set serving.cache_folder")
        if "tensorflow" in sys.modules:
            message = "TensorFlow is already loaded, so its compiled code would not be cached"
            raise UsageError(message, help="open the cache before loading TensorFlow")
        root = Path(settings.cache_folder).expanduser() if settings.cache_folder else cache_folder() / "compiled"
        cache = cls(root.absolute() / kind_of_machine(settings.device), settings.cache_bytes_max)
        cache.sweep()
        os.environ["TF_XLA_FLAGS"] = " ".join([*flags, f"{_FLAG}{cache.folder}"])
        flags = os.environ.get("XLA_FLAGS", "").split()
        if _gpus(settings.device) and not any(flag.startswith(_AUTOTUNE_FLAG) for flag in flags):
            (cache.folder / _AUTOTUNE).mkdir(exist_ok=True, mode=0o700)
            os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_AUTOTUNE_FLAG}{cache.folder / _AUTOTUNE}"])
        return cache

    def seal(self) -> None:
        """Write the digests of new files after something was compiled, and delete files beyond the limit.

        Two processes may compile the same computation to other bytes; then the later file replaces the first.
        """
        for file in self._files():
            with suppress(OSError):
                if not _is_sealed(file):
                    digest_file = _digest_file(file)
                    scratch = digest_file.with_name(f"{digest_file.name}.{os.getpid()}")
                    scratch.write_text(_digest(file))
                    scratch.rename(digest_file)
        self._trim()

    def sweep(self) -> None:
        """Delete files without a digest or with another one, and files beyond the limit; others may do so meanwhile."""
        for file in self._files():
            with suppress(FileNotFoundError):
                is_sealed = _is_sealed(file)
                if is_sealed and _digest_file(file).read_text() == _digest(file):
                    continue
                # Without a digest, another process is about to write it, or was killed before it did.
                why = "is damaged" if is_sealed else "has no digest"
                level = logging.WARNING if is_sealed else logging.DEBUG
                _LOG.log(level, "the cached entry %s %s: it is compiled again", file.name, why)
                _remove(file)
        for digest_file in self.folder.glob("*.sha256*"):
            if not digest_file.with_name(digest_file.name.partition(".sha256")[0]).exists():
                digest_file.unlink(missing_ok=True)
        self._trim()

    def _trim(self) -> None:
        kept = []
        for file in self._files():
            with suppress(FileNotFoundError):
                status = file.stat()
                kept.append((max(status.st_atime, status.st_mtime), status.st_size, file))
        total = sum(size for _, size, _ in kept)
        for _, size, file in sorted(kept):
            if total <= self._bytes_max:
                break
            total -= size
            _remove(file)
        self._meters.cache.set(total)

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("*.pb")


def kind_of_machine(device: str) -> str:
    """Return a name that machines share if they run the same compiled code.

    It depends on TensorFlow's package and version, the processor, the flags of XLA, and, unless `device` is "cpu",
    the models of the GPUs and their driver. The first model is part of the name.
    """
    package = check_tensorflow() or "tensorflow"
    version = importlib.metadata.version(package)
    cpu = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", _CPU.read_text(), re.M) if _CPU.exists() else []
    facts = [*sorted(set(cpu)), os.environ.get("XLA_FLAGS", ""), os.environ.get("TF_XLA_FLAGS", "")]
    gpus = _gpus(device)
    digest = hashlib.sha256("\n".join([*facts, *gpus]).encode()).hexdigest()
    model = "-".join(re.findall(r"[a-z0-9]+", gpus[0].lower()))[:_NAME_CHARS_MAX] if gpus else "cpu"
    return f"{package}-{version}-{model}-{digest[:16]}"


def _gpus(device: str) -> list[str]:
    """Return the model of each GPU, then the driver; not bus addresses, which differ between machines."""
    if device == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        return []
    files = [*sorted(_GPUS.glob("gpus/*/information")), _GPUS / "version"]
    if len(files) > 1:
        text = "\n".join(file.read_text() for file in files)
        return re.findall(r"^(?:Model|NVRM version):\s*(.*)$", text, re.M)
    # Some containers hide the driver's files, and show its program.
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(_SMI, capture_output=True, text=True, timeout=_SMI_S_MAX, check=True).stdout
        return [line.strip() for line in listed.splitlines() if line.strip()]
    return []


def _digest_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _is_sealed(file: Path) -> bool:
    """Whether a file has a digest that was written after it."""
    digest_file = _digest_file(file)
    return digest_file.exists() and file.stat().st_mtime_ns <= digest_file.stat().st_mtime_ns


def _digest(file: Path) -> str:
    with open(file, "rb", opener=_open_unused) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _open_unused(path: str, flags: int) -> int:
    """Open a file without changing its access time, because a check does not count as use; only its owner may."""
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:
        return os.open(path, flags)


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    _digest_file(file).unlink(missing_ok=True)

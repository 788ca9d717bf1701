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
_GPUS = Path("/proc/driver/nvidia")
_CPU = Path("/proc/cpuinfo")


class CompileCache:
    """The folder of this kind of machine, limited to `bytes_max`: the least recently read file is deleted first."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self._bytes_max = folder, bytes_max
        self._meters = ExecutionMeters()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def open(cls, settings: ServingSettings) -> CompileCache:
        """Let TensorFlow keep what it compiles, in this process and in those that it starts.

        Call it before TensorFlow is loaded.
        """
        flags = os.environ.get("TF_XLA_FLAGS", "").split()
        if any(flag.startswith(_FLAG) for flag in flags):
            message = f"TF_XLA_FLAGS already has {_FLAG}"
            raise UsageError(message, help="remove it there, and set serving.cache_folder")
        if "tensorflow" in sys.modules:
            message = "TensorFlow is already loaded, so its compiled code would not be cached"
            raise UsageError(message, help="open the cache before loading TensorFlow")
        root = Path(settings.cache_folder).expanduser() if settings.cache_folder else cache_folder() / "compiled"
        cache = cls(root.absolute() / kind_of_machine(settings.device != "cpu"), settings.cache_bytes_max)
        cache.sweep()
        os.environ["TF_XLA_FLAGS"] = " ".join([*flags, f"{_FLAG}{cache.folder}"])
        return cache

    def seal(self) -> None:
        """Write the digests of new files after something was compiled, and delete files beyond the limit."""
        for file in self._files():
            digest_file = _digest_file(file)
            if not digest_file.exists():
                with suppress(OSError):
                    scratch = digest_file.with_name(f"{digest_file.name}.{os.getpid()}")
                    scratch.write_text(_digest(file))
                    scratch.rename(digest_file)
        self._trim()

    def sweep(self) -> None:
        """Delete files that were changed after they were written, and files beyond the limit."""
        for file in self._files():
            digest_file = _digest_file(file)
            if not digest_file.exists() or digest_file.read_text() != _digest(file):
                _LOG.warning("the cached entry %s is damaged or incomplete: it is compiled again", file.name)
                _remove(file)
        for digest_file in self.folder.glob("*.sha256*"):
            if not digest_file.with_name(digest_file.name.partition(".sha256")[0]).exists():
                digest_file.unlink(missing_ok=True)
        self._trim()

    def _trim(self) -> None:
        by_age = sorted((max(file.stat().st_atime, file.stat().st_mtime), file) for file in self._files())
        total = sum(file.stat().st_size for _, file in by_age)
        for _, file in by_age:
            if total <= self._bytes_max:
                break
            total -= file.stat().st_size
            _remove(file)
        self._meters.cache.set(total)

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("*.pb")


def kind_of_machine(has_gpus: bool) -> str:
    """Return a name that machines share if they run the same compiled code.

    It depends on TensorFlow's package and version, the processor, the GPUs and the flags of XLA.
    """
    package = check_tensorflow() or "tensorflow"
    version = importlib.metadata.version(package)
    cpu = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", _CPU.read_text(), re.M) if _CPU.exists() else []
    facts = [*sorted(set(cpu)), os.environ.get("XLA_FLAGS", ""), os.environ.get("TF_XLA_FLAGS", "")]
    gpus = (
        sorted(_GPUS.glob("gpus/*/information")) if has_gpus and os.environ.get("CUDA_VISIBLE_DEVICES") != "-1" else []
    )
    for file in (*gpus, *([_GPUS / "version"] if gpus else [])):
        # The GPU's model and the driver; not its bus address, which differs between machines.
        facts += re.findall(r"^(?:Model|NVRM version):.*$", file.read_text(), re.M)
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return f"{package}-{version}-{'gpu' if gpus else 'cpu'}-{digest[:16]}"


def _digest_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _digest(file: Path) -> str:
    """Return the digest of a file's content; its access time stays, because this is no use of it."""
    stat = file.stat()
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return digest


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    _digest_file(file).unlink(missing_ok=True)

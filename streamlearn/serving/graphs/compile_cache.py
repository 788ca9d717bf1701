"""The compile cache: a folder of what XLA compiled, for one kind of machine, from one start to the next.

TensorFlow finds a file by what it computes, writes it and reads it, and looks at nothing else: a file that is cut short
is an error at every start, and one that was changed is code that runs. So each file has its digest beside it, and what
has none or another goes before TensorFlow sees it.
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
from streamlearn.serving.graphs.execution_meters import ExecutionMeters
from streamlearn.settings import ServingSettings

__all__ = ["CompileCache", "kind_of_machine"]

_LOG = logging.getLogger("streamlearn.serving.CompileCache")
_FLAG = "--tf_xla_persistent_cache_directory="
_GPUS = Path("/proc/driver/nvidia")
_CPU = Path("/proc/cpuinfo")


class CompileCache:
    """The folder, and how much is in it.

    Args:
        folder: The folder of this kind of machine.
        bytes_max: Of all files together; the one that was not read for longest goes first.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self._bytes_max = folder, bytes_max
        self._meters = ExecutionMeters()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def open(cls, settings: ServingSettings) -> CompileCache:
        """Let TensorFlow keep what it compiles; called before TensorFlow is loaded.

        Processes that this one starts do the same.

        Raises:
            UsageError: TensorFlow is loaded already, or the environment names another folder.
        """
        flags = os.environ.get("TF_XLA_FLAGS", "").split()
        if any(flag.startswith(_FLAG) for flag in flags):
            message = f"TF_XLA_FLAGS already has {_FLAG}"
            raise UsageError(message, help="remove it there, and set serving.cache_folder")
        if "tensorflow" in sys.modules:
            message = "TensorFlow is already loaded, so its compiled code would not be cached"
            raise UsageError(message, help="open the cache before loading TensorFlow")
        root = Path(settings.cache_folder).expanduser() if settings.cache_folder else cache_folder() / "compiled"
        found = cls(root.absolute() / kind_of_machine(settings.device != "cpu"), settings.cache_bytes_max)
        found.sweep()
        os.environ["TF_XLA_FLAGS"] = " ".join([*flags, f"{_FLAG}{found.folder}"])
        return found

    @property
    def bytes(self) -> int:
        """How large all files are."""
        return sum(file.stat().st_size for file in self._files())

    def seal(self) -> None:
        """Write the digests of files that are new, after something was compiled, and let go of what is too much."""
        for file in self._files():
            beside = _digest_file(file)
            if not beside.exists():
                with suppress(OSError):
                    scratch = beside.with_name(f"{beside.name}.{os.getpid()}")
                    scratch.write_text(_digest(file))
                    scratch.rename(beside)
        self._trim()

    def sweep(self) -> None:
        """Let go of files that are not as they were written, and of what is too much."""
        for file in self._files():
            beside = _digest_file(file)
            if not beside.exists() or beside.read_text() != _digest(file):
                _LOG.warning("the cached entry %s is damaged or incomplete: it is compiled again", file.name)
                _remove(file)
        for beside in self.folder.glob("*.sha256*"):
            if not beside.with_name(beside.name.partition(".sha256")[0]).exists():
                beside.unlink(missing_ok=True)
        self._trim()

    def _trim(self) -> None:
        known = sorted((max(one.stat().st_atime, one.stat().st_mtime), one) for one in self._files())
        held = sum(file.stat().st_size for _, file in known)
        for _, file in known:
            if held <= self._bytes_max:
                break
            held -= file.stat().st_size
            _remove(file)
        self._meters.cache.set(held)

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("*.pb")


def kind_of_machine(has_gpus: bool) -> str:
    """A name that machines share whose compiled code is the same: by TensorFlow, processor, GPUs and flags of XLA."""
    version = importlib.metadata.version("tensorflow")
    cpu = re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", _CPU.read_text(), re.M) if _CPU.exists() else []
    said = [*sorted(set(cpu)), os.environ.get("XLA_FLAGS", ""), os.environ.get("TF_XLA_FLAGS", "")]
    gpus = (
        sorted(_GPUS.glob("gpus/*/information")) if has_gpus and os.environ.get("CUDA_VISIBLE_DEVICES") != "-1" else []
    )
    for file in (*gpus, *([_GPUS / "version"] if gpus else [])):
        # The GPU's model and the driver; not its place, which other machines have otherwise.
        said += re.findall(r"^(?:Model|NVRM version):.*$", file.read_text(), re.M)
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()
    return f"tensorflow-{version}-{'gpu' if gpus else 'cpu'}-{digest[:16]}"


def _digest_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _digest(file: Path) -> str:
    """Of what is in it; this look at it does not count as reading it."""
    known = file.stat()
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    return digest


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
    _digest_file(file).unlink(missing_ok=True)

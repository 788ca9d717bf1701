"""The environment of a peer: exactly the packages of its lock, built once into the cache folder.

An entry is named by the lock's content, so a changed lock is another environment. It does not know what runs in it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.process import run_to_end

__all__ = ["Environment"]

# Every peer has wheels for it; one of them for nothing newer.
PYTHON_VERSION = "3.11"

_FOLDER = Path(__file__).parent
_SYSTEM = "/usr/bin:/usr/local/bin"
_VENV = "venv"
_BUILD_WAIT_S_MAX = 1_200.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the packages in `requirements-NAME.lock`.

    Attributes:
        name: The lock's.
        is_system: Whether it is of the Python in the system's own place: what embeds the interpreter finds the
            library of no other.
    """

    name: str
    is_system: bool = False

    @property
    def lock(self) -> Path:
        """The file of pins and hashes; `make lock` writes it from the `.in` beside it."""
        return _FOLDER / f"requirements-{self.name}.lock"

    @property
    def entry(self) -> str:
        """The cache entry's name."""
        digest = hashlib.sha256(self.lock.read_bytes()).hexdigest()[:8]
        return f"peer-{self.name}-python-{PYTHON_VERSION}-{digest}"

    def find(self, cache: Cache) -> Path | None:
        """Its Python, or None when it was not built yet."""
        entry = cache.find(self.entry)
        return entry and _python(entry)

    def build(self, cache: Cache) -> Path:
        """Its Python, built first when it is not there.

        Raises:
            ServiceError: There is no uv, no Python of the version, or a package cannot be had.
        """
        return _python(cache.get(self.entry, self._make))

    def _make(self, folder: Path) -> None:
        uv = _uv()
        venv = folder / _VENV
        # Relocatable, because the cache moves an entry to its name when it is whole.
        made = [uv, "venv", "--quiet", "--relocatable", "--python", self._interpreter(), str(venv)]
        run_to_end("uv-venv", made, folder, wait_s_max=_BUILD_WAIT_S_MAX)
        # The lock is whole, and no package is built from source: neither is a surprise of this machine's.
        install = [uv, "pip", "install", "--quiet", "--no-build", "--no-deps", "--require-hashes"]
        install += ["--python", str(venv / "bin" / "python"), "--requirement", str(self.lock)]
        run_to_end("uv-install", install, folder, wait_s_max=_BUILD_WAIT_S_MAX)
        for log in folder.glob("*.log"):
            log.unlink()

    def _interpreter(self) -> str:
        if not self.is_system:
            return PYTHON_VERSION
        found = shutil.which(f"python{PYTHON_VERSION}", path=_SYSTEM)
        if found is None:
            message = f"there is no python{PYTHON_VERSION} in {_SYSTEM}, and {self.name} runs with no other"
            raise ServiceError(message, help="install the distribution's, where it has this version")
        return found


def _python(entry: Path) -> Path:
    return entry / _VENV / "bin" / "python"


def _uv() -> str:
    """The uv that `make setup` installs beside our own Python, else the one on PATH."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        message = f"no uv beside {sys.executable} or on PATH to build a peer's environment with"
        raise ServiceError(message, help="run `make setup`, which installs it")
    return found

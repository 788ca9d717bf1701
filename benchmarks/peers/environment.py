"""The environment of a peer: exactly the packages of its lock, built once into the cache folder.

The name of the entry contains a hash of the lock, so a changed lock makes another environment.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.process import run_to_end

__all__ = ["Environment", "ready_environments"]

Note = Callable[[str], None]

# All peers have wheels for this version, and one of them for no newer one.
PYTHON_VERSION = "3.11"

_FOLDER = Path(__file__).parent
_SYSTEM = "/usr/bin:/usr/local/bin"
_VENV = "venv"
_BUILD_WAIT_S_MAX = 1_200.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the packages in `requirements-NAME.lock`.

    Attributes:
        name: The name of the lock.
        is_system: Whether it must use the system's Python: a program that embeds the interpreter finds no other
            library.
        folder: The folder of the lock.
        is_compiled: Whether a package has no wheel, so that it is compiled here, for this processor.
    """

    name: str
    is_system: bool = False
    folder: Path = _FOLDER
    is_compiled: bool = False

    @property
    def lock(self) -> Path:
        """The file of pins and hashes, which `make lock` writes from the `.in` file."""
        return self.folder / f"requirements-{self.name}.lock"

    @property
    def entry(self) -> str:
        """The name of the cache entry."""
        digest = hashlib.sha256(self.lock.read_bytes()).hexdigest()[:8]
        return f"peer-{self.name}-python-{PYTHON_VERSION}-{digest}"

    def find(self, cache: Cache) -> Path | None:
        """Return its Python, or None if it is not built."""
        entry = cache.find(self.entry)
        return entry and _python(entry)

    def build(self, cache: Cache) -> Path:
        """Return its Python, after building it if it is missing.

        Raises:
            ServiceError: uv, Python of the version, or a package is missing.
        """
        return _python(cache.get(self.entry, self._make))

    def _make(self, folder: Path) -> None:
        uv = _uv()
        venv = folder / _VENV
        # Relocatable, because the cache renames a complete entry.
        create = [uv, "venv", "--quiet", "--relocatable", "--python", self._interpreter(), str(venv)]
        run_to_end("uv-venv", create, folder, wait_s_max=_BUILD_WAIT_S_MAX)
        # The lock is complete and nothing else is built from source, so that all machines install the same.
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        install += [] if self.is_compiled else ["--no-build"]
        install += ["--python", str(venv / "bin" / "python"), "--requirement", str(self.lock)]
        run_to_end("uv-install", install, folder, wait_s_max=_BUILD_WAIT_S_MAX)
        for log in folder.glob("*.log"):
            log.unlink()

    def _interpreter(self) -> str:
        if not self.is_system:
            return PYTHON_VERSION
        python = shutil.which(f"python{PYTHON_VERSION}", path=_SYSTEM)
        if python is None:
            message = f"there is no python{PYTHON_VERSION} in {_SYSTEM}, which {self.name} needs"
            raise ServiceError(message, help="install the distribution's package, if it has this version")
        return python


def ready_environments(environments: Mapping[str, Environment], note: Note) -> list[str]:
    """Build missing environments, and return the peers that have one. `note` gets failures and progress."""
    ready, cache = [], Cache()
    for name, environment in environments.items():
        try:
            if environment.find(cache) is None:
                note(f"peer {name}: building its environment")
            environment.build(cache)
        except ServiceError as error:
            note(f"peer {name} is not available, so its ratios are missing: {error}")
        else:
            ready.append(name)
    return ready


def _python(entry: Path) -> Path:
    return entry / _VENV / "bin" / "python"


def _uv() -> str:
    """Return the uv that `make setup` installs next to our Python, or else the one on PATH."""
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        message = f"no uv next to {sys.executable} or on PATH, which builds the environments of peers"
        raise ServiceError(message, help="run `make setup`, which installs it")
    return uv

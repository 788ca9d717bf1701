"""Prism, Beam's local runner: a binary that Beam's PrismRunner starts, given its path.

Go builds it into the cache. Without Go, Beam downloads the binary that it would use.
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.process import run_to_end

__all__ = ["PRISM_VERSION", "Prism", "prism_path"]

PRISM_VERSION = "2.77.0"  # must equal the version of the pinned apache-beam
_PACKAGE = f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{PRISM_VERSION}"
_BUILD_WAIT_S_MAX = 900.0
_DOWNLOAD_WAIT_S_MAX = 300.0
_BEAM_DOWNLOAD = """\
import shutil, sys
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer
shutil.copy(PrismJobServer(PipelineOptions([])).path_to_binary(), sys.argv[1])
"""
_LOG = logging.getLogger(__name__)


class Prism:
    """The binary in the cache. Beam starts and stops it."""

    name = "prism"

    @classmethod
    def find(cls, cache: Cache) -> Path | None:
        """Return the binary, or None if it is not in the cache."""
        entry = cache.find(_entry())
        return entry / "prism" if entry else None

    @classmethod
    def fetch(cls, cache: Cache) -> Path:
        """Return the binary, after building it, or letting Beam download it, if it is missing.

        Raises:
            ServiceError: Both failed.
        """
        return cache.get(_entry(), _make) / "prism"


def prism_path(cache: Cache | None = None) -> Path:
    """Return the binary, for PrismRunner's `--prism_location`.

    Raises:
        ServiceError: It could not be built or downloaded.
    """
    return Prism.fetch(cache or Cache())


def _entry() -> str:
    return f"prism-{PRISM_VERSION}"


def _make(folder: Path) -> None:
    go = shutil.which("go")
    if go is not None:
        run_to_end(
            "go",
            [go, "install", _PACKAGE],
            folder,
            wait_s_max=_BUILD_WAIT_S_MAX,
            environment={"GOBIN": str(folder)},
        )
        (folder / "go.log").unlink()
        return
    _LOG.warning("there is no go on PATH to build Prism %s: Beam downloads it", PRISM_VERSION)
    command = [sys.executable, "-c", _BEAM_DOWNLOAD, str(folder / "prism")]
    try:
        run_to_end("beam", command, folder, wait_s_max=_DOWNLOAD_WAIT_S_MAX)
    except ServiceError as error:
        message = f"Prism {PRISM_VERSION} could not be fetched: there is no go on PATH, and {error.message}"
        raise ServiceError(message, help="install Go 1.21 or newer, or connect this machine to a network") from error
    (folder / "beam.log").unlink()

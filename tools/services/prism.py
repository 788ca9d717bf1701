"""Prism, Beam's local runner: a binary that Beam's PrismRunner starts, given its path.

Go builds it into the cache, changed to listen on 127.0.0.1 only: a program that reaches it can run commands. A second
change is to one loop, which turned without a pause from the end of a bundle's data until the worker's answer.
Without Go, Beam downloads the binary that it would use, which listens on all networks.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import zipfile
from pathlib import Path

from streamlearn.errors import ServiceError
from tools.services.cache import Cache
from tools.services.process import run_to_end

__all__ = ["PRISM_VERSION", "Prism", "prism_path", "with_loopback", "without_spin"]

PRISM_VERSION = "2.77.0"  # must equal the version of the pinned apache-beam
_BUILT = f"prism-{PRISM_VERSION}-loopback-2"  # ingest looks for it
_DOWNLOADED = f"prism-{PRISM_VERSION}"
_MODULE = f"github.com/apache/beam/sdks/v2@v{PRISM_VERSION}"
_SERVER = "go/pkg/beam/runners/prism/internal/jobservices/server.go"
_LISTEN = 'net.Listen("tcp", fmt.Sprintf("{}:%d", port))'
_STAGE = "go/pkg/beam/runners/prism/internal/stage.go"
# A closed channel is always ready to be received from; one that is nil never is.
_READY = "case <-dataReady:\n"
_READY_ONCE = f"{_READY}\t\t\tdataReady = nil\n"
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
        entry = cache.find(_entry(cache))
        return entry / "prism" if entry else None

    @classmethod
    def fetch(cls, cache: Cache) -> Path:
        """Return the binary, after building it, or letting Beam download it, if it is missing.

        Raises:
            ServiceError: Both failed.
        """
        entry = _entry(cache)
        return cache.get(entry, _build if entry == _BUILT else _download) / "prism"


def prism_path(cache: Cache | None = None) -> Path:
    """Return the binary, for PrismRunner's `--prism_location`.

    Raises:
        ServiceError: It could not be built or downloaded.
    """
    return Prism.fetch(cache or Cache())


def with_loopback(source: str) -> str:
    """Return the source of Prism's server with its only port on 127.0.0.1.

    Raises:
        ServiceError: The source does not listen as that of this release does.
    """
    listen = _LISTEN.format("")
    if source.count("net.Listen(") != 1 or listen not in source:
        message = f"{_SERVER} of Prism {PRISM_VERSION} does not listen as expected, so it cannot be built for loopback"
        raise ServiceError(message, help="correct _LISTEN in tools/services/prism.py")
    return source.replace(listen, _LISTEN.format("127.0.0.1"))


def without_spin(source: str) -> str:
    """Return the source of Prism's stages that learns only once that a bundle's data is complete.

    Raises:
        ServiceError: The source does not wait as that of this release does.
    """
    if source.count(_READY) != 1:
        message = f"{_STAGE} of Prism {PRISM_VERSION} does not wait as expected"
        raise ServiceError(message, help="correct _READY in tools/services/prism.py")
    return source.replace(_READY, _READY_ONCE)


def _entry(cache: Cache) -> str:
    return _BUILT if cache.find(_BUILT) or shutil.which("go") else _DOWNLOADED


def _build(folder: Path) -> None:
    go, log, source = shutil.which("go") or "go", folder / "go.log", folder / _MODULE
    run_to_end("go", [go, "mod", "download", "-json", _MODULE], folder, wait_s_max=_DOWNLOAD_WAIT_S_MAX)
    text = log.read_text()
    with zipfile.ZipFile(json.loads(text[text.index("{") :])["Zip"]) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{_MODULE}/go")])
    for name, changed in ((_SERVER, with_loopback), (_STAGE, without_spin)):
        (source / name).write_text(changed((source / name).read_text()))
    command = [go, "build", "-trimpath", "-o", str(folder / "prism"), "./go/cmd/prism"]
    run_to_end("go", command, source, wait_s_max=_BUILD_WAIT_S_MAX, environment={"GOWORK": "off"})
    shutil.rmtree(folder / "github.com")
    log.unlink()


def _download(folder: Path) -> None:
    _LOG.warning("there is no go on PATH, so Beam downloads Prism %s, which listens on all networks", PRISM_VERSION)
    command = [sys.executable, "-c", _BEAM_DOWNLOAD, str(folder / "prism")]
    try:
        run_to_end("beam", command, folder, wait_s_max=_DOWNLOAD_WAIT_S_MAX)
    except ServiceError as error:
        message = f"Prism {PRISM_VERSION} could not be fetched: there is no go on PATH, and {error.message}"
        raise ServiceError(message, help="install Go 1.21 or newer, or connect this machine to a network") from error
    (folder / "beam.log").unlink()

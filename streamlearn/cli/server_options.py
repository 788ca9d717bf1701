"""Options and signals that the verbs which run servers share: console, ps, serve and up."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from streamlearn.errors import UsageError

__all__ = ["TlsCertOption", "TlsKeyOption", "stop_event", "tls_files"]

TlsCertOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TLS certificate of the server, PEM.")
]
TlsKeyOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Private key of the certificate, PEM.")
]


def tls_files(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return the files of certificate and key, or None without TLS; raises UsageError if only one is given."""
    if cert is not None and key is not None:
        return cert, key
    if cert is None and key is None:
        return None
    message = "give --tls-cert and --tls-key together"
    raise UsageError(message, help="add the missing one, or leave out both")


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; further signals have no effect."""
    event = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: event.set())
    return event

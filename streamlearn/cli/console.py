"""`streamlearn console`: one page on which people watch a model's versions and nodes, and take a bad one back."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from streamlearn.cli.model import open_model
from streamlearn.cli.options import AppArgument, SetOption
from streamlearn.cli.place import Place
from streamlearn.errors import UsageError

__all__ = ["console"]


def console(
    app: AppArgument,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where; laid over console.listen.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Where versions are; laid over STREAMLEARN_STORE.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry", metavar="URL", help="Where nodes are; laid over STREAMLEARN_REGISTRY. `none` is none."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Holds what callers must say to move the pointer; without it nobody may.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Its certificates, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Their key, PEM.")] = None,
    set_: SetOption = None,
) -> None:
    """Serve a page with APP's versions and nodes, until it is told to end; read-only without --token-file."""
    if (tls_cert is None) != (tls_key is None):
        message = "--tls-cert and --tls-key belong together, and one is missing"
        raise UsageError(message, help="give both, or neither")
    from streamlearn.console import ConsoleServer
    from streamlearn.ps import read_token
    from streamlearn.serving.address import check_address
    from streamlearn.telemetry import serve_metrics, set_up_logging

    found = open_model(None, Place(app=app, store=store, registry=registry, set_=set_))
    settings = found.settings.console
    if listen is not None:
        settings = structs.replace(settings, listen=listen)
    token = None if token_file is None else read_token(token_file)
    check_address("console.listen", settings.listen, has_token=token is not None)
    found = replace(found, settings=structs.replace(found.settings, console=settings))
    set_up_logging(found.settings.telemetry)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    metrics = serve_metrics(found.settings.telemetry)
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    try:
        with ConsoleServer(found, settings, token=token, tls=tls) as served:
            # One line that scripts can wait for.
            may = "moves need the token" if token is not None else "read-only: no --token-file"
            print(f"the console of {found.name} is at {served.url} ({may})", flush=True)
            ended.wait()
    finally:
        if metrics is not None:
            metrics.close()

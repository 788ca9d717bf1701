"""`streamlearn console`: one page on which people watch a model's versions and nodes, and take a bad one back."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from streamlearn.cli.model.model_options import open_model
from streamlearn.cli.model.place import Place
from streamlearn.cli.options import AppArgument, SetOption
from streamlearn.errors import UsageError

__all__ = ["console"]

REACH_S = 1.0


def console(
    app: AppArgument,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Address of the page; overrides console.listen.")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="URL of the store; overrides STREAMLEARN_STORE.")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry", metavar="URL", help="URL of the registry, or `none`; overrides STREAMLEARN_REGISTRY."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that a move of the pointer needs. Without it, the page is read-only.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate of the page, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate, PEM.")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Serve a web page that shows APP's versions and nodes and moves the pointer. Read-only without --token-file."""
    if (tls_cert is None) != (tls_key is None):
        message = "give --tls-cert and --tls-key together"
        raise UsageError(message, help="add the missing one, or leave out both")
    from streamlearn.apps import load_app
    from streamlearn.console import ConsoleServer
    from streamlearn.ingest.output.progress_log import DeadShare
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
    dead_share = DeadShare(load_app(app, [f"topics.reach_s={REACH_S:g}", *(set_ or ())]))
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    try:
        with ConsoleServer(found, settings, token=token, tls=tls, dead_share=dead_share) as served:
            # One line that scripts can wait for.
            may = "moves need the token" if token is not None else "read-only: no --token-file"
            print(f"the console of {found.name} is at {served.url} ({may})", flush=True)
            ended.wait()
    finally:
        dead_share.close()
        if metrics is not None:
            metrics.close()

"""`streamlearn console`: a web page that shows a model's versions and nodes and moves its pointer."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from streamlearn.cli.model.model_options import open_model
from streamlearn.cli.options import (
    AppArgument,
    Place,
    RegistryOption,
    SetOption,
    StoreOption,
    TlsCertOption,
    TlsKeyOption,
    stop_event,
    tls_files,
)
from streamlearn.cli.run.workers import LeaderOption, WorkersTokenOption

__all__ = ["console"]

REACH_S = 1.0
_WORKERS_S_MAX = 1.0


def console(
    app: AppArgument,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the page; overrides console.listen.")
    ] = None,
    store: StoreOption = None,
    registry: RegistryOption = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that a move of the pointer needs. Without it, the page is read-only.",
        ),
    ] = None,
    leader: LeaderOption = "",
    shards_token_file: WorkersTokenOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    set_: SetOption = None,
) -> None:
    """Serve a web page that shows APP's versions and nodes and moves the pointer. Read-only without --token-file."""
    tls = tls_files(tls_cert, tls_key)
    from streamlearn.access.address import check_address
    from streamlearn.access.renewal import open_token
    from streamlearn.apps import load_app
    from streamlearn.console import ConsoleServer
    from streamlearn.errors import ServiceError
    from streamlearn.given_up import GivenUpFile
    from streamlearn.hints import Given
    from streamlearn.ingest.output.progress_log import DeadShare
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.online.fold_progress import fold_facts
    from streamlearn.telemetry import set_up_logging
    from streamlearn.trainer.workers.worker_facts import worker_facts

    model = open_model(None, Place(app=app, store=store, registry=registry, set_=set_))
    settings = model.settings.console if listen is None else structs.replace(model.settings.console, listen=listen)
    token, shards_token = (None if file is None else open_token(file) for file in (token_file, shards_token_file))
    check_address("console.listen", settings.listen, has_token=token is not None)
    model = replace(model, settings=structs.replace(model.settings, console=settings))
    set_up_logging(model.settings.telemetry)
    stopped = stop_event()
    metrics: AbstractContextManager[object] = nullcontext()
    try:
        metrics = serve_metrics(model.settings.telemetry)
    except ServiceError as error:  # most often `streamlearn up` has this port
        print(f"the console goes on without metrics of its own: {error.message}", file=sys.stderr, flush=True)
    folder = load_app(app, [f"topics.reach_s={REACH_S:g}", *(set_ or ())])
    given = Given.of({"app": app.resolve(), "store": store, "registry": registry, "set_": set_})
    with (
        metrics,
        closing(DeadShare(folder)) as dead_share,
        ConsoleServer(
            model,
            settings,
            token=token,
            tls=tls,
            served_name=folder.app.served_name,
            dead_share=dead_share,
            given_up=GivenUpFile(app).read,
            features=partial(fold_facts, folder),
            workers=partial(worker_facts, folder, leader, shards_token, _WORKERS_S_MAX),
            given=given,
            first_window=folder.first_window,
        ) as server,
    ):
        # Scripts wait for this line.
        access = "moves need the token" if token is not None else "read-only: no --token-file"
        print(f"the console of {model.name} is at {server.url} ({access})", flush=True)
        stopped.wait()

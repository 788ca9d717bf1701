"""`streamlearn serve`: a node that answers requests with an application's versions until a signal arrives."""

from __future__ import annotations

import gc
import os
import sys
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from streamlearn.cli.options import (
    AppArgument,
    AuthorityOption,
    SetOption,
    TlsCertOption,
    TlsKeyOption,
    stop_event,
    tls_files,
)
from streamlearn.cli.run.serve_tune import tune
from streamlearn.hints import with_hints
from streamlearn.pulse import PULSE

if TYPE_CHECKING:
    pass


__all__ = ["serve"]

# How long a lane waits for the GIL of another Python thread. Python's default is longer than most answers take.
_SWITCH_S = 0.0005
_IS_DEFAULT = f"{__name__}.is_default"


class _DefaultVerb(TyperGroup):
    """A verb that also runs without a sub-verb.

    It runs the sub-verb that the first word names; without such a word, the first sub-verb gets all words.

    An application in a folder with the name of a sub-verb is given as `./NAME`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the first sub-verb if none is given."""
        ctx.meta[_IS_DEFAULT] = not args or args[0] not in self.commands
        if ctx.meta[_IS_DEFAULT]:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the sub-verb. The help of an inserted one does not show its name."""
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.meta[_IS_DEFAULT] and command is not None:
            command = copy(command)
            path = {"command_path": property(lambda inner: inner.parent.command_path)}
            command.context_class = type("UnnamedContext", (command.context_class,), path)
        return name, command, rest


serve = typer.Typer(
    cls=_DefaultVerb, help="Answer requests with an application's versions; `serve tune` proposes bucket sizes."
)


@serve.command()
@with_hints
def node(
    app: AppArgument,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for gRPC; overrides front.listen.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for HTTP, or `none`; overrides front.http.")
    ] = None,
    lanes: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="Parallel executions; overrides serving.lanes.")
    ] = None,
    versions_kept: Annotated[
        int | None,
        typer.Option(metavar="COUNT", min=1, help="Older versions to keep; overrides replica.versions_kept."),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the node alone; by default HOST:PORT.")] = "",
    version: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Answer with this version for good; no rollback or promotion moves it."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that callers must send.")
    ] = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    ca: AuthorityOption = None,
    set_: SetOption = None,
) -> None:
    """Answer requests with APP's versions by gRPC and HTTP. SIGTERM finishes requests in progress first.

    `streamlearn serve tune` proposes bucket sizes for recorded requests.
    """
    tls = tls_files(tls_cert, tls_key)
    from streamlearn.access.address import check_address
    from streamlearn.access.renewal import open_token
    from streamlearn.apps import load_app
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.serving.graphs.compile_cache import CompileCache
    from streamlearn.serving.inherited_sockets import inherited_sockets
    from streamlearn.telemetry import set_up_logging

    names = ("front.listen", "front.http", "serving.lanes", "replica.versions_kept")
    values = (listen, "" if http == "none" else http, lanes, versions_kept)
    given = (f"{setting}={value}" for setting, value in zip(names, values, strict=True) if value is not None)
    folder = load_app(app, (*(set_ or ()), *given))
    settings = folder.settings
    token = None if token_file is None else open_token(token_file)
    sockets = inherited_sockets(os.environ, has_http=bool(settings.front.http))
    addresses = (settings.front.listen, settings.front.http) if sockets is None else sockets.addresses
    for setting, address in zip(("front.listen", "front.http"), addresses, strict=True):
        if address:
            check_address(setting, address, has_token=token is not None)
    set_up_logging(settings.telemetry)
    sys.setswitchinterval(_SWITCH_S)
    stopped = stop_event()
    cache = CompileCache.open(folder.serving)
    from streamlearn.serving.node import Node

    with (
        serve_metrics(settings.telemetry),
        Node(
            folder, name=name, token=token, tls=tls, authority=ca, cache=cache, sockets=sockets, version=version
        ) as running,
    ):
        if running.wait_ready(stopped):
            # Objects loaded by now live until the end: keep full collections from visiting them.
            gc.freeze()
            # Scripts wait for this line.
            where = running.grpc if running.http is None else f"{running.grpc}, http {running.http}"
            answers = getattr(running.status().active, "version", "none")
            print(f"{folder.app.name} is served at grpc {where}: version {answers}", flush=True)
            PULSE.ready()
            stopped.wait()
            PULSE.stopping()


serve.command()(with_hints(tune))

"""`streamlearn nearline`: keeps lists of candidates for users who just acted."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Annotated

import typer

from streamlearn.cli.options import AppArgument, AuthorityOption, SetOption, TokenFileOption, authority_file, stop_event
from streamlearn.errors import FoldOver
from streamlearn.pulse import PULSE

__all__ = ["nearline"]

_METERS_S = 1.0


def nearline(
    app: AppArgument,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="gRPC address of a node; may be repeated.", show_default="those in the registry"
        ),
    ] = None,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    set_: SetOption = None,
) -> None:
    """Refresh lists of items for users of APP who just acted, until a signal arrives."""
    from streamlearn.access.renewal import open_token
    from streamlearn.apps import load_app
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.nearline.meters import NearlineMeters
    from streamlearn.nearline.nearline_loop import NearlineLoop
    from streamlearn.nearline.node_search import NodeSearch
    from streamlearn.online.candidate_lists import list_group
    from streamlearn.telemetry import set_up_logging
    from streamlearn.versions import open_registry
    from streamlearn.versions.pointer.registry import Node

    ca, folder = authority_file(ca), load_app(app, set_ or ())
    list_group(folder)
    settings = folder.settings
    set_up_logging(settings.telemetry)
    stopped, meters = stop_event(), NearlineMeters()
    token = None if token_file is None else open_token(token_file)
    given = [
        Node(boot_id=address, name=address, state="ready", grpc=address, has_tls=ca is not None) for address in at or ()
    ]
    with ExitStack() as held:
        held.enter_context(serve_metrics(settings.telemetry))
        registry = held.enter_context(open_registry(folder.registry_url, folder.app.name, settings.registry))
        nodes = (lambda: given) if given else registry.nodes
        is_ranked = settings.retrieval.nearline == "ranked"
        k = min(settings.retrieval.k_max, settings.front.candidates_max) if is_ranked else settings.retrieval.k_max
        search = NodeSearch(folder.app, k, nodes, token, is_ranked=is_ranked, authority=ca)
        loop = held.enter_context(NearlineLoop(folder, search))
        due_s = 0.0

        def beat() -> None:
            nonlocal due_s
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _METERS_S
                meters.set(loop.counts, loop.behind_s)
            if PULSE.is_due:
                PULSE.beat()

        # Scripts wait for this line.
        print(f"keeping lists for the users of {folder.app.name}", flush=True)
        PULSE.ready()
        try:
            loop.run(stopped, beat)
        except FoldOver as error:
            # Not a failure: restarted, this process would take over from the newer one.
            typer.echo(f"ended: {error.message}", err=True)
        finally:
            PULSE.stopping()

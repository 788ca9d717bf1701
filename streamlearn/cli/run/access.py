"""`streamlearn access`: writes the configuration of Envoy for the nodes of applications, follows them, and runs it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.options import AuthorityOption, SetOption, TlsCertOption, TlsKeyOption, stop_event, tls_files
from streamlearn.errors import UsageError
from streamlearn.pulse import PULSE

if TYPE_CHECKING:
    from streamlearn.gateway.envoy_process import EnvoyProcess
    from streamlearn.gateway.follow import Follower

__all__ = ["access"]

_LIVE_S = 30.0


def access(
    apps: Annotated[
        list[Path], typer.Argument(metavar="APP...", help="Folders of applications; the settings of the first decide.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the files.", show_default="APP/.streamlearn/access")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run Envoy until a signal arrives.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Write the files and end; do not follow the nodes.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the first nodes of each APP.")
    ] = 0.0,
    ca: AuthorityOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    set_: SetOption = None,
) -> None:
    """Lead callers to the nodes of each APP through Envoy: write its configuration, and follow the nodes.

    Without --run, start Envoy yourself: `envoy -c FOLDER/bootstrap.json`.
    """
    certificate, key = tls_files(tls_cert, tls_key) or (None, None)
    if run and once:
        message = "--run and --once exclude each other"
        raise UsageError(message, help="--run follows the nodes as well")
    from streamlearn.apps import load_app
    from streamlearn.gateway.envoy import Certificates
    from streamlearn.gateway.envoy_process import EnvoyProcess
    from streamlearn.gateway.follow import Follower
    from streamlearn.gateway.plan import Application
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.telemetry import set_up_logging
    from streamlearn.versions import open_registry

    folders = [load_app(app, set_ or ()) for app in apps]
    settings = folders[0].settings
    set_up_logging(settings.telemetry)
    stopped, out = stop_event(), (out or apps[0] / ".streamlearn" / "access").absolute()
    known = [Application(one.app.name, one.app.served_name, one.settings.access) for one in folders]
    tls = Certificates(*(None if file is None else file.absolute() for file in (certificate, key, ca)))
    with ExitStack() as held:
        held.enter_context(serve_metrics(settings.telemetry))
        registries = [
            held.enter_context(open_registry(one.registry_url, one.app.name, one.settings.registry)) for one in folders
        ]
        follower = Follower(known, registries, out, tls)
        if not _begun(follower, wait, stopped) or once:
            return
        envoy = held.enter_context(EnvoyProcess(out)) if run else None
        if envoy is not None:
            envoy.wait_live(_LIVE_S)
        names = ", ".join(dict.fromkeys(one.served_name for one in known))
        # Scripts wait for this line.
        print(f"{names}: access at {settings.access.listen}, files in {out}", flush=True)
        PULSE.ready()
        _follow(follower, envoy, stopped, settings.access.follow_s)
        PULSE.stopping()
        if envoy is not None:
            envoy.drain(settings.front.drain_s)


def _begun(follower: Follower, wait_s: float, stopped: threading.Event) -> bool:
    """Write the first files, with nodes of each application; return whether no signal came."""
    import time

    end_s = time.monotonic() + wait_s
    while not stopped.is_set():
        try:
            follower.step()
        except UsageError:
            if time.monotonic() >= end_s:
                raise
            stopped.wait(0.5)
        else:
            return True
    return False


def _follow(follower: Follower, envoy: EnvoyProcess | None, stopped: threading.Event, every_s: float) -> None:
    from prometheus_client import REGISTRY

    if envoy is not None:
        REGISTRY.register(envoy)
    while not stopped.wait(every_s):
        follower.step()
        if envoy is not None:
            envoy.check()
        if PULSE.is_due and (envoy is None or envoy.is_live()):
            PULSE.beat()

"""`streamlearn switch`: moves the callers of a served name from one application to another, and back."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.model.model_options import ReasonOption, author
from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import MoveRefused, NodeNotReady, PartlyDone, RegistryUnreachable, UsageError

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.versions.pointer.registry import Node, Registry
    from streamlearn.versions.pointer.switch_log import Switch, SwitchLog

__all__ = ["switch"]

_WAIT_S = 10.0
_LOOK_S = 0.02


def switch(
    app: AppArgument,
    to: Annotated[str, typer.Option(metavar="NAME", help="Name of the application that answers from now on.")] = "",
    done: Annotated[
        bool, typer.Option("--done", help="End the migration: the application that does not answer can be stopped.")
    ] = False,
    reason: ReasonOption = "",
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for nodes.")
    ] = _WAIT_S,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Let another application answer APP's callers. Without --to and --done, print which one does."""
    from streamlearn.apps import load_app
    from streamlearn.versions import open_store
    from streamlearn.versions.pointer.switch_log import SwitchLog

    if to and done:
        message = "--to cannot be combined with --done"
        raise UsageError(message, help="switch first, look at the figures, and end the migration later")
    folder = load_app(app, tuple(set_ or ()))
    store = open_store(folder.store_url, settings=folder.settings.versions)
    log = SwitchLog(store, folder.app.served_name)
    begin_s = time.monotonic()
    if done:
        newest = log.end(by=author(), reason=reason)
    elif to:
        _check_ready(folder, log, to)
        newest = log.switch(to, by=author(), reason=reason)
    else:
        newest = log.newest()
    rows, is_whole = _followed(folder, newest, wait if to else 0.0, begin_s)
    if json:
        facts = {"served_name": folder.app.served_name, "current": newest.current, "other": newest.other}
        print_json(facts | {"seq": newest.seq, "nodes": rows})
    else:
        is_ready = any(row["application"] == newest.other and row["state"] == "aside" for row in rows)
        stands = "stands ready beside it" if is_ready else "has no node that is ready"
        beside = f"; {newest.other} {stands}" if newest.other else ""
        typer.echo(f"{newest.current} answers the callers of {folder.app.served_name}{beside}")
        print_table(rows)
    if to and not is_whole:
        message = f"not every node has followed switch {newest.seq} within {wait:g} s"
        raise PartlyDone(message, help="the record is written, and nodes follow when they read it; see their logs")


def _check_ready(folder: AppFolder, log: SwitchLog, to: str) -> None:
    """Check that the application can answer: a node of it is ready, and what it relearned is good."""
    newest = log.newest()
    if to == newest.current or to != newest.other:
        return  # the log says what is wrong
    from streamlearn.versions.pointer.parity import why_not_par

    try:
        with _registry(folder, to) as registry:
            nodes = registry.nodes()
    except RegistryUnreachable as error:
        # The way back must not depend on the registry.
        typer.echo(f"nodes are unknown: {error.message}", err=True)
    else:
        if not any(node.state in ("aside", "ready") for node in nodes):
            states = ", ".join(f"{node.name} is {node.state}" for node in nodes) or "it has none"
            message = f"no node of {to!r} is ready: {states}"
            raise NodeNotReady(message, help="start them, or wait until they are; see `streamlearn switch APP`")
    if why := why_not_par(log.store, newest.current, to):
        message = f"{to!r} is not as good as {newest.current!r} yet: {why}"
        help = "wait for more samples; `streamlearn versions` shows the figures of both applications"
        raise MoveRefused(message, help=help)


def _followed(folder: AppFolder, newest: Switch, wait_s: float, begin_s: float) -> tuple[list[dict[str, object]], bool]:
    """Wait until the nodes of both applications stand where the switch wants them, and return their rows."""
    sides = {newest.current: ("ready", "stale")} | ({newest.other: ("aside",)} if newest.other else {})
    acted: dict[str, float] = {}
    while True:
        found: list[tuple[str, Node, bool]] = []
        with suppress(RegistryUnreachable):
            for model, wanted in sides.items():
                with _registry(folder, model) as registry:
                    nodes = registry.nodes()
                found += [(model, node, node.state in wanted) for node in nodes if node.state != "starting"]
        now_s = time.monotonic()
        for _, node, is_there in found:
            if is_there:
                acted.setdefault(node.boot_id, (now_s - begin_s) * 1e3)
        is_whole = all(is_there for _, _, is_there in found) and any(model == newest.current for model, _, _ in found)
        if is_whole or now_s - begin_s >= wait_s:
            break
        time.sleep(_LOOK_S)
    rows: list[dict[str, object]] = [
        {
            "application": model,
            "node": node.name,
            "state": node.state,
            "followed_ms": round(acted[node.boot_id], 1) if wait_s and node.boot_id in acted else None,
        }
        for model, node, _ in found
    ]
    return rows, is_whole


def _registry(folder: AppFolder, model: str) -> Registry:
    from streamlearn.versions.pointer.registry import open_registry

    return open_registry(folder.registry_url, model, folder.settings.registry)

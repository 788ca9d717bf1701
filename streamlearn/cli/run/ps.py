"""`streamlearn ps`: one shard of an application's parameter server, and how the shards are."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamlearn.cli.options import JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import PartlyDone, UsageError
from streamlearn.pulse import PULSE

if TYPE_CHECKING:
    from streamlearn.ps.orders import ShardStats
    from streamlearn.ps.survey import Surveyed

__all__ = ["ps"]

_AppOption = Annotated[Path | None, typer.Option("--app", metavar="APP", help="Folder of an application.")]
_TokenOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the token that clients must send.")
]

_STATS_WAIT_S_MAX = 5.0
# How often it looks whether it is at work, where nobody wants to hear of it more often.
_LOOK_S = 5.0

ps = typer.Typer(invoke_without_command=True)


@ps.callback()
def serve(
    context: typer.Context,
    app: _AppOption = None,
    shard: Annotated[
        str, typer.Option("--shard", metavar="NUMBER/COUNT", help="Number of this shard and of all: 0/2, 1/2.")
    ] = "0/1",
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDRESS", help="Address: HOST:PORT or unix:/PATH; may be repeated."),
    ] = None,
    token_file: _TokenOption = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate of the shard, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate, PEM.")
    ] = None,
    set_: SetOption = None,
) -> None:
    """Run one shard of an application's parameter server."""
    if context.invoked_subcommand is not None:
        return
    if (tls_cert is None) != (tls_key is None):
        message = "give --tls-cert and --tls-key together"
        raise UsageError(message, help="add the missing one, or leave out both")
    from streamlearn.apps import load_app
    from streamlearn.ps import Door, Place, ShardServer, Shelf, read_token
    from streamlearn.ps.metrics import serve_shard_metrics
    from streamlearn.table import declared_tables
    from streamlearn.telemetry import set_up_logging

    place, folder = Place.parse(shard), load_app(_given(app), set_ or ())
    settings = folder.settings.ps
    if listen:
        settings = msgspec.structs.replace(settings, listen=listen)
    set_up_logging(folder.settings.telemetry)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    tables = declared_tables(folder.app.features, folder.settings.tables)
    token = None if token_file is None else read_token(token_file)
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    server = ShardServer(place, tables, Shelf.of(folder), settings, token=token, tls=tls)
    # Without what its certificate is looked at with, it cannot be asked.
    can_ask = tls is None or settings.tls_ca
    door = Door(server.addresses[0], place, folder.app.name, tables, settings, token=token) if can_ask else None
    with server, serve_shard_metrics(server, folder.settings.telemetry):
        # One line that scripts can wait for.
        print(f"shard {place} of {folder.app.name} listens at {' '.join(server.addresses)}", flush=True)
        PULSE.ready()
        while not ended.wait(PULSE.every_s or _LOOK_S):
            if PULSE.is_due and (door is None or door.answers(PULSE.every_s or _LOOK_S)):
                PULSE.beat()
        PULSE.stopping()
        if door is not None:
            door.close()


@ps.command()
def stats(
    app: _AppOption = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="ADDRESS", help="Address of each shard, in order; overrides ps.addresses."),
    ] = None,
    token_file: _TokenOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show the content, position and traffic of each shard. Ends with status 3 if some do not answer."""
    from streamlearn.apps import load_app
    from streamlearn.ps import read_token, survey
    from streamlearn.table import declared_tables

    folder = load_app(_given(app), set_ or ())
    # Who asks how things are wants to know now, also that a shard is away.
    settings = msgspec.structs.replace(folder.settings.ps, order_wait_s_max=_STATS_WAIT_S_MAX)
    if address:
        settings = msgspec.structs.replace(settings, addresses=address)
    if not settings.addresses:
        message = f"the shards of {folder.app.name} are unknown: ps.addresses is empty"
        raise UsageError(message, help="give --address for each shard, or set ps.addresses in app.toml")
    token = None if token_file is None else read_token(token_file)
    tables = declared_tables(folder.app.features, folder.settings.tables)
    found = survey(folder.app.name, tables, settings, token)
    silent = [one.error for one in found if one.error is not None]
    if len(silent) == len(found):
        why = "; ".join(error.message for error in silent)
        raise type(silent[0])(why, help=silent[0].help)
    if json:
        print_json([_said(one) for one in found])
    else:
        print_table([_row(one.stats) for one in found if one.stats is not None])
    if silent:
        why = "; ".join(error.message for error in silent)
        message = f"{len(silent)} of {len(found)} shards did not answer: {why}"
        raise PartlyDone(message, help=silent[0].help)


def _said(one: Surveyed) -> dict[str, Any]:
    """A shard's figures, or why there are none; its address with either."""
    if one.error is not None:
        return {"address": one.address, "error": one.error.message, "help": one.error.help}
    return {"address": one.address, **msgspec.to_builtins(one.stats)}


def _given(app: Path | None) -> Path:
    if app is None:
        message = "no application was given"
        raise UsageError(message, help="give --app FOLDER, such as --app examples/kuairand")
    return app


def _row(one: ShardStats) -> dict[str, Any]:
    tables = one.tables.values()
    served = one.served
    return {
        "shard": one.place,
        "epoch": "-" if one.epoch is None else str(one.epoch),
        "committed": one.retained[-1] if one.retained else "-",
        "sealed": "-" if one.sealed is None else one.sealed,
        "rows": sum(table.keys for table in tables),
        "images": sum(table.images for table in tables),
        "bytes": sum(table.bytes for table in tables),
        "pulled rows": round(served["pull_rows"]),
        "pushed rows": round(served["push_rows"]),
        "connections": round(served["connections"]),
        "refused": round(sum(value for name, value in served.items() if name.startswith("refused_"))),
    }

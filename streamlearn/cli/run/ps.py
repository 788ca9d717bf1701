"""`streamlearn ps`: one shard of an application's parameter server; `ps stats`: the state of all shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamlearn.cli.options import JsonOption, SetOption, TlsCertOption, TlsKeyOption, stop_event, tls_files
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.errors import PartlyDone, UsageError
from streamlearn.pulse import PULSE

if TYPE_CHECKING:
    from streamlearn.ps.orders import ShardStats
    from streamlearn.ps.survey import ShardState

__all__ = ["ps"]

_AppOption = Annotated[Path | None, typer.Option("--app", metavar="APP", help="Folder of an application.")]
_TokenOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the token that clients must send.")
]

_STATS_WAIT_S_MAX = 5.0
# Interval of the health check without a supervisor that wants shorter ones.
_CHECK_S = 5.0

ps = typer.Typer(invoke_without_command=True)


@ps.callback()
def serve(
    context: typer.Context,
    app: _AppOption = None,
    shard: Annotated[
        str, typer.Option(metavar="NUMBER/COUNT", help="Number of this shard and of all: 0/2, 1/2.")
    ] = "0/1",
    listen: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Address: HOST:PORT or unix:/PATH; may be repeated.")
    ] = None,
    token_file: _TokenOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    set_: SetOption = None,
) -> None:
    """Run one shard of an application's parameter server."""
    if context.invoked_subcommand is not None:
        return
    tls = tls_files(tls_cert, tls_key)
    from streamlearn.access.renewal import open_token
    from streamlearn.apps import load_app
    from streamlearn.ps import Door, Place, ShardServer, Shelf
    from streamlearn.ps.metrics import serve_shard_metrics
    from streamlearn.table import declared_tables
    from streamlearn.telemetry import set_up_logging

    place, folder = Place.parse(shard), load_app(_required(app), set_ or ())
    settings = folder.settings.ps
    if listen:
        settings = msgspec.structs.replace(settings, listen=listen)
    set_up_logging(folder.settings.telemetry)
    stopped = stop_event()
    tables = declared_tables(folder.app.tables, folder.settings.tables)
    token = None if token_file is None else open_token(token_file)
    server = ShardServer(place, tables, Shelf.of(folder), settings, token=token, tls=tls)
    # The health check calls the shard, which with TLS needs the CA of its certificate.
    can_check = tls is None or settings.tls_ca
    door = Door(server.addresses[0], place, folder.app.name, tables, settings, token=token) if can_check else None
    with server, serve_shard_metrics(server, folder.settings.telemetry):
        # Scripts wait for this line.
        print(f"shard {place} of {folder.app.name} listens at {' '.join(server.addresses)}", flush=True)
        PULSE.ready()
        while not stopped.wait(PULSE.every_s or _CHECK_S):
            if PULSE.is_due and (door is None or door.answers(PULSE.every_s or _CHECK_S)):
                PULSE.beat()
        PULSE.stopping()
        if door is not None:
            door.close()


@ps.command()
def stats(
    app: _AppOption = None,
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Address of each shard, in order; overrides ps.addresses."),
    ] = None,
    token_file: _TokenOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show the content, position and traffic of each shard. Ends with status 3 if some do not answer."""
    from streamlearn.access.token_file import read_token
    from streamlearn.apps import load_app
    from streamlearn.ps import survey
    from streamlearn.table import declared_tables

    folder = load_app(_required(app), set_ or ())
    # A person waits: report an unreachable shard soon.
    settings = msgspec.structs.replace(folder.settings.ps, order_wait_s_max=_STATS_WAIT_S_MAX)
    if address:
        settings = msgspec.structs.replace(settings, addresses=address)
    if not settings.addresses:
        message = f"the shards of {folder.app.name} are unknown: ps.addresses is empty"
        raise UsageError(message, help="give --address for each shard, or set ps.addresses in app.toml")
    token = None if token_file is None else read_token(token_file)
    tables = declared_tables(folder.app.tables, folder.settings.tables)
    shards = survey(folder.app.name, tables, settings, token)
    errors = [shard.error for shard in shards if shard.error is not None]
    reasons = "; ".join(error.message for error in errors)
    if len(errors) == len(shards):
        raise type(errors[0])(reasons, help=errors[0].help)
    if json:
        print_json([_facts(shard) for shard in shards])
    else:
        print_table([_row(shard.stats) for shard in shards if shard.stats is not None])
    if errors:
        message = f"{len(errors)} of {len(shards)} shards did not answer: {reasons}"
        raise PartlyDone(message, help=errors[0].help)


def _facts(shard: ShardState) -> dict[str, Any]:
    """Return a shard's address with its figures or its error."""
    if shard.error is not None:
        return {"address": shard.address, "error": shard.error.message, "help": shard.error.help}
    return {"address": shard.address, **msgspec.to_builtins(shard.stats)}


def _required(app: Path | None) -> Path:
    if app is None:
        message = "no application was given"
        raise UsageError(message, help="give --app FOLDER, such as --app examples/kuairand")
    return app


def _row(stats: ShardStats) -> dict[str, Any]:
    tables, served = stats.tables.values(), stats.served
    return {
        "shard": stats.place,
        "epoch": "-" if stats.epoch is None else str(stats.epoch),
        "committed": stats.retained[-1] if stats.retained else "-",
        "sealed": "-" if stats.sealed is None else stats.sealed,
        "rows": sum(table.keys for table in tables),
        "images": sum(table.images for table in tables),
        "bytes": sum(table.bytes for table in tables),
        "pulled rows": round(served["pull_rows"]),
        "pushed rows": round(served["push_rows"]),
        "connections": round(served["connections"]),
        "refused": round(sum(value for name, value in served.items() if name.startswith("refused_"))),
    }

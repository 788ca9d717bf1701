"""`streamlearn workers`: who learns an application's model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table

__all__ = ["LeaderOption", "WorkersTokenOption", "leader_of", "workers"]

_WAIT_S_MAX = 5.0

LeaderOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where the trainer listens for workers; default: workers.listen.")
]
WorkersTokenOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the token that trainer and shards expect.")
]


def leader_of(listen: list[str], given: str) -> str:
    """Return the address of the leader; raises a UsageError if there is none."""
    from streamlearn.errors import UsageError

    if not (address := given or (listen[0] if listen else "")):
        message = "the address of the trainer is not known"
        raise UsageError(message, help="give --leader, or set workers.listen to where the trainer listens")
    return address


def workers(
    app: AppArgument,
    leader: LeaderOption = "",
    token_file: WorkersTokenOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """List the processes that learn APP's model, and how fast each is."""
    from streamlearn.access.token_file import read_token
    from streamlearn.apps import load_app
    from streamlearn.trainer.workers.leader_link import LeaderLink

    folder = load_app(app, tuple(set_ or ()))
    address = leader_of(folder.settings.workers.listen, leader)
    token = None if token_file is None else read_token(token_file)
    # A person waits: report an unreachable trainer soon.
    with LeaderLink(folder, address, token=token) as link:
        states = link.who(_WAIT_S_MAX)
    if json:
        print_json([msgspec.to_builtins(state) for state in states])
        return
    rows = [
        {"worker": one.name, "slices learned": one.slices, "ms a slice": round(one.slice_s * 1e3, 1), "holds": one.held}
        for one in states
    ]
    print_table(rows)

"""`streamlearn workers`: who learns an application's model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.times import time_text

__all__ = ["LeaderOption", "WorkersTokenOption", "workers"]

_WAIT_S_MAX = 5.0

LeaderOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where the trainer listens for workers; default: workers.listen.")
]
WorkersTokenOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the token that trainer and shards expect.")
]


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
    from streamlearn.trainer.workers.worker_facts import ask_workers

    folder = load_app(app, tuple(set_ or ()))
    token = None if token_file is None else read_token(token_file)
    # A person waits: report an unreachable trainer soon.
    facts = ask_workers(folder, leader, token, _WAIT_S_MAX)
    if json:
        print_json(facts)
        return
    members = facts["members"]
    rows = [
        {
            "worker": one["name"],
            "slices learned": one["slices"],
            "ms a slice": round(one["slice_s"] * 1e3, 1),
            "holds": one["held"],
        }
        for one in members
    ]
    print_table(rows)
    if facts["short_since_ms"]:
        since = time_text(facts["short_since_ms"])
        typer.echo(f"{len(members)} of {facts['wanted']} learn; at least one has been missing since {since} UTC")

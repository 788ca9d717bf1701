"""`streamlearn work`: learns slices of an application's steps for the trainer that leads."""

from __future__ import annotations

import typer

from streamlearn.cli.options import AppArgument, SetOption
from streamlearn.cli.run.workers import LeaderOption, WorkersTokenOption
from streamlearn.errors import EXIT_AGAIN
from streamlearn.pulse import PULSE

__all__ = ["work"]


def work(
    app: AppArgument,
    leader: LeaderOption = "",
    token_file: WorkersTokenOption = None,
    set_: SetOption = None,
) -> None:
    """Learn slices of APP's steps for the trainer at ADDRESS. Ends with status 75 if it or a shard is gone."""
    from streamlearn.access.renewal import open_token
    from streamlearn.apps import load_app
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.models.tensorflow_load import load_tensorflow
    from streamlearn.replay import stop_on_signals
    from streamlearn.telemetry import set_up_logging
    from streamlearn.trainer.workers.worker_facts import leader_of

    folder = load_app(app, tuple(set_ or ()))
    address = leader_of(folder.settings.workers.listen, leader)
    set_up_logging(folder.settings.telemetry)
    load_tensorflow()
    from streamlearn.trainer.workers.leader_link import LEADER_AWAY
    from streamlearn.trainer.workers.setup import work as work_for

    token = None if token_file is None else open_token(token_file)
    with serve_metrics(folder.settings.telemetry), stop_on_signals() as stop:
        try:
            work_for(folder, address, stop, token=token, show=lambda text: print(text, flush=True))
        except LEADER_AWAY as error:
            typer.echo(f"error: {error.message}\nhelp: {error.help}", err=True)
            raise typer.Exit(EXIT_AGAIN) from None
        finally:
            PULSE.stopping()

"""`streamlearn up`: all processes of an application on this machine, until they have ended or are told to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.options import AppArgument, JsonOption, SetOption
from streamlearn.cli.table import print_json, print_table
from streamlearn.errors import TopicMissing, TopicUnreachable, UsageError
from streamlearn.pulse import PULSE

if TYPE_CHECKING:
    from streamlearn.apps import AppFolder
    from streamlearn.supervision import Member, Signals

__all__ = ["up"]

_FileOption = Path | None


def up(
    app: AppArgument,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="COUNT", min=0, max=64, help="Serving nodes; laid over up.nodes."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="COUNT",
            min=0,
            help="Shards of the parameter server; those of ps.addresses on this machine when not given.",
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs", metavar="FOLDER", help="Of a log for each process; APP/.streamlearn/logs when not given."
        ),
    ] = None,
    token_file: Annotated[
        _FileOption, typer.Option("--token-file", metavar="FILE", help="Holds what callers of nodes must say.")
    ] = None,
    shards_token_file: Annotated[
        _FileOption, typer.Option("--shards-token-file", metavar="FILE", help="Holds what shards must be told.")
    ] = None,
    tls_cert: Annotated[
        _FileOption, typer.Option("--tls-cert", metavar="FILE", help="Nodes' certificates, PEM.")
    ] = None,
    tls_key: Annotated[_FileOption, typer.Option("--tls-key", metavar="FILE", help="Their key, PEM.")] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run ingest, trainer, shards and nodes of APP; start again what ends or hangs; SIGTERM stops all in order."""
    if (tls_cert is None) != (tls_key is None):
        message = "--tls-cert and --tls-key belong together, and one is missing"
        raise UsageError(message, help="give both, or neither")
    if sys.platform != "linux":
        message = f"`streamlearn up` needs Linux, which ends its processes should it be killed; this is {sys.platform}"
        raise UsageError(message, help="run ps, ingest, train and serve each by itself")
    from streamlearn.apps import load_app
    from streamlearn.cli.up_progress import show_members
    from streamlearn.supervision import Asked, Supervisor, claimed, planned
    from streamlearn.telemetry import MetricsServer, set_up_logging

    changes = tuple(set_ or ())
    folder = load_app(app, changes)
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    plan = planned(folder, Asked(changes, nodes, shards, token_file, shards_token_file, tls))
    logs = logs or app / ".streamlearn" / "logs"
    _check_topics(folder)
    with _signals() as signals, claimed(logs), show_members() as show:
        set_up_logging(folder.settings.telemetry)
        server = MetricsServer(plan.metrics_port)
        try:
            lines = Supervisor(plan.members, folder.settings.up, logs).run(
                signals, show, lambda: _say_up(folder, plan.members, plan.metrics_port, json=json)
            )
        finally:
            server.close()
    print_json(lines) if json else print_table(lines)


def _say_up(folder: AppFolder, members: tuple[Member, ...], metrics_port: int, *, json: bool) -> None:
    """One line that scripts can wait for; on stderr where stdout is for one document."""
    where = [
        f"{one.name} {what} {address}" for one in members for what, address in one.where.items() if what != "frames"
    ]
    PULSE.ready()
    words = f"{folder.app.name} is up: {', '.join([*where, f'up metrics 127.0.0.1:{metrics_port}'])}"
    print(words, file=sys.stderr if json else sys.stdout, flush=True)


def _check_topics(folder: AppFolder) -> None:
    """Say at once that there are no topics; a broker that is away is the processes' matter, and may come back.

    Raises:
        TopicMissing: One was never created.
    """
    from streamlearn.apps import TOPICS

    for topic in TOPICS:
        try:
            folder.open_topic(topic).close()
        except TopicUnreachable:
            return
        except TopicMissing as error:
            hint = f"create them: streamlearn topics {folder.folder} --create PARTITIONS"
            raise TopicMissing(error.message, help=hint) from error


@contextmanager
def _signals() -> Iterator[Signals]:
    """The first SIGINT, SIGTERM or SIGHUP stops, a second SIGINT or SIGTERM kills."""
    from streamlearn.replay import stop_on_signals
    from streamlearn.supervision import Signals

    kill = threading.Event()
    with stop_on_signals(lambda _: kill.set()) as stop:
        before = signal.getsignal(signal.SIGHUP)
        if before is not signal.SIG_IGN:  # as `nohup` has it
            # A terminal that closes may send several.
            signal.signal(signal.SIGHUP, lambda *_: stop.set())
        try:
            yield Signals(stop, kill)
        finally:
            signal.signal(signal.SIGHUP, before)

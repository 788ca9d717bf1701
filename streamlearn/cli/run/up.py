"""`streamlearn up`: all processes of an application on this machine, until they end or a signal arrives."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlearn.cli.options import (
    AppArgument,
    AuthorityOption,
    JsonOption,
    SetOption,
    TlsKeyOption,
    authority_file,
    tls_files,
)
from streamlearn.cli.output.table import print_json, print_table
from streamlearn.cli.output.units import age_text
from streamlearn.errors import StoreError, TopicMissing, TopicUnreachable, UsageError
from streamlearn.hints import Given, completed
from streamlearn.pulse import PULSE

if TYPE_CHECKING:
    from rich.table import Table

    from streamlearn.apps import AppFolder
    from streamlearn.supervision import Member, Seen, Signals

__all__ = ["members_table", "up"]

_SHOW_S = 0.5
_STYLES = {
    "running": "green",
    "starting": "yellow",
    "waiting": "red",
    "stopping": "yellow",
    "left": "red",
    "given_up": "red",
}


def up(
    app: AppArgument,
    nodes: Annotated[
        int | None, typer.Option(metavar="COUNT", min=0, max=64, help="Number of serving nodes; overrides up.nodes.")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=0,
            help="Number of shards of the parameter server; default: those of ps.addresses on this machine.",
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with a log for each process; default: APP/.streamlearn/logs."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that callers of nodes must send.")
    ] = None,
    shards_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that the shards expect.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate of the nodes, PEM.")] = None,
    tls_key: TlsKeyOption = None,
    ca: AuthorityOption = None,
    beside: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Share the nodes' sockets of the `up` of the application in FOLDER."),
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run ingest, trainer, shards and nodes of APP, and restart those that end or hang. SIGTERM stops all in order."""
    tls, ca = tls_files(tls_cert, tls_key), authority_file(ca)
    if sys.platform != "linux":
        message = f"`streamlearn up` needs Linux, which ends its processes if it is killed; this is {sys.platform}"
        raise UsageError(message, help="run ps, ingest, train and serve separately")
    from streamlearn.access.address import socket_address
    from streamlearn.apps import load_app
    from streamlearn.given_up import GivenUpFile
    from streamlearn.metrics_server import serve_metrics
    from streamlearn.supervision import claimed, node_sockets, planned, taken_over
    from streamlearn.supervision.plan import UpOptions
    from streamlearn.supervision.supervisor import Supervisor
    from streamlearn.telemetry import set_up_logging

    changes = tuple(set_ or ())
    folder = load_app(app, changes)
    options = UpOptions(changes, nodes, shards, token_file, shards_token_file, tls, beside, ca)
    logs = logs or app / ".streamlearn" / "logs"
    with taken_over(beside) as taken:
        addresses = [{kind: socket_address(one) for kind, one in node.items()} for node in taken or ()]
        plan = planned(folder, options, shared=None if taken is None else addresses)
        _check_topics(folder)
        with _signals() as signals, claimed(logs), _show_members() as show:
            set_up_logging(folder.settings.telemetry)
            files = (app / "app.py", app / "app.toml")
            with (
                serve_metrics(folder.settings.telemetry, plan.metrics),
                node_sockets(plan.members, app, taken) as sockets,
            ):
                given = Given.of({"app": app, "set_": set_})
                supervisor = Supervisor(
                    plan.members, folder.settings.up, logs, files, sockets=sockets, given_up=GivenUpFile(app)
                )
                lines = supervisor.run(
                    signals, show, lambda: _report_ready(folder, plan.members, plan.metrics, given, json=json)
                )
    print_json(lines) if json else print_table(lines)


def _report_ready(folder: AppFolder, members: tuple[Member, ...], metrics: str, given: Given, *, json: bool) -> None:
    """Print the line that scripts wait for; on stderr if stdout is for one JSON document."""
    addresses = [
        f"{member.name} {kind} {address}"
        for member in members
        for kind, address in member.where.items()
        if kind != "frames"
    ]
    PULSE.ready()
    line = f"{folder.app.name} is up: {', '.join([*addresses, f'up metrics {metrics}'])}"
    print(line, file=sys.stderr if json else sys.stdout, flush=True)
    # A store may take long to answer; meanwhile processes are watched.
    threading.Thread(target=_report_switch, args=(folder, given), daemon=True).start()


def _report_switch(folder: AppFolder, given: Given) -> None:
    """Print which of two applications answers, if a change is under way."""
    from streamlearn.versions import open_store
    from streamlearn.versions.pointer.switch_log import SwitchLog

    with suppress(StoreError):  # a node that cannot read the switches is not ready, and says why
        store = open_store(folder.store_url, settings=folder.settings.versions)
        switch = SwitchLog(store, folder.app.served_name).newest()
        if switch.other:
            text = f"{switch.current} answers the callers of {folder.app.served_name}"
            way = completed(f"`streamlearn switch APP --to {switch.other}`", given)
            print(f"{text}; {way} lets {switch.other} answer", file=sys.stderr, flush=True)


def _check_topics(folder: AppFolder) -> None:
    """Raise TopicMissing if a topic does not exist. An unreachable broker is left to the processes, which retry."""
    for topic in folder.topics:
        try:
            folder.open_topic(topic).close()
        except TopicUnreachable:
            return
        except TopicMissing as error:
            hint = "create them: `streamlearn topics APP --create 4`, for 4 partitions"
            raise TopicMissing(error.message, help=hint) from error


@contextmanager
def _signals() -> Iterator[Signals]:
    """Yield events: the first SIGINT, SIGTERM or SIGHUP stops, a second SIGINT or SIGTERM kills."""
    from streamlearn.replay import stop_on_signals
    from streamlearn.supervision import Signals

    kill = threading.Event()
    with stop_on_signals(lambda _: kill.set()) as stop:
        before = signal.getsignal(signal.SIGHUP)
        if before is not signal.SIG_IGN:  # as under `nohup`
            # A closing terminal may send several, so SIGHUP never kills.
            signal.signal(signal.SIGHUP, lambda *_: stop.set())
        try:
            yield Signals(stop, kill)
        finally:
            signal.signal(signal.SIGHUP, before)


@contextmanager
def _show_members() -> Iterator[Callable[[Sequence[Seen]], None]]:
    """Yield a function that shows the processes, at most twice a second; log lines go above the table."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    shown_s = 0.0
    # A stdout that is not a terminal has a reader of its own.
    with Live(console=Console(stderr=True), auto_refresh=False, redirect_stdout=sys.stdout.isatty()) as live:

        def show(seen: Sequence[Seen]) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= _SHOW_S:
                shown_s = time.monotonic()
                with suppress(OSError):  # the terminal was closed; the processes still stop in order
                    live.update(members_table(seen), refresh=True)

        yield show


def members_table(seen: Sequence[Seen]) -> Table:
    """Return one row for each process."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    # In a narrow terminal, addresses and messages are cut.
    for head, width in (("process", 9), ("", 8), ("pid", 7), ("for", 6), ("restarts", 8), ("at", None), ("says", None)):
        table.add_column(head, no_wrap=True, overflow="ellipsis", min_width=width)
    for process in seen:
        state, member = str(process.standing.state), process.standing.member
        style = _STYLES.get(state, "default")
        addresses = " ".join(f"{kind} {address}" for kind, address in member.where.items() if kind != "metrics")
        table.add_row(
            member.name, f"[{style}]{state}[/]", str(process.pid or ""), age_text(round(process.age_s * 1000)),
            str(process.standing.restarts or ""), addresses, escape(process.said),
        )  # fmt: skip
    return table

"""`streamlearn probe`: whether a process is ready and goes on, for what starts it again if it does not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from streamlearn.errors import EXIT_FAILED, UsageError
from streamlearn.pulse import PULSE_READY, PULSE_VARIABLE, process_of

__all__ = ["probe"]


def probe(
    file: Annotated[
        Path | None,
        typer.Argument(help=f"The file of the process; by default that of {PULSE_VARIABLE}."),
    ] = None,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", min=1, help="How old its last heartbeat may be.")
    ] = 60.0,
    started: Annotated[
        bool, typer.Option("--started", help="Whether it has ever been ready, also if it is stopping.")
    ] = False,
) -> None:
    """Tell by the exit status whether a process is ready and goes on: for probes of Kubernetes and the like.

    A process writes the file if STREAMLEARN_PULSE names one. Status 1: it is not ready, stops, or hangs.
    """
    named = file or Path(os.environ.get(PULSE_VARIABLE, ""))
    if named == Path():
        message = f"no file is named, and {PULSE_VARIABLE} is not set"
        raise UsageError(message, help=f"start the process with {PULSE_VARIABLE}=FILE, and name FILE here")
    try:
        (state, _, process), beat_s = named.read_text().partition(" "), named.stat().st_mtime
    except FileNotFoundError:
        _fail("it was never ready")
    pid = process.partition(" ")[0]
    if not pid.isdecimal() or process_of(int(pid)) != process:
        _fail("the process that was ready has ended")
    if started:
        return
    if state != PULSE_READY:
        _fail(f"it is {state[:40]}")
    if (silent_s := time.time() - beat_s) > within:
        _fail(f"its last heartbeat was {silent_s:.0f} s ago")


def _fail(reason: str) -> NoReturn:
    typer.echo(reason)
    raise typer.Exit(EXIT_FAILED)

"""The command line: all verbs, and the two lines and exit status with which an error ends a command."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from gc import set_threshold
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

import streamlearn
from streamlearn.cli.bench.verb import bench_serve
from streamlearn.cli.demo import demo
from streamlearn.cli.doctor.verb import doctor
from streamlearn.cli.events.peek import peek
from streamlearn.cli.events.replay import replay
from streamlearn.cli.events.schema import schema
from streamlearn.cli.events.topics import topics
from streamlearn.cli.model.compact import compact, gc
from streamlearn.cli.model.console import console
from streamlearn.cli.model.evaluate import evaluate
from streamlearn.cli.model.exchange import export, import_
from streamlearn.cli.model.forget import forget
from streamlearn.cli.model.library import library
from streamlearn.cli.model.note import note
from streamlearn.cli.model.retrieve import retrieve
from streamlearn.cli.model.rewind import rewind
from streamlearn.cli.model.rollback import promote, release, rollback
from streamlearn.cli.model.switch import switch
from streamlearn.cli.model.verify import diff, verify
from streamlearn.cli.model.versions import show, versions
from streamlearn.cli.new import new
from streamlearn.cli.report.verb import report
from streamlearn.cli.run.access import access
from streamlearn.cli.run.backfill import backfill
from streamlearn.cli.run.features import features
from streamlearn.cli.run.ingest import ingest
from streamlearn.cli.run.manifest import manifest
from streamlearn.cli.run.migrate import migrate
from streamlearn.cli.run.nearline import nearline
from streamlearn.cli.run.probe import probe
from streamlearn.cli.run.ps import ps
from streamlearn.cli.run.serve import serve
from streamlearn.cli.run.train import train
from streamlearn.cli.run.up import up
from streamlearn.cli.run.work import work
from streamlearn.cli.run.workers import workers
from streamlearn.cli.settings import settings
from streamlearn.errors import EXIT_FAILED, StreamlearnError
from streamlearn.extras import missing_extra
from streamlearn.hints import with_hints
from streamlearn.printable import printable
from streamlearn.process_exit import leave

__all__ = ["cli", "command", "main"]

_LOG = logging.getLogger(__name__)
_GARBAGE_OBJECTS = 50_000

cli = typer.Typer(
    name="streamlearn",
    help="Online learning for recommendation: from behaviour events to better models, minutes later.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"streamlearn {streamlearn.__version__}")
        raise typer.Exit


@cli.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for verb in (
    access, backfill, bench_serve, compact, console, demo, diff, doctor, evaluate, export, forget, gc, import_, ingest,
    library, manifest, migrate, nearline, new, note, peek, probe, promote, release, replay, report, retrieve, rewind,
    rollback, schema, settings, show, switch, topics, train, up, verify, versions, work, workers,
):  # fmt: skip
    cli.command(verb.__name__.rstrip("_").replace("_", "-"))(with_hints(verb))
cli.add_typer(features, name="features")
cli.add_typer(ps, name="ps")
cli.add_typer(serve, name="serve")


def command() -> NoReturn:
    """Run the command line as the main program, and end the process."""
    # SIGABRT, which ends a hanging process, then prints the stack of each thread.
    faulthandler.enable()
    # NumPy's threads sleep when they have no work; they would search for it on all CPUs for 50 ms.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    status = EXIT_FAILED
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = end.code or 0
        else:
            print(end.code, file=sys.stderr)
    leave(status)


@cache
def _built() -> Callable[[], None]:
    """Return all verbs with their options, which takes a tenth of a second."""
    return get_command(cli)


def main() -> NoReturn:
    """Run the command line; always raises SystemExit with the status of the verb."""
    # Loading a library creates tens of thousands of objects that stay. A collection after every 700 would be wasted.
    set_threshold(_GARBAGE_OBJECTS)
    try:
        _built()()
    except StreamlearnError as error:
        print(f"error: {printable(error.message)}", file=sys.stderr)
        if error.help:
            print(f"help: {printable(error.help)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, sys.argv[1:])
        if missing is None:
            raise
        print(f"error: {missing.message}\nhelp: {missing.help}", file=sys.stderr)
        sys.exit(missing.exit_code)
    except BrokenPipeError:
        # The reader of stdout is gone, as with `head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except OSError as error:
        # A failure of a disk, a folder or a connection that no code below handles.
        path = f"{error.filename}: " if error.filename else ""
        print(f"error: {printable(f'{path}{error.strerror or error}')}", file=sys.stderr)
        help = "check that the path exists, has free space and is writable; --set telemetry.log_level=debug shows more"
        print(f"help: {help}", file=sys.stderr)
        _LOG.debug("%s", error, exc_info=error)
        sys.exit(EXIT_FAILED)
    sys.exit(0)

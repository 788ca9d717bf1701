"""The command line of the services: fetch, up, status."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from streamlearn.errors import PartlyDone, ServiceError, StreamlearnError, UsageError
from tools.services.cache import Cache
from tools.services.catalogue import FETCHED, STARTED, Installed, fetch, find
from tools.services.flink import FlinkJobServer
from tools.services.java import find_java
from tools.services.redis import Redis
from tools.services.service import Service

__all__ = ["app", "main"]

_CHECK_S = 0.5
_WHERE = Column("where", overflow="fold")
_stderr = Console(stderr=True, soft_wrap=True)
app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]


@app.command("fetch")
def fetch_command(
    names: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(FETCHED)}; by default all.")] = None,
    as_json: Json = False,
) -> None:
    """Fetch or build services into the cache."""
    cache = Cache()
    installed: list[Installed] = []
    failures: dict[str, ServiceError] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=_stderr, transient=True) as progress:
        for name in _known(names, FETCHED):
            task = progress.add_task(f"{name}: fetching into {cache.folder}", total=None)
            try:
                installed.append(fetch(name, cache))
            except ServiceError as error:
                failures[name] = error
            progress.remove_task(task)
    if as_json:
        failed = {name: str(error) for name, error in failures.items()}
        print(json.dumps({"found": [_plain(service) for service in installed], "failed": failed}))
    else:
        _print_installed(installed)
    for name, failure in failures.items():
        _stderr.print(f"{name}: {failure.message}\nhelp: {failure.help}", markup=False, highlight=False)
    if failures:
        kind = PartlyDone if installed else ServiceError
        message = f"could not fetch {', '.join(failures)}"
        raise kind(message, help="see the errors above")


@app.command()
def up(
    names: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(STARTED)}; by default all.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep data here; by default a folder that is deleted at the end.")
    ] = None,
) -> None:
    """Start services, print their addresses, and stop them at Ctrl-C or SIGTERM."""
    # SIGINT too: a shell starts background jobs with SIGINT ignored, and then Python installs no handler.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _as_interrupt)
    chosen = _known(names, STARTED)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamlearn-services-")))
        try:
            services = []
            for name in chosen:
                _stderr.print(f"starting {name}", highlight=False)
                services.append(stack.enter_context(STARTED[name](place / name)))
            _print_addresses(services)
            while True:
                time.sleep(_CHECK_S)
                for service in services:
                    service.check()
        except KeyboardInterrupt:
            _stderr.print(f"stopping {', '.join(chosen)}", highlight=False)


@app.command()
def status(as_json: Json = False) -> None:
    """Print the services found on this machine."""
    cache = Cache()
    state: dict[str, dict[str, object]] = {}
    for name in FETCHED:
        try:
            installed = find(name, cache)
            state[name] = _plain(installed) if installed else {"missing": "not fetched"}
        except ServiceError as error:
            state[name] = {"missing": error.message}
    try:
        java = find_java()
        state["java"] = {"version": java.version, "paths": [str(java.path)]}
    except ServiceError as error:
        state["java"] = {"missing": error.message}
    for tool in ("mvn", "go"):
        path = shutil.which(tool)
        state[tool] = {"paths": [path]} if path else {"missing": "not on PATH"}
    if as_json:
        print(json.dumps({"cache": str(cache.folder), "services": state}))
        return
    table = Table("", "version", "MB", _WHERE, title=f"cache: {cache.folder}", title_justify="left")
    for name, facts in state.items():
        size = facts.get("size_bytes")
        paths = facts.get("paths")
        where = "\n".join(map(str, paths)) if isinstance(paths, list) else str(facts["missing"])
        table.add_row(name, str(facts.get("version", "")), f"{size / 1e6:.1f}" if isinstance(size, int) else "", where)
    Console(soft_wrap=True).print(table)


def _known(names: list[str] | None, offered: Collection[str]) -> list[str]:
    unknown = [name for name in names or () if name not in offered]
    if unknown:
        message = f"there is no service {', '.join(unknown)}"
        raise UsageError(message, help=f"choose from {', '.join(offered)}")
    return list(dict.fromkeys(names or offered))


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _plain(service: Installed) -> dict[str, object]:
    return {**asdict(service), "paths": [str(path) for path in service.paths], "fetch_s": round(service.fetch_s, 3)}


def _print_installed(services: list[Installed]) -> None:
    table = Table("service", "version", "MB", "seconds", _WHERE)
    for service in services:
        where = "\n".join(map(str, service.paths))
        size, seconds = f"{service.size_bytes / 1e6:.1f}", f"{service.fetch_s:.1f}"
        table.add_row(service.name, service.version, size, seconds, where)
    Console(soft_wrap=True).print(table)


def _environment(service: Service) -> dict[str, str]:
    if isinstance(service, Redis):
        return {"STREAMLEARN_REGISTRY": service.url}
    if isinstance(service, FlinkJobServer):
        return {
            "STREAMLEARN_FLINK": service.job_endpoint,
            "STREAMLEARN_FLINK_ARTIFACTS": service.artifact_endpoint,
            "STREAMLEARN_FLINK_EXPANSION": service.expansion_endpoint,
        }
    return {"STREAMLEARN_KAFKA": f"kafka://{service.address}"}


def _print_addresses(services: list[Service]) -> None:
    table = Table("service", "version", "address", "ready after", "pid", Column("log", overflow="fold"))
    for service in services:
        ready = f"{service.ready_s:.1f} s"
        table.add_row(service.name, service.version, service.address, ready, str(service.pid), str(service.log))
    _stderr.print(table)
    for service in services:
        for name, value in _environment(service).items():
            print(f"{name}={value}", flush=True)
    _stderr.print("Ctrl-C stops the services", highlight=False)


def main() -> int:
    """Run the command line; return the exit status, and print errors with their help."""
    try:
        app(prog_name="python -m tools.services", standalone_mode=True)
    except StreamlearnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())

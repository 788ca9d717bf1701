"""`streamlearn doctor`: what is installed, which services answer, whether there is a GPU; and what to do about it.

It must run where nothing else does, so each check stands alone and a failure is a finding.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

import streamlearn
from streamlearn.cli.options import JsonOption
from streamlearn.cli.table import print_json, print_table
from streamlearn.errors import EXIT_FAILED, StreamlearnError

__all__ = ["Finding", "doctor"]

PACKAGES = ("apache-beam", "crc32c", "fastavro", "kafka-python", "numpy", "pyarrow", "redis", "tensorflow")
REACH_S = 2.0
COMMAND_S = 10.0


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        what: What was looked at.
        state: "ok"; "missing" when something optional is not there; "wrong" when it must be mended.
        detail: The version or address found, or what went wrong.
        help: What to do about it.
    """

    what: str
    state: str
    detail: str
    help: str = ""


def doctor(
    app: Annotated[
        Path | None, typer.Option("--app", metavar="APP", help="Also try the topics of this application.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check versions, the native build, services and the GPU; exit 1 when something must be mended."""
    findings = list(_findings(app))
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([asdict(finding) for finding in findings])
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _findings(app: Path | None) -> Iterator[Finding]:
    yield Finding("streamlearn", "ok", streamlearn.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}")
    yield _native()
    for package in PACKAGES:
        yield _package(package)
    yield _command("redis-server", ["redis-server", "--version"], "tests and demos on real Redis need it")
    yield _command("java", ["java", "-version"], "tests and demos on real Kafka and Flink need Java 17 or newer")
    yield _command("go", ["go", "version"], "Beam's Prism runner is built by it; else Beam downloads one")
    yield _gpu()
    for variable, port in (("STREAMLEARN_REGISTRY", 6379), ("STREAMLEARN_STORE", 0)):
        yield from _address(variable, os.environ.get(variable, ""), port)
    if app is not None:
        yield from _topics(app)


def _native() -> Finding:
    try:
        from streamlearn.native import native
    except StreamlearnError as error:
        return Finding("native module", "wrong", error.message, error.help)
    return Finding("native module", "ok", f"{native.__version__} ({Path(native.__file__ or '').name})")


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "wrong", "not installed", "install this package again: pip install .")


def _command(what: str, command: list[str], help: str) -> Finding:
    if shutil.which(command[0]) is None:
        return Finding(what, "missing", "not on PATH", help)
    done = _output(command)
    return done(what) if callable(done) else Finding(what, "ok", done)


def _output(command: list[str]) -> str | Callable[[str], Finding]:
    """The command's first line, or the finding that says why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        detail = f"{command[0]}: {error}"
        return lambda what: Finding(what, "wrong", detail)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else f"exit status {done.returncode}"


def _gpu() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "missing", "nvidia-smi is not on PATH", "training and serving will use the CPU")
    done = _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    return done("gpu") if callable(done) else Finding("gpu", "ok", done)


def _address(variable: str, url: str, port: int) -> Iterator[Finding]:
    """Whether the address in an environment variable answers; nothing when it is not set."""
    parts = urlsplit(url)
    if not url or not parts.hostname:
        return
    try:
        where = (parts.hostname, parts.port or port)
        with socket.create_connection(where, timeout=REACH_S):
            yield Finding(variable, "ok", f"{where[0]}:{where[1]} answers")
    except (OSError, ValueError) as error:
        # Not the URL itself: it may hold a password.
        yield Finding(variable, "wrong", f"{parts.hostname}: {error}", f"start it, or mend {variable}")


def _topics(app: Path) -> Iterator[Finding]:
    try:
        from streamlearn.apps import TOPICS, load_app

        folder = load_app(app)
        yield Finding(f"app {folder.app.name}", "ok", f"features {folder.app.features.fingerprint}")
    except StreamlearnError as error:
        yield Finding(f"app {app}", "wrong", error.message, error.help)
        return
    for name in TOPICS:
        try:
            with folder.open_topic(name) as topic:
                yield Finding(f"topic {name}", "ok", f"{topic.url}, {topic.partitions} partitions")
        except StreamlearnError as error:
            yield Finding(f"topic {name}", "missing", error.message, error.help)

"""Checks of the machine: versions, the native build, programs that services need, addresses in the environment.

They must run on a machine where nothing else works, so each is independent, and a failure is a finding.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import streamlearn
from streamlearn.errors import StreamlearnError
from streamlearn.extras import check_tensorflow

__all__ = ["Finding", "machine_findings", "wrong"]

PACKAGES = ("crc32c", "fastavro", "kafka-python", "numpy", "pyarrow", "redis")
COMMANDS = {
    "redis-server": (["redis-server", "--version"], "needed by tests and demos with a real Redis"),
    "java": (["java", "-version"], "tests and demos with real Kafka and Flink need Java 17 or newer"),
    # No --version: it would start a Java virtual machine.
    "mvn": (["mvn"], "needed to download the jars of Kafka and Flink: python -m tools.services fetch"),
    "go": (["go", "version"], "needed to build Prism; the one that Beam downloads is open to the network"),
    "cargo": (["cargo", "--version"], "needed to build the native module; install Rust 1.89 or newer to rebuild it"),
}
ADDRESSES = {"STREAMLEARN_KAFKA": 9092, "STREAMLEARN_REGISTRY": 6379}
REACH_S = 2.0
COMMAND_S = 10.0


@dataclass(frozen=True)
class Finding:
    """The result of one check. State "missing" means that something optional does not exist; "wrong" needs a fix."""

    what: str  # the subject of the check
    state: Literal["ok", "missing", "wrong"]
    detail: str  # the version or address, or the failure
    help: str = ""


def wrong(what: str, error: StreamlearnError) -> Finding:
    """Return the finding of a check that failed."""
    return Finding(what, "wrong", error.message, error.help)


def machine_findings() -> Iterator[Finding]:
    """Check this machine."""
    yield Finding("streamlearn", "ok", streamlearn.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}")
    yield _native()
    for package in PACKAGES:
        yield _package(package)
    beam = _package("apache-beam")
    help = "ingest and backfill need it: the extra [ingest]"
    yield beam if beam.state == "ok" else replace(beam, state="missing", help=help)
    yield _tensorflow()
    # Only tests and builds need them, and these are not installed.
    is_source = (Path(streamlearn.__file__).parents[1] / "tools" / "services").is_dir()
    for name, (command, help) in COMMANDS.items() if is_source else ():
        yield _command(name, command, help)
    yield _gpu()
    for variable, port in ADDRESSES.items():
        yield from _address(variable, os.environ.get(variable, ""), port)


def _native() -> Finding:
    try:
        from streamlearn.native import native
    except StreamlearnError as error:
        return wrong("native module", error)
    return Finding("native module", "ok", f"{native.__version__} ({Path(native.__file__ or '').name})")


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "wrong", "not installed", "install this package again: pip install .")


def _tensorflow() -> Finding:
    try:
        package = check_tensorflow()
    except StreamlearnError as error:
        return wrong("tensorflow", error)
    help = "training and serving need it: the extra [train], or [serve]"
    return (
        replace(_package(package), what="tensorflow")
        if package
        else Finding("tensorflow", "missing", "not installed", help)
    )


def _command(what: str, command: list[str], help: str) -> Finding:
    path = shutil.which(command[0])
    if path is None:
        return Finding(what, "missing", "not on PATH", help)
    return Finding(what, "ok", path) if len(command) == 1 else _output(what, command)


def _output(what: str, command: list[str]) -> Finding:
    """Run a command; the finding has its first line of output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(what, "wrong", f"{command[0]}: {error}")
    lines = (done.stdout or done.stderr).strip().splitlines()
    return Finding(what, "ok", lines[0] if lines else f"exit status {done.returncode}")


def _gpu() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "missing", "nvidia-smi is not on PATH", "training and serving will use the CPU")
    return _output("gpu", ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])


def _address(variable: str, url: str, port: int) -> Iterator[Finding]:
    """Check that the address in an environment variable answers; nothing if it is not set."""
    parts = urlsplit(url.partition(",")[0])  # the first of several brokers
    if not url or not parts.hostname:
        return
    try:
        address = (parts.hostname, parts.port or port)
        with socket.create_connection(address, timeout=REACH_S):
            yield Finding(variable, "ok", f"{address[0]}:{address[1]} answers")
    except (OSError, ValueError) as error:
        # The URL itself may contain a password.
        yield Finding(variable, "wrong", f"{parts.hostname}: {error}", f"start the service, or correct {variable}")

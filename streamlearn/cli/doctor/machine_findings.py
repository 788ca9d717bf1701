"""Checks of the machine: versions, the native build, the programs services need, addresses in the environment.

They must run where nothing else does, so each stands alone and a failure is a finding.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import streamlearn
from streamlearn.cli.doctor.check_result import Finding
from streamlearn.errors import StreamlearnError

__all__ = ["machine_findings"]

PACKAGES = ("apache-beam", "crc32c", "fastavro", "kafka-python", "numpy", "pyarrow", "redis", "tensorflow")
COMMANDS = {
    "redis-server": (["redis-server", "--version"], "needed by tests and demos with a real Redis"),
    "java": (["java", "-version"], "tests and demos with real Kafka and Flink need Java 17 or newer"),
    # Not asked for its version: that starts a Java machine.
    "mvn": (["mvn"], "needed to download the jars of Kafka and Flink: python -m tools.services fetch"),
    "go": (["go", "version"], "needed to build Beam's Prism runner; otherwise Beam downloads one"),
    "cargo": (["cargo", "--version"], "needed to build the native module; install Rust 1.85 or newer to rebuild it"),
}
ADDRESSES = {"STREAMLEARN_KAFKA": 9092, "STREAMLEARN_REGISTRY": 6379, "STREAMLEARN_STORE": 0}
REACH_S = 2.0
COMMAND_S = 10.0


def machine_findings() -> Iterator[Finding]:
    """Findings on this machine, in the order of the checks."""
    yield Finding("streamlearn", "ok", streamlearn.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}")
    yield _native()
    for package in PACKAGES:
        yield _package(package)
    for name, (command, help) in COMMANDS.items():
        yield _command(name, command, help)
    yield _gpu()
    for variable, port in ADDRESSES.items():
        yield from _address(variable, os.environ.get(variable, ""), port)


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
    path = shutil.which(command[0])
    if path is None:
        return Finding(what, "missing", "not on PATH", help)
    if len(command) == 1:
        return Finding(what, "ok", path)
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
    parts = urlsplit(url.partition(",")[0])  # of several brokers the first
    if not url or not parts.hostname:
        return
    try:
        where = (parts.hostname, parts.port or port)
        with socket.create_connection(where, timeout=REACH_S):
            yield Finding(variable, "ok", f"{where[0]}:{where[1]} answers")
    except (OSError, ValueError) as error:
        # Not the URL itself: it may hold a password.
        yield Finding(variable, "wrong", f"{parts.hostname}: {error}", f"start the service, or correct {variable}")

"""Worker pool: what starts a job's workers in the ingest process, made to listen on 127.0.0.1 only.

Beam lets it listen on all networks, without a password. The `grpc` that its module uses is replaced. A release of Beam
that uses more of it than `grpc.server` fails there, so no pool is opened in a way that was not reviewed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
from apache_beam.runners.worker import worker_pool_main

__all__ = ["listen_on_loopback"]


def listen_on_loopback() -> None:
    """Make each worker pool that this process starts from now on listen on 127.0.0.1 only."""
    module: Any = worker_pool_main
    module.grpc = SimpleNamespace(server=_server)


def _server(*arguments: Any, **options: Any) -> Any:
    server = grpc.server(*arguments, **options)
    add_port = server.add_insecure_port
    server.add_insecure_port = lambda address: add_port(f"127.0.0.1:{address.rpartition(':')[2]}")
    return server

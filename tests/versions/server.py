"""An S3 server on a free port of this machine, for as long as a test session lasts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

__all__ = ["SECRET", "options", "s3_server", "session"]

# What no message may ever show.
SECRET = "sesame-open-wide"


class _InTurn:
    """Requests one after the other: the server looks and writes in two steps, and S3 does not."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app, self._lock = app, threading.Lock()

    def __call__(self, environ: Any, start: Any) -> list[bytes]:
        with self._lock:
            return list(self._app(environ, start))


@contextmanager
def s3_server() -> Iterator[str]:
    """Start it; gives its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, _InTurn(create_backend_app("s3")), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()


def options(address: str) -> dict[str, Any]:
    """What s3fs takes to reach it."""
    # Without `verify` each connection would read the certificates of this machine, for no TLS.
    return {"key": "someone", "secret": SECRET, "client_kwargs": {"endpoint_url": address, "verify": False}}


@cache
def session() -> Any:
    """A session for all stores of this process: each of its own would parse botocore's descriptions of S3 again."""
    from aiobotocore.session import AioSession

    return AioSession()

"""A console asked by real HTTP: what went over the wire, and what came back."""

from __future__ import annotations

import errno
import gzip
import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from streamlearn.testing import wait_until

__all__ = ["TOKEN", "Asked", "Told"]

TOKEN = b"a-token-of-tests"
_WAIT_S = 300.0


@dataclass(frozen=True)
class Told:
    """What a console answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Asked:
    """Asks the console at an address; each question has a connection of its own."""

    address: str

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        context: ssl.SSLContext | None = None,
    ) -> Told:
        host, port = self.place
        link: http.client.HTTPConnection
        if context is None:
            link = http.client.HTTPConnection(host, port, timeout=_WAIT_S)
        else:
            link = http.client.HTTPSConnection(host, port, timeout=_WAIT_S, context=context)
        try:
            link.request(method, path, body, headers or {})
            answer = link.getresponse()
            data = answer.read()
            named = {name.lower(): value for name, value in answer.getheaders()}
            if named.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            return Told(answer.status, named, data)
        finally:
            link.close()

    def state(self) -> Any:
        """The state that the page shows; waits until the console has heard from the store and the registry."""

        def told() -> Any:
            found = self("GET", "/api/state")
            assert found.status == 200, found
            return None if "have not answered within" in found.json["error"] else found.json

        return wait_until(told, "the state", _WAIT_S)

    def move(
        self, what: str, asked: Any, *, token: bytes | None = TOKEN, headers: dict[str, str] | None = None
    ) -> Told:
        """Ask for a move of the pointer."""
        given = {"Content-Type": "application/json"} | ({} if token is None else _bearer(token)) | (headers or {})
        return self("POST", f"/api/{what}", json.dumps(asked).encode(), given)

    def raw(self, data: bytes) -> bytes:
        """All that comes back for some bytes, until the other side ends or resets the connection."""
        found = b""
        with socket.create_connection(self.place, timeout=_WAIT_S) as link:
            link.sendall(data)
            try:
                link.shutdown(socket.SHUT_WR)
                while piece := link.recv(65_536):
                    found += piece
            except OSError as error:
                if error.errno not in (errno.ECONNRESET, errno.ENOTCONN):
                    raise
        return found


def _bearer(token: bytes) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.decode()}"}

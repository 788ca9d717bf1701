"""RedisAddress: a Redis that native code reads states from."""

from __future__ import annotations

from typing import NamedTuple

from streamlearn.online.state_store_redis import SECRET_VARIABLE
from streamlearn.versions.pointer.redis_url import RedisUrl

__all__ = ["RedisAddress", "redis_address"]


class RedisAddress(NamedTuple):
    """Where it is, and the login; without a repr of the latter."""

    host: str
    port: int
    authority: str | None  # the file of the authority that signed its certificate, with TLS
    socket: str | None  # in place of host and port
    user: str
    password: str
    database: int

    def __repr__(self) -> str:
        return f"RedisAddress({self.socket or self.host!r})"


def redis_address(url: str) -> RedisAddress | None:
    """Return what the native reader needs; None for a store that it cannot read."""
    if url.partition(":")[0] not in ("redis", "rediss", "unix"):
        return None
    options = RedisUrl.parse(url, SECRET_VARIABLE).options
    authority = options.get("ssl_ca_certs")
    if "ssl_certfile" in options or (url.startswith("rediss:") and authority is None):
        return None  # it knows neither certificates of its own nor the authorities of the machine
    login = options.get("username", ""), options.get("password", "")
    return RedisAddress(
        options.get("host", ""), options.get("port", 0), authority, options.get("path"), *login, options["db"]
    )

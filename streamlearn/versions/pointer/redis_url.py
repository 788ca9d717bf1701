"""RedisUrl: the address and options of a Redis. The text it shows contains no secrets."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from streamlearn.errors import UsageError

__all__ = ["PASSWORD_VARIABLE", "RedisUrl"]

PASSWORD_VARIABLE = "STREAMLEARN_REGISTRY_PASSWORD"

_PORT = 6379
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_HELP = (
    "write redis://[USER@]HOST[:PORT][/DB], rediss:// for TLS (with ?ssl_ca_certs=FILE for your own "
    f"certificate authority), or unix:///SOCKET[?db=DB]; set a password in {PASSWORD_VARIABLE}"
)


@dataclass(frozen=True)
class RedisUrl:
    """A parsed URL of a Redis.

    Attributes:
        shown: The URL without user, password and options.
        options: The arguments of a connection.
    """

    shown: str
    options: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, url: str, variable: str = PASSWORD_VARIABLE) -> RedisUrl:
        """Parse a URL; a password in an environment variable overrides its own.

        Raises:
            UsageError: It is invalid. The message does not repeat it, because it may contain a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORT
            query = parse_qs(parts.query, strict_parsing=bool(parts.query))
        except ValueError:
            _refuse("its port or its options cannot be read")
        given = {name: values[-1] for name, values in query.items()}
        is_socket = parts.scheme == "unix"
        allowed = ("db",) if is_socket else _FILES if parts.scheme == "rediss" else ()
        if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
            _refuse("its scheme is unknown")
        if unknown := sorted(set(given) - set(allowed)):
            _refuse(f"option {unknown[0][:40]!r} is not one of {', '.join(allowed) or 'none'}")
        db = _number(given.pop("db", "0") if is_socket else parts.path.strip("/") or "0")
        options: dict[str, Any] = {"db": db, **_login(parts, variable), **given}
        if is_socket:
            if parts.path in ("", "/"):
                _refuse("it names no socket")
            return cls(f"unix://{parts.path}?db={db}", {**options, "path": unquote(parts.path)})
        if not parts.hostname:
            _refuse("it names no host")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{parts.scheme}://{host}:{port}/{db}", {**options, "host": parts.hostname, "port": port})


def _login(parts: SplitResult, variable: str) -> dict[str, str]:
    password = os.environ.get(variable) or unquote(parts.password or "")
    login = {"username": unquote(parts.username or ""), "password": password}
    return {name: value for name, value in login.items() if value}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        _refuse("its database is not a number")
    return int(text)


def _refuse(what: str) -> NoReturn:
    message = f"invalid Redis URL: {what}"
    raise UsageError(message, help=_HELP) from None

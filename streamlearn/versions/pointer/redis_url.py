"""RedisUrl: where a Redis is and how it is spoken to; what it shows of itself is without secrets."""

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
    """What a URL of a Redis says.

    Attributes:
        shown: The URL without user, password and options.
        options: What connections are made with.
    """

    shown: str
    options: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Read a URL; the password of the environment is laid over its own.

        Raises:
            UsageError: It is none. The message does not repeat it, for it may hold a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            said = parse_qs(parts.query, strict_parsing=bool(parts.query))
        except ValueError:
            _refuse("its port or its options cannot be read")
        asked = {name: values[-1] for name, values in said.items()}
        is_socket = parts.scheme == "unix"
        allowed = ("db",) if is_socket else _FILES if parts.scheme == "rediss" else ()
        if parts.scheme not in ("redis", "rediss", "unix") or parts.fragment:
            _refuse("its scheme is unknown")
        if unknown := sorted(set(asked) - set(allowed)):
            _refuse(f"option {unknown[0][:40]!r} is not one of {', '.join(allowed) or 'none'}")
        db = _number(asked.pop("db", "0") if is_socket else parts.path.strip("/") or "0")
        options: dict[str, Any] = {"db": db, **_login(parts), **asked}
        if is_socket:
            if parts.path in ("", "/"):
                _refuse("it names no socket")
            return cls(f"unix://{parts.path}?db={db}", {**options, "path": unquote(parts.path)})
        if not parts.hostname:
            _refuse("it names no host")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        shown = f"{parts.scheme}://{host}:{port or _PORT}/{db}"
        return cls(shown, {**options, "host": parts.hostname, "port": port or _PORT})


def _login(parts: SplitResult) -> dict[str, str]:
    password = os.environ.get(PASSWORD_VARIABLE) or unquote(parts.password or "")
    found = {"username": unquote(parts.username or ""), "password": password}
    return {name: value for name, value in found.items() if value}


def _number(said: str) -> int:
    if not (said.isascii() and said.isdigit() and len(said) < 6):
        _refuse("its database is not a number")
    return int(said)


def _refuse(what: str) -> NoReturn:
    message = f"invalid Redis URL: {what}"
    raise UsageError(message, help=_HELP) from None

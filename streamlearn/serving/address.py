"""Address: where a node is served, and who may reach it there without a token."""

from __future__ import annotations

import ipaddress

from streamlearn.errors import ConfigError

__all__ = ["check_address"]


def check_address(name: str, address: str, *, has_token: bool) -> None:
    """Refuse an address that cannot be listened at, or that others can reach where callers need no token.

    Args:
        name: Of the setting.
        address: HOST:PORT; a host is an IP address or `localhost`.
        has_token: Whether callers must say a token.

    Raises:
        ConfigError: It is refused.

    Examples:
        >>> check_address("front.listen", "127.0.0.1:8001", has_token=False)
        >>> check_address("front.listen", "0.0.0.0:8001", has_token=False)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        streamlearn.errors.ConfigError: front.listen is 0.0.0.0:8001, ...
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise _odd(name, address)
    bare = host.removeprefix("[").removesuffix("]")
    try:
        is_own = bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        raise _odd(name, address) from None
    if not is_own and not has_token:
        message = f"{name} is {address}, which other machines can reach, but callers need no token"
        raise ConfigError(message, help="give --token-file FILE, or listen on 127.0.0.1")


def _odd(name: str, address: str) -> ConfigError:
    message = f"{name} is {address!r}, which is not an address"
    return ConfigError(message, help="give HOST:PORT, such as 127.0.0.1:8001; HOST is an IP address or localhost")

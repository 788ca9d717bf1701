"""Address: where a node listens, and whether other machines may reach it without a token."""

from __future__ import annotations

from streamlearn.errors import ConfigError
from streamlearn.loopback import is_loopback

__all__ = ["check_address"]


def check_address(name: str, address: str, *, has_token: bool) -> None:
    """Check the address in the setting `name`: HOST:PORT, where HOST is an IP address or `localhost`.

    Raises:
        ConfigError: It is invalid, or other machines can reach it although callers need no token.

    Examples:
        >>> check_address("front.listen", "127.0.0.1:8001", has_token=False)
        >>> check_address("front.listen", "0.0.0.0:8001", has_token=False)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        streamlearn.errors.ConfigError: front.listen is 0.0.0.0:8001, ...
    """
    host, _, port = address.rpartition(":")
    is_here = is_loopback(host)
    if is_here is None or not port.isdecimal() or int(port) > 65_535:
        message = f"{name} is {address!r}, which is not an address"
        raise ConfigError(message, help="give HOST:PORT, such as 127.0.0.1:8001; HOST is an IP address or localhost")
    if not is_here and not has_token:
        message = f"{name} is {address}, which other machines can reach, but callers need no token"
        raise ConfigError(message, help="give --token-file FILE, or listen on 127.0.0.1")

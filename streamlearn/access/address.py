"""Addresses to listen at: whether other machines reach them, who then have to send a token."""

from __future__ import annotations

import ipaddress
import socket

from streamlearn.errors import ConfigError
from streamlearn.loopback import is_loopback

__all__ = ["check_address", "host_and_port", "reached_at", "socket_address"]

_PORT_MAX = 65_535
# Addresses of documentation: the way to them is that to other machines. Nothing is sent.
_ELSEWHERE = {4: "192.0.2.1", 6: "2001:db8::1"}


def check_address(name: str, address: str, *, has_token: bool, option: str = "--token-file") -> None:
    """Check the address in the setting `name`: HOST:PORT, where HOST is an IP address or `localhost`.

    `option` names the way to give a token.

    Raises:
        ConfigError: It is invalid, or other machines can reach it although callers need no token.

    Examples:
        >>> check_address("front.listen", "127.0.0.1:8001", has_token=False)
        >>> check_address("front.listen", "0.0.0.0:8001", has_token=False)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        streamlearn.errors.ConfigError: front.listen is 0.0.0.0:8001, ...
    """
    host, _ = host_and_port(name, address)
    if not is_loopback(host) and not has_token:
        message = f"{name} is {address}, which other machines can reach, but callers need no token"
        raise ConfigError(message, help=f"give {option} FILE, or listen on 127.0.0.1")


def host_and_port(name: str, address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of the address in the setting `name`.

    Raises:
        ConfigError: It is invalid.

    Examples:
        >>> host_and_port("telemetry.listen", "[::1]:9460")
        ('::1', 9460)
    """
    host, _, port = address.rpartition(":")
    if is_loopback(host) is None or not port.isdecimal() or int(port) > _PORT_MAX:
        message = f"{name} is {address!r}, which is not an address"
        raise ConfigError(message, help="give HOST:PORT, such as 127.0.0.1:8001; HOST is an IP address or localhost")
    return host.removeprefix("[").removesuffix("]"), int(port)


def reached_at(address: str) -> str:
    """Return where other processes reach what listens at an address: of all interfaces, that of the default route.

    Examples:
        >>> reached_at("10.0.0.7:8001"), reached_at("")
        ('10.0.0.7:8001', '')
    """
    host, _, port = address.rpartition(":")
    if not address or not (ip := ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))).is_unspecified:
        return address
    # What listens on `::` is also reached by IPv4.
    for version in (4,) if ip.version == 4 else (4, 6):
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((_ELSEWHERE[version], 9))
            except OSError:
                continue
            own = probe.getsockname()[0]
            return f"[{own}]:{port}" if version == 6 else f"{own}:{port}"
    return f"[::1]:{port}" if ip.version == 6 else f"127.0.0.1:{port}"


def socket_address(listener: socket.socket) -> str:
    """Return the address of a TCP socket as HOST:PORT."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

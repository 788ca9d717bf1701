"""Loopback: which hosts only this machine can reach."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool | None:
    """Whether only this machine can reach a host; None if it is neither an IP address nor `localhost`.

    Examples:
        >>> is_loopback("127.0.0.2"), is_loopback("[::1]"), is_loopback("10.0.0.1"), is_loopback("shop.example")
        (True, True, False, None)
    """
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return bare.lower() == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return None

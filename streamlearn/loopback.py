"""Loopback: which hosts only this machine can reach, as addresses and in Host headers."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["is_loopback", "names_loopback"]

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::[0-9]*)?")


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


def names_loopback(header: str) -> bool:
    """Whether a Host header names this machine by a loopback address or `localhost`.

    A foreign name may resolve to this machine: a page of that site could then read what is served here.

    Examples:
        >>> names_loopback("localhost:9460"), names_loopback("[::1]"), names_loopback("127.0.0.1.example:80")
        (True, True, False)
    """
    match = _HOST.fullmatch(header)
    return match is not None and bool(is_loopback(match[1] or match[2] or ""))

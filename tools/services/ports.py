"""Ports of services: free ports of the loopback address, or fixed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlearn.errors import ServiceError
from streamlearn.supervision.ports import LOOPBACK, free_ports, is_taken

__all__ = ["LOOPBACK", "FindPorts", "PortTaken", "fixed_port", "free_ports", "is_taken"]

FindPorts = Callable[[int], Sequence[int]]


class PortTaken(ServiceError):
    """A service could not start because another process listens on its port."""


def fixed_port(port: int) -> FindPorts:
    """Return a function that finds ports, the first of them this one."""
    return lambda count: [port, *free_ports(count - 1)]

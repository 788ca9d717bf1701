"""Where services listen: free ports of the loopback address, or the ones that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlearn.errors import ServiceError
from streamlearn.supervision.ports import LOOPBACK, free_ports, is_taken

__all__ = ["LOOPBACK", "FindPorts", "PortTaken", "fixed_port", "free_ports", "is_taken"]

FindPorts = Callable[[int], Sequence[int]]


class PortTaken(ServiceError):
    """A service could not start because somebody else listens on its port."""


def fixed_port(port: int) -> FindPorts:
    """Ports of which the first is the given one."""
    return lambda count: [port, *free_ports(count - 1)]

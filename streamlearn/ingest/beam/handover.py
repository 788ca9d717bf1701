"""Handing: how an element gets from one step to the next: as bytes, or by a ticket for what stays in this process.

A runner copies an element's bytes many times on its way, which costs more than joining it. Where all steps run in one
process, and no element is given twice, only a ticket goes through the runner.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from streamlearn.errors import PipelineFailed

__all__ = ["Handing", "Tickets", "close_tickets", "open_tickets"]

Element = TypeVar("Element")


class Tickets:
    """Elements that wait for the next step.

    Guaranteed: an element is given to one taker, once. Any thread may call.

    Examples:
        >>> tickets = Tickets()
        >>> ticket = tickets.put("an element")
        >>> tickets.take(ticket), len(tickets)
        ('an element', 0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Any] = {}
        self._own = uuid.uuid4().bytes  # so that no other process' ticket is taken for one of these
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, element: object) -> bytes:
        """Keep an element, and give its ticket."""
        with self._lock:
            ticket = self._own + self._next.to_bytes(8, "big")
            self._next += 1
            self._waiting[ticket] = element
            return ticket

    def take(self, ticket: bytes) -> Any:
        """The element of a ticket.

        Raises:
            PipelineFailed: It is not here, or was taken already.
        """
        with self._lock:
            if ticket in self._waiting:
                return self._waiting.pop(ticket)
        message = "an element stayed in another process, or was delivered twice: this runner must run in one process"
        hint = (
            "keep the runner's option --environment_type=LOOPBACK and start again: the next run reads "
            "unacknowledged events again"
        )
        raise PipelineFailed(message, help=hint)


@dataclass(frozen=True)
class Handing(Generic[Element]):
    """How elements of one kind are handed on.

    Attributes:
        encode: An element as bytes.
        decode: An element from them.
        tickets: Where elements stay; None: they go as bytes.
    """

    encode: Callable[[Element], bytes]
    decode: Callable[[bytes], Element]
    tickets: Tickets | None = field(default=None)

    def give(self, element: Element) -> bytes:
        """What goes through the runner."""
        return self.encode(element) if self.tickets is None else self.tickets.put(element)

    def take(self, data: bytes) -> Element:
        """The element for what came through the runner, once.

        Raises:
            PipelineFailed: It is not in this process.
            BadRecord: The bytes are none.
        """
        found: Element = self.decode(data) if self.tickets is None else self.tickets.take(data)
        return found


_LOCK = threading.Lock()
_OPEN: dict[tuple[str, int], Tickets] = {}


def open_tickets(progress_url: str, run: int) -> Tickets:
    """The process's own tickets of a run."""
    with _LOCK:
        return _OPEN.setdefault((progress_url, run), Tickets())


def close_tickets(progress_url: str, run: int) -> None:
    """Let go of what a run has left."""
    with _LOCK:
        _OPEN.pop((progress_url, run), None)

"""Handover: how an element gets from one step to the next: as bytes, or as a ticket for an element in this process.

A runner copies an element's bytes many times, which costs more than joining them. Where all steps run in one process
and no element is delivered twice, only a ticket goes through the runner.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streamlearn.errors import PipelineFailed
from streamlearn.ingest.process_registry import ProcessRegistry

__all__ = ["Handover", "Tickets", "close_tickets", "open_tickets"]

Element = TypeVar("Element")


class Tickets:
    """Elements that wait for the next step.

    Guaranteed: an element is returned once. Any thread may call.

    Examples:
        >>> tickets = Tickets()
        >>> ticket = tickets.put("an element")
        >>> tickets.take(ticket), len(tickets)
        ('an element', 0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Any] = {}
        self._prefix = uuid.uuid4().bytes  # tells these tickets from those of another process
        self._next = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, element: object) -> bytes:
        """Keep an element, and return its ticket."""
        with self._lock:
            ticket = self._prefix + self._next.to_bytes(8, "big")
            self._next += 1
            self._waiting[ticket] = element
            return ticket

    def take(self, ticket: bytes) -> Any:
        """Return the element of a ticket. Raises `PipelineFailed` if it is not here, or was taken already."""
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
class Handover(Generic[Element]):
    """How elements of one type are handed on: in `tickets`, or as bytes if there are none."""

    encode: Callable[[Element], bytes]
    decode: Callable[[bytes], Element]
    tickets: Tickets | None = None

    def give(self, element: Element) -> bytes:
        """Return the bytes that go through the runner."""
        return self.encode(element) if self.tickets is None else self.tickets.put(element)

    def take(self, data: bytes) -> Element:
        """Return the element for bytes that came through the runner, once.

        Raises `PipelineFailed` if it is not in this process, `BadRecord` if the bytes cannot be decoded.
        """
        element: Element = self.decode(data) if self.tickets is None else self.tickets.take(data)
        return element


_TICKETS: ProcessRegistry[tuple[str, int], Tickets] = ProcessRegistry()


def open_tickets(progress_url: str, run: int) -> Tickets:
    """Return the process's own tickets of a run."""
    return _TICKETS.acquire((progress_url, run), Tickets)


def close_tickets(progress_url: str, run: int) -> None:
    """Drop the elements that a run has left."""
    _TICKETS.discard(lambda key: key == (progress_url, run))

"""Settings of the console: its address, how often it refreshes, and limits on requests."""

from __future__ import annotations

from msgspec import Struct

from streamlearn.settings.constant import Fixed

__all__ = ["ConsoleSettings"]


class ConsoleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The web page that shows a model's versions and nodes, and moves its pointer."""

    listen: str = "127.0.0.1:8002"
    """Address of the page, HOST:PORT; port 0 picks a free port. A host other than loopback needs a token file."""
    refresh_s: Fixed[float] = 1.0
    """Interval at which the pointer and the nodes are read while at least one page is open."""
    versions_s: Fixed[float] = 5.0
    """Interval at which the store's versions are listed while at least one page is open."""
    idle_s: Fixed[float] = 30.0
    """After this time without a request from a page, reading stops."""
    versions_max: Fixed[int] = 300
    """Newest versions that are shown."""
    moves_max: Fixed[int] = 200
    """Newest moves of the pointer that are shown."""
    move_wait_s: Fixed[float] = 10.0
    """How long the console waits for nodes after a move of the pointer."""
    connections_max: Fixed[int] = 64
    """Most open connections; each has a thread."""
    arrival_s: Fixed[float] = 10.0
    """How long a request may take to arrive completely, and its answer to be read."""
    header_bytes_max: Fixed[int] = 16_384
    """Most bytes in a request's headers."""
    body_bytes_max: Fixed[int] = 8_192
    """Most bytes in a request's body."""

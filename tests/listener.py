"""Listener: receives the notifications of a process, as systemd and `streamlearn up` do."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamlearn.testing import wait_until

__all__ = ["Listener", "listening"]

_SILENCE_US = 300_000
_WAIT_S = 300.0


class Listener:
    """A notification socket, bound to `name`."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(name)

    def heard(self) -> list[str]:
        """Return the messages since the last call, each with its words sorted."""
        messages = []
        while True:
            try:
                messages.append(" ".join(sorted(self.socket.recv(4_096).decode().split("\n"))))
            except BlockingIOError:
                return messages

    def wait(self, *words: str) -> None:
        """Wait until each of the words was in a new message."""
        missing = set(words)

        def is_received() -> bool:
            for message in self.heard():
                missing.difference_update(message.split())
            return not missing

        wait_until(is_received, f"messages with {words}", _WAIT_S)

    def wait_silence(self, silence_s: float) -> None:
        """Wait until no message arrives for some time."""

        def is_silent() -> bool:
            self.heard()
            return not select.select([self.socket], [], [], silence_s)[0]

        wait_until(is_silent, f"no message for {silence_s} s", _WAIT_S)


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Listener, dict[str, str]]]:
    """Listen to processes that are started meanwhile; yield the listener and their environment variables for it."""
    listener = Listener("")
    name = "@" + listener.socket.getsockname()[1:].decode()
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(_SILENCE_US)}
    with listener.socket:
        for key, value in environ.items():
            monkeypatch.setenv(key, value)
        yield listener, environ

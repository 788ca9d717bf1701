"""Whoever runs a process, and listens to how it says that it is, as systemd and `streamlearn up` do."""

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
    """Hears words.

    Args:
        name: Where, as `bind` takes it.
    """

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(name)

    def heard(self) -> list[str]:
        """What was said since the last time, each with its words in their order."""
        found = []
        while True:
            try:
                found.append(" ".join(sorted(self.socket.recv(4_096).decode().split("\n"))))
            except BlockingIOError:
                return found

    def wait(self, *words: str) -> None:
        """Wait until each of some words was said since what was heard last."""
        missing = set(words)

        def is_said() -> bool:
            for one in self.heard():
                missing.difference_update(one.split())
            return not missing

        wait_until(is_said, f"{words} are said", _WAIT_S)

    def wait_silence(self, silence_s: float) -> None:
        """Wait until nothing is said for some time."""

        def is_silent() -> bool:
            self.heard()
            return not select.select([self.socket], [], [], silence_s)[0]

        wait_until(is_silent, f"nothing is said for {silence_s} s", _WAIT_S)


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Listener, dict[str, str]]]:
    """Processes that are started meanwhile are heard; gives what they have in their environment for it too."""
    listener = Listener("")
    name = "@" + listener.socket.getsockname()[1:].decode()
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(_SILENCE_US)}
    with listener.socket:
        for key, value in environ.items():
            monkeypatch.setenv(key, value)
        yield listener, environ

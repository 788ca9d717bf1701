"""GivenUpFile: the processes that `up` gave up, for the console and `doctor`, which see no processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from streamlearn.struct_decoder import from_json

__all__ = ["GivenUpFile", "GivenUpProcess"]

_LOG = logging.getLogger("streamlearn.up")
_BYTES_MAX = 1 << 16


class GivenUpProcess(Struct, frozen=True):
    """A process that does not start again by itself: how it ended, its log, when, and the pid of its `up`."""

    name: str
    how: str
    log: str
    wall_ms: int
    up: int

    @property
    def help(self) -> str:
        """What starts it again."""
        return f"mend the cause, which {self.log} ends with; it starts when app.py or app.toml change, or with `up`"


class GivenUpFile:
    """A file in the folder of an application, which holds as long as the `up` runs that wrote it."""

    def __init__(self, app: Path) -> None:
        self.path = app / ".streamlearn" / "given_up.json"

    def read(self) -> tuple[GivenUpProcess, ...]:
        """Return the processes; an empty tuple if the file is missing or damaged, or if its `up` has ended."""
        try:
            with self.path.open("rb") as file:
                found = from_json(file.read(_BYTES_MAX), list[GivenUpProcess])
        except (OSError, msgspec.DecodeError):
            return ()
        return tuple(one for one in found if Path(f"/proc/{one.up}").exists())

    def write(self, processes: Sequence[GivenUpProcess]) -> None:
        """Replace the content; without processes, remove the file. A disk error is logged."""
        beside = self.path.with_suffix(f".{os.getpid()}")
        try:
            if not processes:
                self.path.unlink(missing_ok=True)
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(processes))
            beside.replace(self.path)
        except (OSError, UnicodeError) as error:  # a path may be no text
            _LOG.warning("the console cannot say who was given up: %s: %s", self.path, error)
            with suppress(OSError):
                beside.unlink()

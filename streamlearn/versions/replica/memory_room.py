"""Room: whether there is memory for a second copy of the tables, before anything of it is taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Room", "free_bytes"]

# What is left to all else of a process and a machine.
_SHARE_MAX = 0.9


@dataclass(frozen=True)
class Room:
    """What two copies of the tables would take, and what there is.

    Attributes:
        used_bytes: Of the tables there are.
        needed_bytes: What a second copy is thought to take.
        free_bytes: What the machine has; None when it does not say.
        bytes_max: What both may take; 0 for as much as is free.
    """

    used_bytes: int
    needed_bytes: int
    free_bytes: int | None
    bytes_max: int

    @property
    def lacks(self) -> str:
        """What is missing, for people; empty when there is enough."""
        if self.bytes_max and self.used_bytes + self.needed_bytes > self.bytes_max:
            return (
                f"two copies of the tables would take {self.used_bytes + self.needed_bytes} bytes, but "
                f"memory_bytes_max is {self.bytes_max}"
            )
        if self.free_bytes is not None and self.needed_bytes > self.free_bytes * _SHARE_MAX:
            return f"a second copy of the tables would take {self.needed_bytes} bytes, but {self.free_bytes} are free"
        return ""


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be taken, of the machine or of the group this process is in; None when neither says.

    Args:
        root: Where `proc` and `sys` are.
    """
    machine = _available(root / "proc/meminfo")
    group = _number(root / "sys/fs/cgroup/memory.max"), _number(root / "sys/fs/cgroup/memory.current")
    limits = [] if machine is None else [machine]
    if group[0] is not None and group[1] is not None:
        limits.append(max(0, group[0] - group[1]))
    return min(limits, default=None)


def _available(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) << 10 for words in found if len(words) > 1 and words[1].isdigit()), None)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

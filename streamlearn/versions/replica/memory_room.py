"""Memory room: whether there is memory for a second copy of the tables, checked before any of it is allocated."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["free_bytes", "lack_of_memory"]

# The rest is left to other memory of the process and the machine.
_SHARE_MAX = 0.9


def lack_of_memory(used_bytes: int, needed_bytes: int, free_bytes: int | None, bytes_max: int) -> str:
    """Return why there is too little memory for a second copy of the tables, for people; empty when there is enough.

    `used_bytes` is the memory of the present tables, and `free_bytes` is None if unknown. `bytes_max` limits both
    copies together; 0 allows all free memory.
    """
    both_bytes = used_bytes + needed_bytes
    if bytes_max and both_bytes > bytes_max:
        return f"two copies of the tables would take {both_bytes} bytes, but memory_bytes_max is {bytes_max}"
    if free_bytes is not None and needed_bytes > free_bytes * _SHARE_MAX:
        return f"a second copy of the tables would take {needed_bytes} bytes, but {free_bytes} are free"
    return ""


def free_bytes(root: Path = Path("/")) -> int | None:
    """The free memory of the machine or of this process's control group; None if neither is known.

    `root` is the folder of `proc` and `sys`.
    """
    available = re.search(r"^MemAvailable:[ \t]*(\d+)", _text(root / "proc/meminfo"), re.MULTILINE)
    limits = [] if available is None else [int(available[1]) << 10]
    group_max, group_used = (_text(root / f"sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if group_max.isdigit() and group_used.isdigit():
        limits.append(max(0, int(group_max) - int(group_used)))
    return min(limits, default=None)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""

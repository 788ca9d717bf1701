"""Family: a process and what it started: who of them is who, where they listen, and whether all of them are gone.

Linux alone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["ANY", "LOOPBACK", "family_of", "hosts_of", "is_alive", "one_of"]

# Addresses as the kernel writes them: of all networks, and 127.0.0.1.
ANY, LOOPBACK = "00000000", "0100007F"
_LISTENS = "0A"

Member = tuple[int, str]


def family_of(pid: int) -> set[Member]:
    """A process and all that it started, and what those did: pid, and when it began, which no other process has."""
    began = _began(pid)
    if not began:
        return set()
    found = {(pid, began)}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(children).split():
            found |= family_of(int(child))
    return found


def one_of(family: set[Member], word: str) -> int:
    """The one process that has a word in what it was started with."""
    found = [pid for pid, _ in sorted(family) if word in _text(Path(f"/proc/{pid}/cmdline"))]
    assert len(found) == 1, f"{word!r} is in {len(found)} of {len(family)} processes"
    return found[0]


def hosts_of(pid: int) -> list[str]:
    """The last four bytes of each address on which a process listens for TCP, as the kernel writes them."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(descriptor.readlink()))
    rows = [line.split() for kind in ("tcp", "tcp6") for line in _text(Path(f"/proc/{pid}/net/{kind}")).splitlines()]
    return [row[1].split(":")[0][-8:] for row in rows if row[3] == _LISTENS and f"socket:[{row[9]}]" in sockets]


def is_alive(member: Member) -> bool:
    """Whether a process still runs; one that nobody has waited for does not."""
    pid, began = member
    return _began(pid) == began


def _began(pid: int) -> str:
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return "" if not fields or fields[0] in ("Z", "X") else fields[19]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):  # it ended meanwhile
        return ""

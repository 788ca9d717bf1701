"""Member: one process of a running application, as it is planned. Whether it runs is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["INGEST", "NODES", "SHARDS", "TRAINER", "Member"]

# The order in which members are stopped. Who takes work in is stopped before who does it: ingest writes what is due,
# the trainer learns what is there and publishes it, nodes answer until then and take that version; shards are needed to
# the last, for without them the trainer's last version cannot be sealed.
INGEST, TRAINER, NODES, SHARDS = range(4)


@dataclass(frozen=True)
class Member:
    """One process.

    Attributes:
        name: Its own among the members, such as `node-1`; its log is named after it.
        stage: When it is stopped: `INGEST` first, `SHARDS` last.
        command: Program and arguments.
        needs: Members that are to be ready before it is started.
        may_end: Whether an end with status 0 or 3 is right, as its input may end.
        ready_s_max: How long it may take until it says that it is ready; None where it bounds itself.
        where: Its addresses, by what answers there.
    """

    name: str
    stage: int
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    may_end: bool = False
    ready_s_max: float | None = None
    where: Mapping[str, str] = field(default_factory=dict)

"""Member: one planned process of a running application. It does not know whether the process runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ACCESS", "FOLD", "INGEST", "NODES", "SHARDS", "TRAINER", "WORKERS", "Member"]

# The stages in which members are stopped, producers first: ingest writes what is due, interactions are folded, the
# trainer and its workers learn and publish, and nodes answer until then and take that version. What leads callers to
# nodes ends before them. Shards are last, because the trainer needs them to seal its last version.
INGEST, FOLD, TRAINER, WORKERS, ACCESS, NODES, SHARDS = range(7)


@dataclass(frozen=True)
class Member:
    """One process.

    Attributes:
        name: Its unique name, such as `node-1`, and that of its log.
        stage: The stage in which it is stopped, from `INGEST` to `SHARDS`.
        command: Program and arguments.
        needs: Members that must be ready before it starts.
        may_end: Whether it may end with status 0 or 3, as when its input ends.
        ready_s_max: The time it has to become ready; None if it has a limit of its own.
        where: Its addresses by protocol.
    """

    name: str
    stage: int
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    may_end: bool = False
    ready_s_max: float | None = None
    where: Mapping[str, str] = field(default_factory=dict)

    @property
    def listens(self) -> dict[str, str]:
        """The addresses of a node for callers, by protocol: `up` listens there for it."""
        return {kind: address for kind, address in self.where.items() if kind in ("grpc", "http")}

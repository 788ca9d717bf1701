"""WorkerFacts: who learns a model, as its trainer says, for the verb `workers` and for the console."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import to_builtins

from streamlearn.access.renewal import GivenToken
from streamlearn.apps import AppFolder
from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import StreamlearnError, UsageError
from streamlearn.trainer.workers.leader_link import LeaderLink

__all__ = ["ask_workers", "leader_of", "worker_facts"]

Facts: TypeAlias = dict[str, Any]


def leader_of(listen: Sequence[str], given: str) -> str:
    """Return the address of the leader; raises a UsageError if there is none."""
    if not (address := given or (listen[0] if listen else "")):
        message = "the address of the trainer is not known"
        raise UsageError(message, help="give --leader, or set workers.listen to where the trainer listens")
    return address


def ask_workers(
    folder: AppFolder, leader: str, token: GivenToken | None, wait_s: float, *, clock: Clock = SYSTEM_CLOCK
) -> Facts:
    """Ask the trainer who learns; `leader` is its address, `workers.listen` if empty. All times are of this clock.

    Raises:
        UsageError: The address is not known.
        ShardUnreachable, ShardNotReady, TableBusy: The trainer has not answered within `wait_s`.
        ShardRefused: It expects another token, or the certificate is wrong.
    """
    with LeaderLink(folder, leader_of(folder.settings.workers.listen, leader), token=token, clock=clock) as link:
        members = link.who(wait_s)
    now_ms = clock.wall_ms()
    return {
        "error": "",
        "help": "",
        "asked_ms": now_ms,
        "wanted": members.wanted,
        "short_since_ms": now_ms - round(members.short_s * 1e3) if members.short_s else 0,
        "members": to_builtins(sorted(members.workers, key=lambda worker: worker.name != "leader")),
    }


def worker_facts(folder: AppFolder, leader: str, token: GivenToken | None, wait_s: float) -> Facts | None:
    """Return what `ask_workers` does, or in the same fields why it is unknown; None if one process learns the model."""
    if folder.settings.workers.slices == 1:
        return None
    try:
        return ask_workers(folder, leader, token, wait_s)
    except StreamlearnError as error:
        known: Facts = {"asked_ms": 0, "wanted": 0, "short_since_ms": 0, "members": []}
        return {"error": error.message, "help": error.help or ""} | known

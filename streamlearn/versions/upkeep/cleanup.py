"""Cleanup: removes from a store what retention no longer keeps. It asks the registry which versions nodes need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import RegistryUnreachable, UsageError
from streamlearn.versions.format.scratch import Progress
from streamlearn.versions.pointer.deletion import Deletions
from streamlearn.versions.pointer.moves import raise_floor
from streamlearn.versions.pointer.request import Requests
from streamlearn.versions.upkeep.gc import GcPlan, Swept, plan_gc, sweep

if TYPE_CHECKING:
    from streamlearn.versions.pointer.model import Model

__all__ = ["clean_up", "plan_cleanup"]


def plan_cleanup(model: Model, *, clock: Clock = SYSTEM_CLOCK) -> GcPlan:
    """Plan what may be removed; changes nothing.

    Raises:
        UsageError: No registry was given, or it does not answer, so the versions that nodes need are unknown.
        VersionDefect: It cannot be determined which run's history prevails.
    """
    return plan_gc(model.store, model.name, _needed(model), settings=model.settings.retention, clock=clock)


def clean_up(
    model: Model,
    plan: GcPlan,
    *,
    wait: Callable[[], None],
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Swept:
    """Carry out a plan, and forget the oldest moves of the pointer.

    `wait` returns once nodes that were starting before had time to begin on versions that stay.
    """
    # The registry's summaries could hide a rejection, whose taint has to be kept.
    known = replace(model, url="", is_alone=True).known()

    def raise_to(floor: int) -> None:
        pointer = model.pointer
        if floor <= pointer.floor:
            return
        model.mover.move(
            lambda now: raise_floor(now, known, max(floor, now.floor)),
            by=pointer.by,  # the author and the reason of the latest move by a person stay
            what="gc",
            reason=pointer.reason,
        )
        if model.registry is not None:
            model.registry.drop_versions([entry.version for entry in known if entry.version < floor])

    def plan_again() -> GcPlan:
        return plan_cleanup(model, clock=clock)

    swept = sweep(model.store, plan, raise_floor=raise_to, wait=wait, plan_again=plan_again, progress=progress)
    floor = model.pointer.floor
    Deletions(model.store, model.name).drop([entry for entry in known if entry.version >= floor])
    model.log.forget(max(1, model.pointer.seq - model.settings.retention.pointer_moves_min))
    return swept


def _needed(model: Model) -> set[int]:
    """Return the versions of the pointer, of nodes and of requests to training, which stay whatever their age."""
    needed = {ref.version for ref in model.pointer.needed.values()}
    needed |= {request.to.version for request in Requests(model.store, model.name).waiting(model.known())}
    if model.registry is None:
        if not model.is_alone:
            message = "cannot tell which versions nodes need: no registry was given"
            raise UsageError(message, help="give --registry URL; or --registry none if you have no nodes")
        return needed
    try:
        nodes = [*model.registry.nodes(), *model.registry.silent()]
    except RegistryUnreachable as error:
        message = f"cannot tell which versions nodes need: {error.message}"
        raise UsageError(
            message, help="bring the registry back; or give --registry none if you have no nodes"
        ) from None
    return needed | {node.active for node in nodes if node.active}

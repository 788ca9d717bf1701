"""Settings of workers: processes that learn one model together."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["WorkersSettings"]


class WorkersSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Workers that learn one model together with the trainer, which is their leader."""

    slices: Annotated[int, Meta(ge=1, le=1_024)] = 1
    """Slices of a step, each learned by one worker. The result depends on this number and not on the number of workers.
    Above 1 the model needs shards of its own (`ps.addresses`). Keep `trainer.step_rows` at 2,048 times this or more."""
    listen: list[str] = field(default_factory=list)
    """Addresses at which the leader listens for workers: `HOST:PORT`, or `unix:/PATH`. If empty, no worker can join."""
    leader_learns: bool = True
    """Whether the leader learns slices too. Turn it off if workers have GPUs and the leader has none, or if the
    leader has no time for them."""
    reduce: Literal["shards", "nccl"] = "shards"
    """How dense gradients of slices are summed: by the shards, or by TensorFlow between the processes: by NCCL on GPUs,
    by its ring on CPUs. With `nccl` the result depends on `members` too, and if one is lost, all start again."""
    members: Annotated[int, Meta(ge=2, le=128)] = 2
    """With `reduce = "nccl"`: how many processes learn, the trainer among them. `slices` must be a multiple of it."""
    worker_wait_s_max: Annotated[float, Meta(gt=0, le=3_600)] = 5.0
    """How long a worker that holds slices may be silent before it counts as lost. With `trainer.order = "arrival"`
    others then learn its slices; with `strict`, all go back to the newest version."""
    slice_wait_s_max: Fixed[float] = 120.0
    """How long a worker may take for a slice, with the time to compile the step."""

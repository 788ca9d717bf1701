"""Settings of embedding tables."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["TableSettings"]

_Rate = Annotated[float, Meta(gt=0, le=1_000)]


class TableSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the tables of the features learn, grow and expire. The trainer and all shards must have the same values."""

    rows_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 31,
            description="Most rows of each table on one shard, including older images of rows that versions need. It "
            "reserves only address space until rows are written. Raise it well before it is reached.",
        ),
    ] = 100_000_000
    optimizer: Annotated[
        Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"],
        Meta(description="The optimizer of rows. `rowwise_adagrad` takes half of the memory and traffic of `adagrad`."),
    ] = "adagrad"
    rate: Annotated[_Rate, Meta(description="The learning rate of rows.")] = 0.05
    weight_decay: Annotated[
        float,
        Meta(
            ge=0,
            le=1e3,
            description="Decoupled weight decay: in each step that a row learns in, it shrinks by this share times "
            "the rate. Not available for `ftrl`. Like the rate, it is part of a model and cannot be changed for an "
            "existing one.",
        ),
    ] = 0.0
    rates: Annotated[
        dict[str, _Rate],
        Meta(
            description="Learning rates of single tables by name, such as `{users = 0.3}`; all others use `rate`. "
            "Give tables of rare keys a higher rate than tables of keys that occur in every step."
        ),
    ] = field(default_factory=dict)
    seed: Annotated[
        int, Meta(ge=0, le=(1 << 63) - 1, description="Seed of initial rows. Never change it for an existing model.")
    ] = 0
    # Resolution of the time of a row's last use.
    tick_ms: Fixed[int] = 60_000
    admission_window_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="How long an occurrence of a key without a row counts towards its admission, at least. With "
            "0, every key is admitted at once.",
        ),
    ] = 0
    # Counters in one part that count keys without a row.
    admission_width_counters: Fixed[int] = 4_096
    admission_count: Annotated[
        int,
        Meta(
            ge=1,
            le=15,
            description="How often a key must occur within `admission_window_ms` before it gets a row. With 1, it "
            "gets one at once.",
        ),
    ] = 1
    admission_counts: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=15)]],
        Meta(
            description="The same by slot, instead of `admission_count`, such as `{ tags = 3 }`. Slots that share "
            "keys (`keys_of`) use the value of the slot that owns the keys. You can change it between runs."
        ),
    ] = field(default_factory=dict)
    idle_s: Annotated[
        float, Meta(ge=0, le=1e9, description="Keys that were not used for this long are removed; 0 keeps them.")
    ] = 0.0
    rare_count: Annotated[
        int, Meta(ge=0, le=255, description="Keys used fewer times than this are removed after `rare_idle_s` already.")
    ] = 0
    rare_idle_s: Annotated[
        float,
        Meta(ge=0, le=1e9, description="How long a rare key may be unused before it is removed; see `rare_count`."),
    ] = 0.0
    keys_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Number of keys of a table on one shard above which the longest unused are removed; 0 for no "
            "limit.",
        ),
    ] = 0
    expire_steps: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 40,
            description="Steps of training between two searches for keys that leave. Lower it so that keys leave "
            "sooner after `idle_s`.",
        ),
    ] = 100
    # Approximate number of keys of a table that a shard checks in one search.
    expire_keys: Fixed[int] = 50_000

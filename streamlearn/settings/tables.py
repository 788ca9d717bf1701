"""Settings of embedding tables."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

__all__ = ["TableSettings"]

_Rate = Annotated[float, Meta(gt=0, le=1_000)]


class TableSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the tables of the features are made of. Trainer and shards must agree on all of it."""

    rows_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 31,
            description="The most rows of each table on one shard, images of versions included. It takes address "
            "space alone until rows are written; raise it well before it is reached.",
        ),
    ] = 100_000_000
    optimizer: Annotated[
        Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"],
        Meta(description="How rows learn. `rowwise_adagrad` takes half the memory and traffic of `adagrad`."),
    ] = "adagrad"
    rate: Annotated[_Rate, Meta(description="The optimizer's learning rate.")] = 0.05
    weight_decay: Annotated[
        float,
        Meta(
            ge=0,
            le=1e3,
            description="The share of a row, times the rate, that is taken off it in every step that it learns in, "
            "which pulls rows to 0. Not for `ftrl`. As the rate, it is part of a model and cannot be changed for it.",
        ),
    ] = 0.0
    rates: Annotated[
        dict[str, _Rate],
        Meta(
            description="The rate of some tables by their names, such as `{users = 0.3}`; `rate` is that of all "
            "others. Keys that are met a few times each learn faster than those of every step."
        ),
    ] = field(default_factory=dict)
    seed: Annotated[
        int, Meta(ge=0, le=(1 << 63) - 1, description="Of rows that were never stored. Never change it for a model.")
    ] = 0
    tick_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="The grain of a row's last use; ages are told up to 2^23 of them. Raise it where rows are "
            "kept for longer than that.",
        ),
    ] = 60_000
    admission_window_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="How long keys without a row are counted before they are admitted. 0 admits every key at once.",
        ),
    ] = 0
    admission_width_counters: Annotated[
        int,
        Meta(ge=64, le=1 << 24, description="Counters of a part for that; twice the keys a part meets in a window."),
    ] = 4_096
    admission_count: Annotated[
        int,
        Meta(ge=1, le=15, description="How often a key is seen within the window before it gets a row; 1 at once."),
    ] = 1
    admission_counts: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=15)]],
        Meta(
            description="The same by slot, in place of `admission_count`, such as `{ tags = 3 }`; slots that share "
            "keys (`keys_of`) go by the one whose keys they are. May be changed from run to run."
        ),
    ] = field(default_factory=dict)
    idle_s: Annotated[
        float, Meta(ge=0, le=1e9, description="Keys not used for longer than this leave; 0 keeps them.")
    ] = 0.0
    rare_count: Annotated[
        int, Meta(ge=0, le=255, description="Keys used less often than this leave after `rare_idle_s` already.")
    ] = 0
    rare_idle_s: Annotated[float, Meta(ge=0, le=1e9, description="See `rare_count`.")] = 0.0
    keys_max: Annotated[
        int, Meta(ge=0, le=1 << 40, description="Keys of a table on one shard beyond which some leave; 0 for no limit.")
    ] = 0
    expire_steps: Annotated[
        int, Meta(ge=1, le=1 << 40, description="Every how many steps of training some keys are looked at.")
    ] = 100
    expire_keys: Annotated[
        int, Meta(ge=1, le=1 << 40, description="About how many keys of a table a shard looks at then.")
    ] = 50_000

"""Settings of embedding tables."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from streamlearn.settings.constant import Fixed

__all__ = ["TableSettings"]

_Rate = Annotated[float, Meta(gt=0, le=1_000)]


class TableSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the tables of the features learn, grow and expire. The trainer and all shards must have the same values."""

    rows_max: Annotated[int, Meta(ge=1, le=1 << 31)] = 100_000_000
    """Most rows of each table on one shard, including older images of rows that versions need. It reserves only address
    space until rows are written. Raise it well before it is reached."""
    optimizer: Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"] = "adagrad"
    """The optimizer of rows. `rowwise_adagrad` takes half of the memory and traffic of `adagrad`."""
    rate: _Rate = 0.05
    """The learning rate of rows."""
    weight_decay: Annotated[float, Meta(ge=0, le=1e3)] = 0.0
    """Decoupled weight decay: in each step that a row learns in, it shrinks by this share times the rate. Not available
    for `ftrl`. Like the rate, it is part of a model and cannot be changed for an existing one."""
    rates: dict[str, _Rate] = field(default_factory=dict)
    """Learning rates of single tables by name, such as `{users = 0.3}`; all others use `rate`. Give tables of rare keys
    a higher rate than tables of keys that occur in every step."""
    seed: Fixed[int] = 0
    """Seed of initial rows."""
    tick_ms: Fixed[int] = 60_000
    """Resolution of the time of a row's last use."""
    admission_window_ms: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    """How long an occurrence of a key without a row counts towards its admission, at least. With 0, every key is
    admitted at once."""
    admission_width_counters: Fixed[int] = 4_096
    """Counters in one part that count keys without a row."""
    admission_count: Annotated[int, Meta(ge=1, le=15)] = 1
    """How often a key must occur within `admission_window_ms` before it gets a row. With 1, it gets one at once."""
    admission_counts: dict[str, Annotated[int, Meta(ge=1, le=15)]] = field(default_factory=dict)
    """The same by slot, instead of `admission_count`, such as `{ tags = 3 }`. Slots that share keys (`keys_of`) use the
    value of the slot that owns the keys. You can change it between runs."""
    idle_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Keys that were not used for this long are removed; 0 keeps them."""
    rare_count: Annotated[int, Meta(ge=0, le=255)] = 0
    """Keys used fewer times than this are removed after `rare_idle_s` already."""
    rare_idle_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """How long a rare key may be unused before it is removed; see `rare_count`."""
    keys_max: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Number of keys of a table on one shard above which the longest unused are removed; 0 for no limit."""
    expire_steps: Annotated[int, Meta(ge=1, le=1 << 40)] = 100
    """Steps of training between two searches for keys that leave. Lower it so that keys leave sooner after `idle_s`."""
    expire_keys: Fixed[int] = 50_000
    """Approximate number of keys of a table that a shard checks in one search."""

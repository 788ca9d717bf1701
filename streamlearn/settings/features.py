"""Settings of computed features: where their states are kept, and for how long."""

from __future__ import annotations

from msgspec import Struct

from streamlearn.settings.constant import Fixed

__all__ = ["FeatureSettings"]


class FeatureSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The states of computed features."""

    store: str = ""
    """URL of the store of their states: `redis://HOST:PORT[/DB]` in production, `sqlite:///FILE` on one machine. Empty
    is the file `.streamlearn/features.db` beside app.toml. Put a password into STREAMLEARN_FEATURES_PASSWORD."""
    keep_s: Fixed[float] = 30 * 86_400.0
    """How long a state without new interactions is kept; longer if a window is longer."""
    reach_s: Fixed[float] = 2.0
    """Timeout of one call to the store."""
    wait_s: Fixed[float] = 0.005
    """How long a request waits for the states of its user and items; those of a file for ten times as long."""
    item_cache_bytes: Fixed[int] = 64 << 20
    """Memory of a node for the states of items."""
    item_age_s: Fixed[float] = 2.0
    """How long a node uses the state of an item before it reads it again."""
    repeats_max: Fixed[int] = 1 << 24
    """Most interactions that a process remembers, so that one which comes again does not count twice; about 30 bytes
    each."""

"""The cache folder of this machine, for downloads and build results."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return `STREAMLEARN_CACHE`, else `streamlearn` in the user's cache folder; it may not exist yet."""
    if configured := os.environ.get("STREAMLEARN_CACHE"):
        return Path(configured).expanduser().absolute()
    # XDG: a relative path counts as unset.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "streamlearn"

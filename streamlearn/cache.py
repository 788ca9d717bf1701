"""The cache folder: where what is fetched or built once on a machine is kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """`STREAMLEARN_CACHE`, else `streamlearn` in the user's cache folder; it need not be there yet."""
    named = os.environ.get("STREAMLEARN_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    # The XDG rule: a relative path there counts as unset.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "streamlearn"

"""The sizes of cached state: byte lengths instead of Beam's walk through everything that a value can reach.

That walk reaches modules' globals and costs more than joining. What is replaced is private to Beam, so it is looked
at first; of another release it is left as it is, and said so.
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["BEAM_VERSIONS", "size_of", "use_byte_sizes"]

# Releases whose state cache was read: `get_deep_size` is called for the weight of each cached value, and for nothing
# else.
BEAM_VERSIONS = ("2.77.",)
_OBJECT_BYTES = 64
_DEPTH_MAX = 4
_LOG = logging.getLogger(__name__)


def size_of(*values: Any) -> int:
    """About how many bytes values hold: their bytes and texts, through lists and Beam's own wrappers.

    Examples:
        >>> size_of([b"x" * 1000, b"y" * 500])
        1692
    """
    return sum(_size(value, _DEPTH_MAX) for value in values)


def use_byte_sizes() -> bool:
    """Have this process's state cache use `size_of`; whether it does."""
    import apache_beam
    from apache_beam.runners.worker import statecache

    if getattr(statecache, "get_deep_size", None) is size_of:
        return True
    if not apache_beam.__version__.startswith(BEAM_VERSIONS) or not hasattr(statecache, "get_deep_size"):
        if not _told:
            _told.append(apache_beam.__version__)
            _LOG.warning(
                "the state cache of Beam %s is unknown (%s* is supported): ingest keeps Beam's own sizes "
                "and may be slow",
                apache_beam.__version__,
                ", ".join(BEAM_VERSIONS),
            )
        return False
    statecache.get_deep_size = size_of
    return True


_told: list[str] = []


def _size(value: Any, depth: int) -> int:
    if isinstance(value, bytes | bytearray | memoryview | str):
        return _OBJECT_BYTES + len(value)
    if depth and isinstance(value, list | tuple):
        return _OBJECT_BYTES + sum(_size(one, depth - 1) for one in value)
    if depth and hasattr(value, "get_referents_for_cache"):
        return _OBJECT_BYTES + sum(_size(one, depth - 1) for one in value.get_referents_for_cache())
    return _OBJECT_BYTES

"""State cache: sizes of cached state by byte lengths, instead of Beam's walk through everything a value can reach.

That walk reaches modules' globals and costs more than joining. The replaced function is private to Beam, so the release
is checked first; an unknown release is left unchanged, with a warning.
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["BEAM_VERSIONS", "size_of", "use_byte_sizes"]

# Releases whose state cache was reviewed: it calls `get_deep_size` for the weight of each cached value, and only there.
BEAM_VERSIONS = ("2.77.",)
_OBJECT_BYTES = 64
_DEPTH_MAX = 4
_LOG = logging.getLogger(__name__)


def size_of(*values: Any) -> int:
    """Return about how many bytes values hold: bytes and texts, through lists and Beam's own wrappers.

    Examples:
        >>> size_of([b"x" * 1000, b"y" * 500])
        1692
    """
    return sum(_size(value, _DEPTH_MAX) for value in values)


def use_byte_sizes() -> bool:
    """Make this process's state cache use `size_of`; whether it does."""
    import apache_beam
    from apache_beam.runners.worker import statecache

    if getattr(statecache, "get_deep_size", None) is size_of:
        return True
    if not apache_beam.__version__.startswith(BEAM_VERSIONS) or not hasattr(statecache, "get_deep_size"):
        if not _warned:
            _warned.append(apache_beam.__version__)
            _LOG.warning(
                "the state cache of Beam %s is unknown (%s* is supported): ingest keeps Beam's own sizes "
                "and may be slow",
                apache_beam.__version__,
                ", ".join(BEAM_VERSIONS),
            )
        return False
    statecache.get_deep_size = size_of
    return True


_warned: list[str] = []


def _size(value: Any, depth: int) -> int:
    if isinstance(value, bytes | bytearray | memoryview | str):
        return _OBJECT_BYTES + len(value)
    if depth and isinstance(value, list | tuple):
        return _OBJECT_BYTES + sum(_size(part, depth - 1) for part in value)
    if depth and hasattr(value, "get_referents_for_cache"):
        return _OBJECT_BYTES + sum(_size(part, depth - 1) for part in value.get_referents_for_cache())
    return _OBJECT_BYTES

"""CandidateList: the items that a node found for a user, and their bytes in a store. Nodes read them in Rust."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamlearn.native import native

__all__ = ["CandidateList"]

# Magic, number of items, user, version, digest, two times; then keys, scores and CRC32C, all little-endian.
_HEAD = struct.Struct("<4sIQQQqq")
_MAGIC = b"SLL1"
_HALF_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class CandidateList:
    """The items of one user.

    Attributes:
        user: The key of the user.
        version: The number of the version that found them.
        digest: The first 64 bits of the digest of its manifest, which tell versions of one number apart.
        as_of_ms: The event time up to which it had learned; -1 before the first sample.
        made_ms: When they were found.
        keys: uint64[k]. The keys of the items, best first, each once.
        scores: float32[k]. Stored as float16.
    """

    user: int
    version: int
    digest: int
    as_of_ms: int
    made_ms: int
    keys: npt.NDArray[np.uint64]
    scores: npt.NDArray[Any]

    def encode(self) -> bytes:
        """Return the bytes that a store has."""
        head = _HEAD.pack(_MAGIC, len(self.keys), self.user, self.version, self.digest, self.as_of_ms, self.made_ms)
        halves = np.clip(self.scores, -_HALF_MAX, _HALF_MAX).astype("<f2")
        body = head + self.keys.astype("<u8", copy=False).tobytes() + halves.tobytes()
        data: bytes = body + struct.pack("<I", native.crc32c(body, 0))
        return data

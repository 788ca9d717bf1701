"""Pin: a version that is held while someone reads it, and the ways in which a call names a version."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from streamlearn.errors import UsageError
from streamlearn.resource import Resource
from streamlearn.table.arguments import UINT64_MAX, whole

__all__ = ["At", "Pin", "native_at"]


class Pin(Resource):
    """A held version: it is not retired until the pin is closed. `TableSet.pin` makes it."""

    def __init__(self, native_pin: Any) -> None:
        self.version: int = native_pin.version
        self._native: Any = native_pin

    @property
    def native(self) -> Any:
        """The native pin."""
        if self._native is None:
            message = f"the pin of version {self.version} is closed"
            raise UsageError(message, help="read before the pin is closed")
        return self._native

    def close(self) -> None:
        """Release the version."""
        self._native = None


At: TypeAlias = Literal["newest", "active"] | Pin | int
"""The version that a call reads: the newest writes, the version that is active when the call begins, a pin, or the
number of a retained or sealed version, which is held during the call."""


def native_at(native_set: Any, at: At) -> Any:
    """Convert a version argument to what the native core takes.

    Raises:
        TypeError: It is neither a pin, nor a number, nor one of the two words.
        VersionRefused: The version does not exist.
    """
    if isinstance(at, Pin):
        return at.native
    if isinstance(at, int) and not isinstance(at, bool):
        return native_set.pin(whole("at", at, 0, UINT64_MAX))
    if at not in ("newest", "active"):
        message = f'at: expected a version, a pin, "newest" or "active", got {at!r}'
        raise TypeError(message)
    return at

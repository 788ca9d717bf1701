"""Pin: a version that is held while someone reads it, and how a call names the version it reads."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypeAlias

from streamlearn.errors import UsageError
from streamlearn.table.arguments import UINT64_MAX, whole

__all__ = ["At", "Pin", "native_at"]


class Pin:
    """A version that is held: it is not retired until the pin is closed. Made by `TableSet.pin`.

    Attributes:
        version: The version.
    """

    def __init__(self, native_pin: Any) -> None:
        self.version: int = native_pin.version
        self._native: Any = native_pin

    @property
    def native(self) -> Any:
        """What the native core takes."""
        if self._native is None:
            message = f"the pin of version {self.version} is closed"
            raise UsageError(message, help="read before the pin is closed")
        return self._native

    def close(self) -> None:
        """Let the version go."""
        self._native = None

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


At: TypeAlias = Literal["newest", "active"] | Pin | int
"""Which version a call reads: what was written last, the one that is active when it begins, a pin, or the number of a
version that is kept or sealed, which is held while the call reads."""


def native_at(native_set: Any, at: At) -> Any:
    """What the native core takes for it.

    Raises:
        TypeError: It is neither a pin, nor a number, nor one of the two words.
        VersionRefused: There is no such version.
    """
    if isinstance(at, Pin):
        return at.native
    if isinstance(at, int) and not isinstance(at, bool):
        return native_set.pin(whole("at", at, 0, UINT64_MAX))
    if at not in ("newest", "active"):
        message = f'at: expected a version, a pin, "newest" or "active", got {at!r}'
        raise TypeError(message)
    return at

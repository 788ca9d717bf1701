"""Resource: something that is closed at the end of a `with` block."""

from __future__ import annotations

from typing import Self

__all__ = ["Resource"]


class Resource:
    """The base of what holds connections, files or threads until it is closed."""

    def close(self) -> None:
        """Release what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

"""UsersLadder: the numbers of users that steps are padded to."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["UsersLadder"]

_LEAST, _GROWTH = 64, 1.25


class UsersLadder:
    """Few numbers, so that few shapes are compiled, and close together, so that little is padding.

    Attributes:
        sizes: All, in ascending order.

    Examples:
        >>> UsersLadder(150).sizes
        (64, 80, 100, 125, 150)
    """

    def __init__(self, rows_max: int) -> None:
        sizes = [min(_LEAST, rows_max)]
        while sizes[-1] < rows_max:
            sizes.append(min(rows_max, int(sizes[-1] * _GROWTH)))
        self.sizes = tuple(sizes)

    def holds(self, users: int) -> int:
        """Return the smallest size that has room for a number of users, which is at most `rows_max`."""
        return self.sizes[bisect_left(self.sizes, users)]

    def beside(self, size: int) -> tuple[int, ...]:
        """Return the sizes next to a size: the larger one first. There are none next to another number.

        Examples:
            >>> UsersLadder(150).beside(80), UsersLadder(150).beside(64), UsersLadder(150).beside(7)
            ((100, 64), (80,), ())
        """
        at = bisect_left(self.sizes, size)
        if self.sizes[at : at + 1] != (size,):
            return ()
        return (*self.sizes[at + 1 : at + 2], *self.sizes[max(at - 1, 0) : at])

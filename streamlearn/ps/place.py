"""Place: which of how many shards one is, and the parts of every table it owns."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.native import native

__all__ = ["Place"]


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """A shard's number among its fellows.

    Attributes:
        number: From 0.
        count: How many there are.

    Examples:
        >>> Place.parse("1/3").parts
        (341, 682)
    """

    number: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=1024)] = 1

    @classmethod
    def parse(cls, text: str) -> Place:
        """A place as it is written: `0/2` is the first of two.

        Raises:
            UsageError: It is none.
        """
        number, slash, count = text.partition("/")
        if slash and number.isascii() and count.isascii() and number.isdigit() and count.isdigit():
            place = cls(int(number), int(count))
            if place.number < place.count <= native.TABLE_PARTS:
                return place
        message = f"invalid shard position {text!r}"
        raise UsageError(
            message, help=f"write NUMBER/COUNT, such as 0/2 and 1/2; COUNT is at most {native.TABLE_PARTS}"
        )

    @property
    def parts(self) -> tuple[int, int]:
        """The first of its parts, and the one after its last."""
        parts = native.TABLE_PARTS
        return parts * self.number // self.count, parts * (self.number + 1) // self.count

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

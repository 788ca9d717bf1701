"""Place: the position of a shard among all shards, and the parts of every table that it owns."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from streamlearn.errors import UsageError
from streamlearn.native import native

__all__ = ["Place"]


class Place(Struct, frozen=True, forbid_unknown_fields=True):
    """A shard's number, from 0, and the count of all shards.

    Examples:
        >>> Place.parse("1/3").parts
        (341, 682)
    """

    number: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=1024)] = 1

    @classmethod
    def parse(cls, text: str) -> Place:
        """The position in a text: `0/2` is the first of two shards. Raises `UsageError` for any other text."""
        number, slash, count = text.partition("/")
        if slash and number.isascii() and count.isascii() and number.isdigit() and count.isdigit():
            place = cls(int(number), int(count))
            if place.number < place.count <= native.TABLE_PARTS:
                return place
        message = f"invalid shard position {text!r}"
        help = f"write NUMBER/COUNT, such as 0/2 and 1/2; COUNT is at most {native.TABLE_PARTS}"
        raise UsageError(message, help=help)

    @property
    def parts(self) -> tuple[int, int]:
        """Its first part, and the one after its last."""
        parts = native.TABLE_PARTS
        return parts * self.number // self.count, parts * (self.number + 1) // self.count

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

"""Ladder: the shapes that have executables. It compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from streamlearn.errors import ConfigError
from streamlearn.models.description import Description
from streamlearn.settings import ServingSettings

__all__ = ["Bucket", "Ladder"]


class Bucket(NamedTuple):
    """A shape of one graph: its rows, users or candidates, and the length of histories, 0 for models without."""

    graph: Literal["user", "score"]
    rows: int
    length: int


@dataclass(frozen=True)
class Ladder:
    """The shapes to which inputs are padded, each list in increasing order.

    `users` is empty without a user graph; `lengths` is (0,) without histories. The score graph takes `users_max` users.
    """

    users: tuple[int, ...]
    candidates: tuple[int, ...]
    lengths: tuple[int, ...]
    users_max: int

    @classmethod
    def of(cls, settings: ServingSettings, described: Description) -> Ladder:
        """Return the ladder that the settings give these graphs."""
        users, candidates = settings.users_buckets, settings.candidates_buckets
        for name in ("users_buckets", "candidates_buckets", "lengths"):
            sizes = getattr(settings, name)
            if any(size >= following for size, following in pairwise(sizes)):
                message = f"serving.{name} is {sizes}, which is not in increasing order"
                raise ConfigError(message, help="list each size once, in increasing order")
        lengths = _lengths(settings.lengths, described)
        ladder = cls(tuple(users) if described.user else (), tuple(candidates), lengths, users[-1])
        count = sum(1 for _ in ladder.buckets())
        if count > settings.compiles_max:
            message = f"the ladder has {count} executables, but serving.compiles_max is {settings.compiles_max}"
            raise ConfigError(message, help="remove buckets or a length, or raise serving.compiles_max")
        return ladder

    def buckets(self) -> Iterator[Bucket]:
        """Yield all shapes."""
        for length in self.lengths:
            yield from (Bucket("user", rows, length) for rows in self.users)
            yield from (Bucket("score", rows, length) for rows in self.candidates)

    def users_bucket(self, users: int) -> int:
        """Return the rows to which this many users are padded."""
        return _at_least(users, self.users)

    def candidates_bucket(self, candidates: int) -> int:
        """Return the rows to which this many candidates are padded; beyond the last bucket, they are not padded."""
        return _at_least(candidates, self.candidates)


def _lengths(lengths: Sequence[int], described: Description) -> tuple[int, ...]:
    own = int(described.pack["user"]["sequence_length"])
    if not own:
        if lengths:
            message = f"serving.lengths is {list(lengths)}, but no slot of the user side is a sequence"
            raise ConfigError(message, help="remove serving.lengths")
        return (0,)
    if not lengths:
        return (own,)
    if lengths[-1] != own:
        message = f"serving.lengths ends with {lengths[-1]}, but the features keep histories of length {own}"
        raise ConfigError(message, help=f"end serving.lengths with {own}")
    is_fixed = any(
        note.name == "user_sequence" and note.shape[1] is not None
        for graph in (described.user, described.score)
        if graph is not None
        for note in graph.inputs
    )
    if len(lengths) > 1 and is_fixed:
        message = f"serving.lengths is {list(lengths)}, but the graphs only take histories of length {own}"
        raise ConfigError(message, help="remove serving.lengths, or let the model take any length (any_length = True)")
    return tuple(lengths)


def _at_least(size: int, buckets: Sequence[int]) -> int:
    return next((bucket for bucket in buckets if bucket >= size), size)

"""The ladder: which shapes have executables. It compiles nothing."""

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
    """A shape of one graph.

    Attributes:
        graph: Which.
        rows: Users of the user graph, candidates of the score graph.
        length: Places of a user's history; 0 where there is none.
    """

    graph: Literal["user", "score"]
    rows: int
    length: int


@dataclass(frozen=True)
class Ladder:
    """The shapes that are padded to, each growing.

    Attributes:
        users: Of the user graph; empty where there is none.
        candidates: Of the score graph.
        lengths: Of a user's history; 0 alone where there is none.
        users_max: How many users the score graph takes.
    """

    users: tuple[int, ...]
    candidates: tuple[int, ...]
    lengths: tuple[int, ...]
    users_max: int

    @classmethod
    def of(cls, settings: ServingSettings, described: Description) -> Ladder:
        """The ladder of some graphs.

        Raises:
            ConfigError: The settings contradict themselves, or the graphs.
        """
        users, candidates = settings.users_buckets, settings.candidates_buckets
        for name in ("users_buckets", "candidates_buckets", "lengths"):
            _check_growing(name, getattr(settings, name))
        lengths = _lengths(settings.lengths, described)
        found = cls(tuple(users) if described.user else (), tuple(candidates), lengths, users[-1])
        count = sum(1 for _ in found.buckets())
        if count > settings.compiles_max:
            message = f"the ladder has {count} executables, but serving.compiles_max is {settings.compiles_max}"
            raise ConfigError(message, help="remove buckets or a length, or raise serving.compiles_max")
        return found

    def buckets(self) -> Iterator[Bucket]:
        """All shapes."""
        for length in self.lengths:
            yield from (Bucket("user", rows, length) for rows in self.users)
            yield from (Bucket("score", rows, length) for rows in self.candidates)

    def users_bucket(self, users: int) -> int:
        """How many rows so many users are padded to."""
        return _at_least(users, self.users)

    def candidates_bucket(self, candidates: int) -> int:
        """How many rows so many candidates are padded to; as many as they are, beyond the last bucket."""
        return _at_least(candidates, self.candidates)

    def length(self, places: int) -> int:
        """How long a block histories of so many places are padded to; those that are longer are cut to the last."""
        return min(_at_least(places, self.lengths), self.lengths[-1])


def _lengths(wanted: Sequence[int], described: Description) -> tuple[int, ...]:
    own = int(described.pack["user"]["sequence_length"])
    if not own:
        if wanted:
            message = f"serving.lengths is {list(wanted)}, but no slot of the user side is a sequence"
            raise ConfigError(message, help="remove serving.lengths")
        return (0,)
    if not wanted:
        return (own,)
    if wanted[-1] != own:
        message = f"serving.lengths ends with {wanted[-1]}, but the features keep histories of length {own}"
        raise ConfigError(message, help=f"end serving.lengths with {own}")
    fixed = [
        one.name
        for graph in (described.user, described.score)
        if graph is not None
        for one in graph.inputs
        if one.name == "user_sequence" and one.shape[1] is not None
    ]
    if len(wanted) > 1 and fixed:
        message = f"serving.lengths is {list(wanted)}, but the graphs only take histories of length {own}"
        raise ConfigError(message, help="remove serving.lengths, or let the model take any length (any_length = True)")
    return tuple(wanted)


def _check_growing(name: str, sizes: Sequence[int]) -> None:
    if any(one >= other for one, other in pairwise(sizes)):
        message = f"serving.{name} is {list(sizes)}, which is not in increasing order"
        raise ConfigError(message, help="list each size once, in increasing order")


def _at_least(wanted: int, sizes: Sequence[int]) -> int:
    return next((size for size in sizes if size >= wanted), wanted)

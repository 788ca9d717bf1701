"""PendingUsers: the users who acted and have no new list yet, and how far the log is done. Pure: it reads no clock."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

__all__ = ["PendingUsers"]


class _Act(NamedTuple):
    """The first of a user's actions since the last list."""

    partition: int
    offset: int
    written_ms: int
    due_s: float


class PendingUsers:
    """Users in the order of their first action, each once.

    A user is due `settle_s` after that action, however many follow. A user who was taken and acts again waits anew,
    because the list that is being made may not know the new action.

    Guaranteed: all users of messages before `positions` are done.
    """

    def __init__(self, settle_s: float, users_max: int) -> None:
        self._settle_s, self._users_max = settle_s, users_max
        self._waiting: dict[int, _Act] = {}
        self._taken: dict[int, _Act] = {}
        self._failed: set[int] = set()  # of those that are pending

    def __len__(self) -> int:
        return len(self._waiting) + len(self._taken)

    @property
    def is_full(self) -> bool:
        """Whether no more should be read until some are done."""
        return len(self) >= self._users_max

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest action was written; None if nobody waits."""
        firsts = (next(iter(acts.values()), None) for acts in (self._waiting, self._taken))
        return min((act.written_ms for act in firsts if act is not None), default=None)

    def add(self, users: Iterable[int], partition: int, offset: int, written_ms: int, now_s: float) -> None:
        """Take the users of a message; those that wait already stay where they are."""
        act = _Act(partition, offset, written_ms, now_s + self._settle_s)
        for user in users:
            self._waiting.setdefault(user, act)

    def take(self, count: int, now_s: float) -> list[int]:
        """Return the next users who are due; one who was taken before is not, until that is done."""
        ahead = takewhile(lambda waiting: waiting[1].due_s <= now_s, self._waiting.items())
        users = [user for user, _ in islice((each for each in ahead if each[0] not in self._taken), count)]
        self._taken |= {user: self._waiting.pop(user) for user in users}
        return users

    def done(self, users: Iterable[int]) -> None:
        """Forget users who were taken."""
        for user in users:
            self._taken.pop(user, None)
            self._failed.discard(user)

    def fails_again(self, user: int) -> bool:
        """Note that a node failed at a user who was taken; return whether one did before, since the user was done."""
        if user in self._failed:
            return True
        self._failed.add(user)
        return False

    def give_back(self, users: Iterable[int]) -> None:
        """Let users who were taken wait again, before all others."""
        first = {user: self._taken.pop(user) for user in users if user in self._taken}
        self._waiting = first | {user: act for user, act in self._waiting.items() if user not in first}

    def positions(self) -> dict[int, int]:
        """Return the offset up to which each partition is done; without those of which nobody waits."""
        offsets: dict[int, int] = {}
        for acts in (self._waiting, self._taken):
            for act in acts.values():
                offsets[act.partition] = min(act.offset, offsets.get(act.partition, act.offset))
        return offsets

"""Rounds: whether the steps of this process are called, by a runner that runs all of a job in it."""

from __future__ import annotations

__all__ = ["ROUNDS", "Rounds"]


class Rounds:
    """Counts calls of a runner; who looks is one thread, who counts are many.

    Examples:
        >>> rounds = Rounds()
        >>> rounds.have_gone_on()
        False
        >>> rounds.note()
        >>> rounds.have_gone_on(), rounds.have_gone_on()
        (True, False)
    """

    def __init__(self) -> None:
        self._is_new = False

    def note(self) -> None:
        """A runner has called a step."""
        self._is_new = True

    def have_gone_on(self) -> bool:
        """Whether it has since this was last asked."""
        was_new, self._is_new = self._is_new, False
        return was_new


ROUNDS = Rounds()
"""The instance that all jobs of this process share."""

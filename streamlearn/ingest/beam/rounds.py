"""Rounds: whether a runner in this process still calls the steps of its job."""

from __future__ import annotations

__all__ = ["ROUNDS", "Rounds"]


class Rounds:
    """Whether a step was called since the last look. Many threads note calls, one looks.

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
        """Note a call of a step."""
        self._is_new = True

    def have_gone_on(self) -> bool:
        """Whether a step was called since this was last called."""
        was_new, self._is_new = self._is_new, False
        return was_new


ROUNDS = Rounds()
"""The instance that all jobs of this process share."""

"""Behaviour: columns that are computed from a user's or an item's recent interactions, and not sent by callers.

An interaction is an impression of an item, or an action on it. Its kind is `IMPRESSION`, or the action's name.
docs/internals/features.md says what the values are exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["IMPRESSION", "Behaviour", "Count", "Last", "Rate", "Since", "Sum"]

IMPRESSION = "impression"
"""The kind of an interaction that is an item shown, whatever was done with it."""


@dataclass(frozen=True)
class Last:
    """The values of a slot in the newest interactions of some kinds, oldest first: of a slot with several values.

    Attributes:
        slot: A slot with one value, whose keys the column shares (`keys_of`).
        of: A kind, or several: actions, or "impression".
        length: How many; by default the `length` of the column, if it is a sequence.
    """

    slot: str
    of: str | tuple[str, ...]
    length: int = 0


@dataclass(frozen=True)
class Count:
    """The number of interactions of each kind in each window, kind by kind: of a dense column.

    Attributes:
        of: A kind, or several.
        windows: Durations, such as ("1h", "7d").
    """

    of: str | tuple[str, ...]
    windows: str | tuple[str, ...]


@dataclass(frozen=True)
class Sum:
    """The sum of the values of actions in each window, kind by kind: of a dense column.

    Attributes:
        of: A kind, or several.
        windows: Durations.
    """

    of: str | tuple[str, ...]
    windows: str | tuple[str, ...]


@dataclass(frozen=True)
class Rate:
    """Interactions of one kind for each of another, by window: of a dense column.

    Attributes:
        of: The kind that is counted, such as "click".
        over: The kind that it is divided by, such as "impression".
        windows: Durations.
        prior: A share, and how many interactions it weighs: what is believed of a new entity.
    """

    of: str
    over: str
    windows: str | tuple[str, ...]
    prior: tuple[float, float]


@dataclass(frozen=True)
class Since:
    """The time since the newest interaction of some kinds: seconds in a dense column, their octave in a slot.

    The octave is the number of binary digits of the whole seconds: 0 below one second, then 1, 2 from 2 s, 3 from 4 s.
    Before any interaction it is the column's default.

    Attributes:
        of: A kind, or several.
    """

    of: str | tuple[str, ...]


Behaviour: TypeAlias = Last | Count | Sum | Rate | Since

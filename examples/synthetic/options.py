"""The options of the generator, for `--option NAME=VALUE`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from streamlearn.errors import ConfigError

__all__ = ["Options", "options_of"]


@dataclass(frozen=True)
class Options:
    """The options. Equal options generate equal events.

    Attributes:
        seed: Seed of all randomness.
        events: Approximate number of events; pending events still arrive after the last request.
        users: Number of users.
        items: Number of items at any moment; a new one replaces the oldest.
        rate: Approximate events per second of event time.
        start_ms: Event time of the first request.
        zipf: Exponent of the popularity of users and of items.
        click_rate: Approximate share of shown items that are clicked; 0.4 of clicks become long views.
        new_items: New items per hour, as a share of all items.
        drift_s: Period in which an item's appeal rises, falls and returns.
        late_share: Share of actions after their label's window.
        duplicates: Share of events that arrive twice.
        disorder_ms: Maximum delay of arrival, which also changes the order.
        stragglers: Share of events that arrive after the watermark has passed them.
        straggler_ms: Maximum additional delay of stragglers.
        poison_from_s: Start of the poison, from the start of the history; no poison if both are 0.
        poison_to_s: End of the poison.
        poison_kind: "flip" inverts clicks; "random" replaces them with random ones.
    """

    seed: int = 1
    events: int = 1_000_000
    users: int = 100_000
    items: int = 20_000
    rate: float = 10_000.0
    start_ms: int = 1_700_000_000_000
    zipf: float = 1.05
    click_rate: float = 0.05
    new_items: float = 0.1
    drift_s: float = 7_200.0
    late_share: float = 0.01
    duplicates: float = 0.0
    disorder_ms: int = 0
    stragglers: float = 0.0
    straggler_ms: int = 60_000
    poison_from_s: float = 0.0
    poison_to_s: float = 0.0
    poison_kind: Literal["flip", "random"] = "flip"


_BOUNDS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**31),
    "events": (1, 10**12),
    "users": (1, 10**8),
    "items": (4, 10**8),
    "rate": (0.01, 10**8),
    "start_ms": (0, 2**45),
    "zipf": (0, 4),
    "click_rate": (0.001, 0.9),
    "new_items": (0, 1_000),
    "drift_s": (1, 10**9),
    "late_share": (0, 1),
    "duplicates": (0, 1),
    "disorder_ms": (0, 600_000),
    "stragglers": (0, 1),
    "straggler_ms": (1, 86_400_000),
}
_POISON = ("flip", "random")


def options_of(given: Mapping[str, str]) -> Options:
    """Parse options. `poison=FROM..TO` sets both ends, in seconds after the start.

    Raises:
        ConfigError: An option is unknown, not a number, or out of bounds.
    """
    values: dict[str, object] = {}
    kinds = {field.name: type(field.default) for field in fields(Options)}
    for name, text in given.items():
        if name == "poison":
            values["poison_from_s"], values["poison_to_s"] = _poison(text)
        elif name == "poison_kind":
            values[name] = _choice(name, text)
        elif name in _BOUNDS:
            values[name] = _number(name, text, kinds[name])
        else:
            raise _unknown(name)
    return Options(**values)  # type: ignore[arg-type]  # each value has the type of its field


def _unknown(name: str) -> ConfigError:
    known = [*_BOUNDS, "poison", "poison_kind"]
    close = difflib.get_close_matches(name, known, n=1)
    message = f"the history of synthetic has no option {name!r}"
    return ConfigError(message, help=f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(known)}")


def _number(name: str, text: str, kind: type) -> int | float:
    low, high = _BOUNDS[name]
    try:
        number: int | float = int(text.replace("_", "")) if kind is int else float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        message = f"option {name} is {text!r}"
        raise ConfigError(
            message, help=f"{name} is {'a whole number' if kind is int else 'a number'} from {low} to {high}"
        )
    return number


def _choice(name: str, text: str) -> str:
    if text not in _POISON:
        message = f"option {name} is {text!r}"
        raise ConfigError(message, help=f"{name} is one of {', '.join(_POISON)}")
    return text


def _poison(text: str) -> tuple[float, float]:
    begin, _, end = text.partition("..")
    try:
        first, last = float(begin), float(end)
    except ValueError:
        first, last = math.nan, math.nan
    if not 0 <= first < last < math.inf:
        message = f"option poison is {text!r}"
        raise ConfigError(message, help="poison=FROM..TO in seconds after the start, such as poison=600..900")
    return first, last

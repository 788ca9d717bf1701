"""Combinations: columns that training and serving make from others, so that events and samples do not have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

__all__ = ["CURVES", "CURVE_KNOTS", "CURVE_SHAPE", "Calibration", "CountIn", "Cross", "Derived", "Product"]

CURVES = "calibration."
"""The prefix of the dense weights that have curves."""
CURVE_KNOTS = 16
"""The knots of a curve."""
CURVE_SHAPE = (1 + 64, 2 + 2 * CURVE_KNOTS)
"""The dense weight with the curves of an isotonic calibration: a row for all values of the slot, then one for each of
the values with a curve of their own. A row has the numbers of the value's key, then its ascending knots: the model's
logits, and the right ones. Straight lines join knots; beyond the outer ones the slope is one. So a curve increases
everywhere, and zeros change nothing."""


@dataclass(frozen=True)
class _Pair:
    first: str
    second: str
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or f"{self.first}_x_{self.second}")

    @property
    def of(self) -> tuple[str, str]:
        """The columns that it is made from."""
        return (self.first, self.second)


@dataclass(frozen=True)
class Cross(_Pair):
    """A slot whose values are the pairs of two others', such as the user's region and the item's brand.

    Attributes:
        first: A slot with one value. If one of the two is on the item side, so is the cross.
        second: Another one.
        name: Its name, which also seeds its keys; FIRST_x_SECOND by default. If a slot is renamed, write here the name
            that the cross had.
        table: The table that holds its rows.
        dim: Length of a row.
        initial_range: A new row is uniform in [-initial_range, initial_range).
    """

    table: str = "main"
    dim: int = 16
    initial_range: float = 0.05


@dataclass(frozen=True)
class Product(_Pair):
    """A dense column that is the product of two others, number by number.

    Attributes:
        first: A dense column. If one of the two is on the item side, so is the product.
        second: Another one, of the same width.
        name: Its name; FIRST_x_SECOND by default.
    """


@dataclass(frozen=True)
class CountIn:
    """A dense column: how often an item's value is in a list of the user's, such as its category in those watched.

    Attributes:
        slot: A slot of the item side with one value.
        within: A slot of the user side with several values that shares its keys (`keys_of`).
        name: Its name; SLOT_in_WITHIN by default.
    """

    slot: str
    within: str
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or f"{self.slot}_in_{self.within}")

    @property
    def of(self) -> tuple[str, str]:
        """The columns that it is made from."""
        return (self.slot, self.within)


@dataclass(frozen=True)
class Calibration:
    """A correction of a label's logit for each value of a slot, such as the page or the country.

    The model does not read it, and learns as if there were none.

    Attributes:
        label: The label whose logit they correct.
        by: A slot with one value.
        name: Its name, which also seeds its keys; LABEL_by_SLOT by default. If the label or the slot is renamed, write
            here the name that the calibration had.
        table: The table that holds its rows.
        method: "platt" learns a scale and an offset with every step. "isotonic" fits an increasing curve to recent
            first predictions whose labels are final; it has no rows.
    """

    dim: ClassVar[int] = 2
    initial_range: ClassVar[float] = 0.0

    label: str
    by: str
    name: str = ""
    table: str = "calibration"
    method: Literal["platt", "isotonic"] = "platt"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or f"{self.label}_by_{self.by}")

    @property
    def weight_name(self) -> str:
        """The name of the dense weight that has its curves; see `CURVE_SHAPE`."""
        return CURVES + self.name

    @property
    def of(self) -> tuple[str, str]:
        """The columns that it is made from: a cross of the slot with itself."""
        return (self.by, self.by)


Derived: TypeAlias = Cross | Product | CountIn | Calibration

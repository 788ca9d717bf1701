"""The declared features of an application: slots, dense columns, segments.

It does not know events, tables or models; those derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from streamlearn.errors import SpecError
from streamlearn.features.behaviour import Behaviour
from streamlearn.features.combination import Calibration, Cross, Derived
from streamlearn.features.entity import Entity, entities_of
from streamlearn.features.names import declared, fingerprint, tuple_of
from streamlearn.features.pack import PackColumn, PackPlan, pack_side
from streamlearn.features.rules import check_spec

__all__ = ["USER_SLOTS", "Dense", "FeatureSpec", "Keyed", "Segment", "Side", "Slot", "TableSpec"]

USER_SLOTS = ("user_id", "user")
"""The names of slots that are taken to name a user."""
Side = Literal["user", "item"]
Pooling = Literal["sum", "mean", "sqrtn", "weighted", "sequence"]


@dataclass(frozen=True)
class Slot:
    """One sparse feature column.

    Attributes:
        name: Its name in events and samples; it also seeds the keys of its values.
        side: "user" (once a request) or "item" (once a candidate).
        table: The table that holds its rows; slots of one table agree on `dim` and `initial_range`.
        dim: Length of a row.
        multi: Whether an event holds a list of values instead of exactly one.
        pooling: How several rows become one; "weighted" takes a list of weights beside the values, "sequence"
            keeps the rows in order (user side only, oldest first, the newest `length` are kept).
        length: Longest sequence; 0 for every other pooling.
        value: The type of a value in events, "int" or "str".
        initial_range: A new row is uniform in [-initial_range, initial_range).
        default: The value of a single-valued slot in events that lack it; None makes it required. A slot that
            is added to a live application needs one (or is `multi`, whose default is the empty list).
        keys_of: Another slot whose keys these values share, so that a history of videos and the candidate
            video use the same rows. If that slot was renamed, its `was`.
        was: The name under which a renamed slot was first learned. It still seeds the keys, so that their rows are
            found, and older events are read by it. It stays for as long as models inherit from each other.
        computed: Set for values that follow from recent interactions, where a caller does not send them.
    """

    name: str
    side: Side
    table: str = "main"
    dim: int = 16
    multi: bool = False
    pooling: Pooling = "sum"
    length: int = 0
    value: Literal["int", "str"] = "int"
    initial_range: float = 0.05
    default: int | str | None = None
    keys_of: str | None = None
    was: str | None = None
    computed: Behaviour | None = None

    @property
    def salt_name(self) -> str:
        """The name that seeds its keys."""
        return self.keys_of or self.first_name

    @property
    def first_name(self) -> str:
        """The name under which it was first learned."""
        return self.was or self.name


Keyed: TypeAlias = Slot | Cross | Calibration
"""A column that has rows."""


@dataclass(frozen=True)
class Dense:
    """One column of plain float32 numbers.

    Attributes:
        name: Its name in events and samples.
        side: "user" or "item".
        width: Numbers in a value; in events, a width of 1 is a number, and more are a list.
        default: Every number of the value in events that lack it; None makes it required.
        was: The name under which a renamed column was first learned, as for slots.
        computed: As for slots.
    """

    name: str
    side: Side
    width: int = 1
    default: float | None = None
    was: str | None = None
    computed: Behaviour | None = None

    @property
    def first_name(self) -> str:
        """The name under which it was first learned."""
        return self.was or self.name


@dataclass(frozen=True)
class Segment:
    """A text by which metrics are split, such as a page or a country; models do not read it.

    Attributes:
        name: Its name in events, samples and metrics.
        side: "user" (once a request) or "item" (once a candidate).
    """

    name: str
    side: Side = "user"


@dataclass(frozen=True)
class TableSpec:
    """The properties that the slots of one table share."""

    name: str
    dim: int
    initial_range: float


@dataclass(frozen=True)
class FeatureSpec:
    """All features of an application, in the order that everything else keeps.

    Attributes:
        slots: The sparse columns.
        dense: The dense columns.
        item_id: The item-side slot that names an item; actions refer to items by its value.
        segments: Texts by which metrics are split.
        derived: Columns that training and serving make from others: `Cross`, `Product`, `CountIn`, `Calibration`.
        user_id: The user-side slot that names a user; the slot `user_id` or `user` by default.

    Examples:
        >>> spec = FeatureSpec(slots=(Slot("user_id", "user"), Slot("video_id", "item")), item_id="video_id")
        >>> spec.tables
        (TableSpec(name='main', dim=16, initial_range=0.05),)
        >>> spec.pack.item.flat_width
        16
    """

    slots: tuple[Slot, ...]
    item_id: str
    dense: tuple[Dense, ...] = ()
    segments: tuple[Segment, ...] = ()
    derived: tuple[Derived, ...] = ()
    user_id: str = ""

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {"slots": Slot, "dense": Dense, "segments": Segment, "derived": get_args(Derived)}
        for field, kind in kinds.items():
            object.__setattr__(self, field, tuple_of(field, kind, getattr(self, field)))
        check_spec(self)
        _ = self.entities  # refuses columns that cannot be computed

    def slot(self, name: str) -> Slot:
        """Return the slot with a name; raises SpecError if there is none."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        message = f"no slot is named {name!r}"
        raise SpecError(message, help=f"the slots are {', '.join(slot.name for slot in self.slots)}")

    def slots_of(self, side: Side) -> tuple[Slot, ...]:
        """Return the slots of one side, as declared."""
        return self._slots_by_side[side]

    def dense_of(self, side: Side) -> tuple[Dense, ...]:
        """Return the dense columns of one side, as declared."""
        return self._dense_by_side[side]

    @cached_property
    def of_library(self) -> tuple[tuple[Slot, ...], tuple[Dense, ...]]:
        """The item-side slots and dense columns that describe an item by itself: without its id and computed ones."""
        slots = tuple(slot for slot in self.slots_of("item") if slot.computed is None and slot.name != self.item_id)
        return slots, tuple(column for column in self.dense_of("item") if column.computed is None)

    def side_of(self, derived: Derived) -> Side:
        """Return the side of a derived column: that of the item if one of its sources is there."""
        sides = {slot.name: slot.side for slot in self.slots} | {column.name: column.side for column in self.dense}
        return "item" if "item" in map(sides.get, derived.of) else "user"

    @property
    def user_slots(self) -> tuple[str, ...]:
        """The slots that tell users apart: `user_slot`, or else all slots of the user side with one value."""
        if self.user_slot:
            return (self.user_slot,)
        return tuple(slot.name for slot in self.slots_of("user") if not slot.multi)

    @property
    def user_slot(self) -> str:
        """The slot that names a user; empty if none is known to."""
        names = [slot.name for slot in self.slots_of("user") if not slot.multi]
        return self.user_id or next((name for name in USER_SLOTS if name in names), "")

    @cached_property
    def entities(self) -> tuple[Entity, ...]:
        """The users and items whose interactions make computed columns."""
        return entities_of(self)

    def segments_of(self, side: Side) -> tuple[Segment, ...]:
        """Return the segments of one side, as declared."""
        return tuple(segment for segment in self.segments if segment.side == side)

    @cached_property
    def _slots_by_side(self) -> dict[Side, tuple[Slot, ...]]:  # cached, since every message uses it
        return {side: tuple(slot for slot in self.slots if slot.side == side) for side in ("user", "item")}

    @cached_property
    def _dense_by_side(self) -> dict[Side, tuple[Dense, ...]]:
        return {side: tuple(column for column in self.dense if column.side == side) for side in ("user", "item")}

    @property
    def keyed(self) -> tuple[Keyed, ...]:
        """All columns that have rows."""
        return (*self.slots, *self.derived_keyed)

    @property
    def derived_keyed(self) -> tuple[Cross | Calibration, ...]:
        """The derived columns that have rows."""
        return tuple(one for one in self.derived if isinstance(one, Cross | Calibration) and one not in self.curves)

    @property
    def calibrations(self) -> tuple[Calibration, ...]:
        """The calibrations of labels."""
        return tuple(one for one in self.derived if isinstance(one, Calibration))

    @property
    def curves(self) -> tuple[Calibration, ...]:
        """The calibrations that are curves: they have no rows, and the column of each tells its slot's key."""
        return tuple(one for one in self.calibrations if one.method == "isotonic")

    @cached_property
    def of_model(self) -> FeatureSpec:
        """The features that a model reads: all but calibrations."""
        if not self.calibrations:
            return self
        return replace(self, derived=tuple(one for one in self.derived if not isinstance(one, Calibration)))

    @cached_property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables of all columns that have rows, in the order of their first ones."""
        return tuple(dict.fromkeys(TableSpec(slot.table, slot.dim, slot.initial_range) for slot in self.keyed))

    @cached_property
    def pack(self) -> PackPlan:
        """The layout of a model's inputs."""
        return PackPlan(
            user=pack_side(self.slots_of("user"), self.dense_of("user"), self._derived_columns("user")),
            item=pack_side(self.slots_of("item"), self.dense_of("item"), self._derived_columns("item")),
        )

    def _derived_columns(self, side: Side) -> list[PackColumn]:
        widths = {column.name: column.width for column in self.dense}
        return [
            PackColumn(one.name, "", "key", 0, one.dim, one.of)
            if one in self.curves
            else PackColumn(one.name, one.table, "sum", 0, one.dim, one.of)
            if isinstance(one, Cross | Calibration)
            else PackColumn(one.name, "", "dense", 0, widths.get(one.of[0], 1), one.of)  # the count of a slot is one
            for one in (*self.of_model.derived, *self.calibrations)
            if self.side_of(one) == side
        ]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when a trained model cannot read the packed inputs any more. `App` adds the labels to it.

        Defaults and segments do not count: a new default for an old slot, or another split of the metrics,
        leaves every trained model valid.
        """
        columns = [*map(declared, self.slots), *map(declared, self.dense), *map(declared, self.derived)]
        for column in columns:
            column.pop("default", None)
        values = {"columns": columns, "item_id": self.item_id, "pack": self.pack.to_json()}
        if self.entities:
            values["entities"] = [entity.slot for entity in self.entities]
        return fingerprint(values)

"""The rules of a `FeatureSpec`, so that every other part can rely on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlearn.features.combination import Calibration, CountIn, Cross, Derived, Product
from streamlearn.features.names import check_name, check_unique, require

if TYPE_CHECKING:
    from streamlearn.features.spec import Dense, FeatureSpec, Keyed, Slot

__all__ = ["check_spec"]

DIM_MAX = 1024
LENGTH_MAX = 4096
WIDTH_MAX = 4096
SLOTS_MAX = 1024
FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def check_spec(spec: FeatureSpec) -> None:
    """Refuse a spec that contradicts itself; raises SpecError with the first contradiction."""
    count = len(spec.keyed)
    require(1 <= count <= SLOTS_MAX, f"a spec has {count} slots", f"declare 1 to {SLOTS_MAX} slots")
    names = [*(slot.name for slot in spec.slots), *(column.name for column in spec.dense)]
    names += [one.name for one in spec.derived]
    names += [f"segment_{segment.name}" for segment in spec.segments_of("item")]  # an event's item has all of these
    check_unique("feature", names)
    firsts = [*(slot.first_name for slot in spec.slots), *(column.first_name for column in spec.dense)]
    firsts += [one.name for one in spec.derived]
    check_unique("feature", firsts)  # two features cannot both take over what was learned under one name
    check_unique("segment", (segment.name for segment in spec.segments))
    for slot in spec.slots:
        _check_slot(slot)
        _check_keys_of(slot, spec)
    for derived in spec.derived:
        _check_derived(derived, spec)
    for column in spec.dense:
        _check_dense(column)
    for segment in spec.segments:
        check_name("segment", segment.name)
        _require_one_of(f"segment {segment.name!r}", "side", segment.side, ("user", "item"))
    _check_tables(spec.keyed)
    _check_sequences(spec.slots)
    _check_id("item", spec.slot(spec.item_id))
    if spec.user_id:
        _check_id("user", spec.slot(spec.user_id))


def _require_one_of(owner: str, field: str, value: object, allowed: tuple[str, ...]) -> None:
    require(value in allowed, f"{owner}: {field} is {value!r}", f"{field} must be one of {', '.join(allowed)}")


def _require_within(owner: str, field: str, value: float, bounds: tuple[int, int]) -> None:
    valid = isinstance(value, int) and not isinstance(value, bool) and bounds[0] <= value <= bounds[1]
    help = f"{field} must be a whole number from {bounds[0]} to {bounds[1]}"
    require(valid, f"{owner}: {field} is {value!r}", help)


def _is_float32(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= FLOAT32_MAX


def _check_slot(slot: Slot) -> None:
    check_name("slot", slot.name)
    check_name("table", slot.table)
    _check_was("slot", slot)
    owner = f"slot {slot.name!r}"
    _require_one_of(owner, "side", slot.side, ("user", "item"))
    _require_one_of(owner, "pooling", slot.pooling, ("sum", "mean", "sqrtn", "weighted", "sequence"))
    _require_one_of(owner, "value", slot.value, ("int", "str"))
    _check_rows(owner, slot)
    require(
        slot.multi or slot.pooling not in ("weighted", "sequence"),
        f"{owner}: pooling {slot.pooling!r} needs several values, but multi is False",
        "set multi=True, or leave pooling out",
    )
    if slot.pooling == "sequence":
        _require_within(owner, "length", slot.length, (1, LENGTH_MAX))
    else:
        message = f"{owner}: length is {slot.length} and pooling is {slot.pooling!r}"
        require(not slot.length, message, "set length only with pooling='sequence'")
    if slot.default is not None:
        _check_default(owner, slot)


def _check_rows(owner: str, slot: Keyed) -> None:
    _require_within(owner, "dim", slot.dim, (1, DIM_MAX))
    require(
        _is_float32(slot.initial_range) and slot.initial_range >= 0,
        f"{owner}: initial_range is {slot.initial_range!r}",
        "initial_range must be a number of at least 0 that is finite as float32",
    )


def _check_derived(derived: Derived, spec: FeatureSpec) -> None:
    kind = type(derived).__name__.lower()
    check_name(kind, derived.name)
    owner = f"{kind} {derived.name!r}"
    if isinstance(derived, Product):
        widths = {column.name: column.width for column in spec.dense}
        for name in derived.of:
            help = f"the dense columns are {', '.join(widths) or 'none'}"
            require(name in widths, f"{owner}: no dense column is named {name!r}", help)
        first, second = (widths[name] for name in derived.of)
        message = f"{owner}: {derived.first!r} has width {first}, but {derived.second!r} {second}"
        require(first == second, message, "multiply columns of one width")
        return
    first_slot, second_slot = map(spec.slot, derived.of)
    if isinstance(derived, CountIn):
        is_fit = first_slot.side == "item" and not first_slot.multi and second_slot.side == "user" and second_slot.multi
        help = "count a slot of the item side with one value within a slot of the user side with several"
        require(is_fit, f"{owner}: {derived.slot!r} cannot be counted within {derived.within!r}", help)
        has_keys = (first_slot.salt_name, first_slot.value) == (second_slot.salt_name, second_slot.value)
        message = f"{owner}: {derived.within!r} does not share the keys of {derived.slot!r}"
        require(has_keys, message, f"set keys_of={first_slot.salt_name!r} for it")
        return
    check_name("table", derived.table)
    _check_rows(owner, derived)
    if isinstance(derived, Calibration):
        _require_one_of(owner, "method", derived.method, ("platt", "isotonic"))
    if isinstance(derived, Cross):
        require(derived.first != derived.second, f"{owner}: both its slots are {derived.first!r}", "name two slots")
    for slot in (first_slot, second_slot):
        message = f"{owner}: slot {slot.name!r} has several values"
        require(not slot.multi, message, "name slots with one value each")


def _check_default(owner: str, slot: Slot) -> None:
    message = f"{owner}: a multi-valued slot has a default of {slot.default!r}"
    require(not slot.multi, message, "leave the default out: an event that lacks the slot has no values")
    kind = int if slot.value == "int" else str
    valid = isinstance(slot.default, kind) and not isinstance(slot.default, bool)
    message = f"{owner}: default {slot.default!r} is not of type {kind.__name__}"
    require(valid, message, f"value={slot.value!r} needs a default of type {kind.__name__}")
    fits = not isinstance(slot.default, int) or -(2**63) <= slot.default < 2**63
    require(fits, f"{owner}: default {slot.default} does not fit 64 bits", "integer values are signed 64-bit")


def _check_keys_of(slot: Slot, spec: FeatureSpec) -> None:
    if slot.keys_of is None:
        return
    others = [other for other in spec.slots if other.first_name == slot.keys_of]
    other = others[0] if others else spec.slot(slot.keys_of)
    renamed = f"slot {slot.name!r} shares the keys of {other.name!r}, which are those of {other.first_name!r}"
    require(bool(others), renamed, f"set keys_of={other.first_name!r}")
    require(
        (other.table, other.value, other.keys_of) == (slot.table, slot.value, None),
        f"slot {slot.name!r} cannot share the keys of {other.name!r}: its table or value differs",
        "name a slot with the same table and value that does not set keys_of itself",
    )


def _check_was(kind: str, column: Slot | Dense) -> None:
    if column.was is not None:
        check_name(f"former {kind}", column.was)
        message = f"{kind} {column.name!r} has its own name as its former one"
        require(column.was != column.name, message, "leave `was` out: it is for a column that was renamed")


def _check_dense(column: Dense) -> None:
    check_name("dense column", column.name)
    _check_was("dense column", column)
    owner = f"dense column {column.name!r}"
    _require_one_of(owner, "side", column.side, ("user", "item"))
    _require_within(owner, "width", column.width, (1, WIDTH_MAX))
    valid = column.default is None or _is_float32(column.default)
    require(valid, f"{owner}: default is {column.default!r}", "use a number that is finite as float32")


def _check_tables(slots: tuple[Keyed, ...]) -> None:
    first: dict[str, Keyed] = {}
    for slot in slots:
        other = first.setdefault(slot.table, slot)
        message = (
            f"table {slot.table!r} is declared twice: "
            f"slot {other.name!r} has dim {other.dim}, initial_range {other.initial_range}; "
            f"slot {slot.name!r} has dim {slot.dim}, initial_range {slot.initial_range}"
        )
        same = (other.dim, other.initial_range) == (slot.dim, slot.initial_range)
        require(same, message, "slots of one table must agree on both; or use another table")


def _check_sequences(slots: tuple[Slot, ...]) -> None:
    sequences = [slot for slot in slots if slot.pooling == "sequence"]
    for slot in sequences:
        message = f"slot {slot.name!r}: a sequence on the {slot.side} side"
        help = "sequences are allowed only on the user side; pool an item's values instead"
        require(slot.side == "user", message, help)
        first = sequences[0]
        message = f"sequences of different lengths: {first.name!r} {first.length}, {slot.name!r} {slot.length}"
        help = "sequence slots are columns of one history: give them the same length"
        require(slot.length == first.length, message, help)


def _check_id(side: str, slot: Slot) -> None:
    message = f"{side}_id names slot {slot.name!r}, which is {slot.side}-side and multi={slot.multi}"
    valid = slot.side == side and not slot.multi
    require(valid, message, f"{side}_id must name a single-valued slot of the {side} side")

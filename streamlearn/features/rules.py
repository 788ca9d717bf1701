"""The rules a `FeatureSpec` obeys, so that no later part meets a spec it cannot carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlearn.errors import SpecError
from streamlearn.features.names import check_name, check_unique

if TYPE_CHECKING:
    from streamlearn.features.spec import Dense, FeatureSpec, Slot

__all__ = ["check_spec"]

DIM_MAX = 1024
LENGTH_MAX = 4096
WIDTH_MAX = 4096
SLOTS_MAX = 1024
FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def check_spec(spec: FeatureSpec) -> None:
    """Refuse a spec that contradicts itself.

    Raises:
        SpecError: With the first contradiction found.
    """
    if not 1 <= len(spec.slots) <= SLOTS_MAX:
        message = f"a spec has {len(spec.slots)} slots"
        raise SpecError(message, help=f"declare 1 to {SLOTS_MAX} slots")
    check_unique("feature", _names_beside_each_other(spec))
    check_unique("segment", (segment.name for segment in spec.segments))
    for slot in spec.slots:
        _check_slot(slot)
        _check_keys_of(slot, spec)
    for column in spec.dense:
        _check_dense(column)
    for segment in spec.segments:
        check_name("segment", segment.name)
        _require_one_of(f"segment {segment.name!r}", "side", segment.side, ("user", "item"))
    _check_tables(spec.slots)
    _check_sequences(spec.slots)
    _check_item_id(spec.slot(spec.item_id))


def _names_beside_each_other(spec: FeatureSpec) -> list[str]:
    # An item's segments stand in events beside its features, prefixed.
    segments = [f"segment_{one.name}" for one in spec.segments_of("item")]
    return [*(slot.name for slot in spec.slots), *(column.name for column in spec.dense), *segments]


def _require_one_of(what: str, field: str, found: object, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        message = f"{what}: {field} is {found!r}"
        raise SpecError(message, help=f"{field} must be one of {', '.join(allowed)}")


def _require_within(what: str, field: str, found: float, bounds: tuple[int, int]) -> None:
    if not isinstance(found, int) or isinstance(found, bool) or not bounds[0] <= found <= bounds[1]:
        message = f"{what}: {field} is {found!r}"
        raise SpecError(message, help=f"{field} must be a whole number from {bounds[0]} to {bounds[1]}")


def _is_float32(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= FLOAT32_MAX


def _check_slot(slot: Slot) -> None:
    check_name("slot", slot.name)
    check_name("table", slot.table)
    what = f"slot {slot.name!r}"
    _require_one_of(what, "side", slot.side, ("user", "item"))
    _require_one_of(what, "pooling", slot.pooling, ("sum", "mean", "sqrtn", "weighted", "sequence"))
    _require_one_of(what, "value", slot.value, ("int", "str"))
    _require_within(what, "dim", slot.dim, (1, DIM_MAX))
    if not (_is_float32(slot.initial_range) and slot.initial_range >= 0):
        message = f"{what}: initial_range is {slot.initial_range!r}"
        raise SpecError(message, help="initial_range must be a number of at least 0 that is finite as float32")
    if slot.pooling in ("weighted", "sequence") and not slot.multi:
        message = f"{what}: pooling {slot.pooling!r} needs several values, but multi is False"
        raise SpecError(message, help="set multi=True, or leave pooling out")
    if slot.pooling == "sequence":
        _require_within(what, "length", slot.length, (1, LENGTH_MAX))
    elif slot.length:
        message = f"{what}: length is {slot.length} and pooling is {slot.pooling!r}"
        raise SpecError(message, help="set length only with pooling='sequence'")
    _check_default(what, slot)


def _check_default(what: str, slot: Slot) -> None:
    if slot.default is None:
        return
    if slot.multi:
        message = f"{what}: a multi-valued slot has a default of {slot.default!r}"
        raise SpecError(message, help="leave the default out: an event that lacks the slot has no values")
    kind = int if slot.value == "int" else str
    if not isinstance(slot.default, kind) or isinstance(slot.default, bool):
        message = f"{what}: default {slot.default!r} is not of type {kind.__name__}"
        raise SpecError(message, help=f"value={slot.value!r} needs a default of type {kind.__name__}")
    if isinstance(slot.default, int) and not -(2**63) <= slot.default < 2**63:
        message = f"{what}: default {slot.default} does not fit 64 bits"
        raise SpecError(message, help="integer values are signed 64-bit")


def _check_keys_of(slot: Slot, spec: FeatureSpec) -> None:
    if slot.keys_of is None:
        return
    other = spec.slot(slot.keys_of)
    if (other.table, other.value, other.keys_of) != (slot.table, slot.value, None):
        message = f"slot {slot.name!r} cannot share the keys of {other.name!r}: its table or value differs"
        raise SpecError(message, help="name a slot with the same table and value that does not set keys_of itself")


def _check_dense(column: Dense) -> None:
    check_name("dense column", column.name)
    what = f"dense column {column.name!r}"
    _require_one_of(what, "side", column.side, ("user", "item"))
    _require_within(what, "width", column.width, (1, WIDTH_MAX))
    if column.default is not None and not _is_float32(column.default):
        message = f"{what}: default is {column.default!r}"
        raise SpecError(message, help="use a number that is finite as float32")


def _check_tables(slots: tuple[Slot, ...]) -> None:
    first: dict[str, Slot] = {}
    for slot in slots:
        other = first.setdefault(slot.table, slot)
        if (other.dim, other.initial_range) != (slot.dim, slot.initial_range):
            message = (
                f"table {slot.table!r} is declared twice: "
                f"slot {other.name!r} has dim {other.dim}, initial_range {other.initial_range}; "
                f"slot {slot.name!r} has dim {slot.dim}, initial_range {slot.initial_range}"
            )
            raise SpecError(message, help="slots of one table must agree on both; or use another table")


def _check_sequences(slots: tuple[Slot, ...]) -> None:
    sequences = [slot for slot in slots if slot.pooling == "sequence"]
    for slot in sequences:
        if slot.side != "user":
            message = f"slot {slot.name!r}: a sequence on the {slot.side} side"
            raise SpecError(message, help="sequences are allowed only on the user side; pool an item's values instead")
        if slot.length != sequences[0].length:
            first = sequences[0]
            message = f"sequences of different lengths: {first.name!r} {first.length}, {slot.name!r} {slot.length}"
            raise SpecError(message, help="sequence slots are columns of one history: give them the same length")


def _check_item_id(slot: Slot) -> None:
    if slot.side != "item" or slot.multi:
        message = f"item_id names slot {slot.name!r}, which is {slot.side}-side and multi={slot.multi}"
        raise SpecError(message, help="item_id must name a single-valued slot of the item side")

"""Entity: a user or an item, as the columns that are computed from its interactions; and the rules of these columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamlearn.errors import SpecError, UsageError
from streamlearn.features.behaviour import Behaviour, Count, Last, Rate, Since, Sum
from streamlearn.features.names import check_name, fingerprint, require
from streamlearn.times import parse_duration_ms

if TYPE_CHECKING:
    from streamlearn.features.spec import Dense, FeatureSpec, Side, Slot

__all__ = ["OUTCOMES", "Entity", "entities_of", "states_id"]

OUTCOMES = ("known", "unknown", "unavailable")
"""The states of a user: it has interactions; it has none; the store of states did not answer."""


@dataclass(frozen=True)
class Entity:
    """The computed columns of one side.

    Attributes:
        side: "user" or "item".
        slot: The slot whose keys tell entities apart.
        columns: The computed columns, in the order of the definition's features.
        kinds: The kinds of interactions that count. A kind's index is its number in the definition.
        sources: The slots whose values interactions bring, by their first names, numbered likewise.
        definition: What the native code computes, as JSON.
        id: Changes with the definition: a state of another one cannot be read.
        longest_window_ms: The longest window of its columns; 0 without any.
    """

    side: Side
    slot: str
    columns: tuple[Slot | Dense, ...]
    kinds: tuple[str, ...]
    sources: tuple[str, ...]
    definition: str
    id: int
    longest_window_ms: int = 0


def entities_of(spec: FeatureSpec) -> tuple[Entity, ...]:
    """Return the entities that have computed columns, the user first; raises SpecError for a wrong declaration."""
    return (*_entity_of(spec, "user"), *_entity_of(spec, "item"))


def states_id(app: str, entities: tuple[Entity, ...]) -> int:
    """Return a number that names the states of an application: those of another one, or of other columns, differ."""
    # 53 bits, since JSON numbers are exact no further in every language.
    return int(fingerprint([app, [entity.id for entity in entities]]), 16) >> 11


def _entity_of(spec: FeatureSpec, side: Side) -> list[Entity]:
    declared: tuple[Slot | Dense, ...] = (*spec.slots_of(side), *spec.dense_of(side))
    columns = tuple(column for column in declared if column.computed is not None)
    if not columns:
        return []
    for column in columns:
        _check_column(spec, column)
    kinds = tuple(dict.fromkeys(kind for column in columns for kind in _kinds(column)))
    lasts = [column.computed for column in columns if isinstance(column.computed, Last)]
    sources = tuple(dict.fromkeys(spec.slot(last.slot).first_name for last in lasts))
    slot = spec.user_slot if side == "user" else spec.item_id
    message = "columns of the user side are computed, and no slot is known to name a user"
    require(bool(slot), message, "set user_id of the FeatureSpec to the slot whose values are users")
    features = [_feature(spec, column, kinds, sources) for column in columns]
    whole: dict[str, Any] = {"kinds": len(kinds), "columns": len(sources), "features": features}
    # Names count too: with others, the same numbers mean something else.
    named = [whole, spec.slot(slot).first_name, kinds, sources]
    whole["id"] = number = int(fingerprint(named), 16)
    definition = json.dumps(whole)
    from streamlearn.native import native  # only for those who need it

    try:
        native.Features(definition)
    except ValueError as error:
        message = f"computed columns of the {side} side: {error}"
        raise SpecError(message, help='see "Computed features" in the documentation for the limits') from None
    longest_ms = max((window for feature in features for window in feature.get("windows_ms", ())), default=0)
    return [Entity(side, slot, columns, kinds, sources, definition, number, longest_ms)]


def _feature(
    spec: FeatureSpec, column: Slot | Dense, kinds: tuple[str, ...], sources: tuple[str, ...]
) -> dict[str, Any]:
    """Return a column's feature, as the native code reads it."""
    computed, of = column.computed, [kinds.index(kind) for kind in _kinds(column)]
    feature: dict[str, Any] = {"what": type(computed).__name__.lower(), "of": of}
    if isinstance(computed, Last):
        source = sources.index(spec.slot(computed.slot).first_name)
        return feature | {"column": source, "length": _length(column)}
    if isinstance(computed, Rate):
        prior = [float(number) for number in computed.prior]
        return feature | {"of": of[0], "over": of[1], "windows_ms": _windows_ms(column), "prior": prior}
    return feature if isinstance(computed, Since) else feature | {"windows_ms": _windows_ms(column)}


def _computed(column: Slot | Dense) -> Behaviour:
    assert column.computed is not None
    return column.computed


def _kinds(column: Slot | Dense) -> tuple[str, ...]:
    computed = _computed(column)
    return (computed.of, computed.over) if isinstance(computed, Rate) else _texts(computed.of)


def _texts(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _windows_ms(column: Slot | Dense) -> list[int]:
    computed = _computed(column)
    assert isinstance(computed, Count | Sum | Rate)
    try:
        return [parse_duration_ms(window) for window in _texts(computed.windows)]
    except UsageError as error:
        message = f"column {column.name!r}: windows: {error.message}"
        raise SpecError(message, help=error.help) from None


def _length(column: Slot | Dense) -> int:
    computed = _computed(column)
    assert isinstance(computed, Last)
    return computed.length or getattr(column, "length", 0)


def _check_column(spec: FeatureSpec, column: Slot | Dense) -> None:
    """Refuse a column whose form is not that of its values."""
    computed, owner = column.computed, f"column {column.name!r}"
    is_slot = hasattr(column, "multi")
    name = type(computed).__name__
    known = (Last, Since) if is_slot else (Count, Sum, Rate, Since)
    names = ", ".join(one.__name__ for one in known)
    message = f"{owner}: computed is {computed!r:.80}"
    require(isinstance(computed, known), message, f"a {'slot' if is_slot else 'dense column'} takes one of {names}")
    kinds = _kinds(column)
    require(bool(kinds), f"{owner}: {name} is of no kind", "name an action or 'impression'")
    for kind in kinds:
        check_name("kind of interactions", kind)
    require(len(set(kinds)) == len(kinds), f"{owner}: a kind is named twice", "name each kind once")
    if isinstance(computed, Last):
        _check_last(spec, column, computed)  # type: ignore[arg-type]
        return
    if is_slot:
        is_fit = not column.multi and column.value == "int"  # type: ignore[union-attr]
        require(is_fit, f"{owner}: {name} is one whole number", "leave multi and value out")
    help = "events without it, and entities without interactions, need a value: set default"
    require(column.default is not None, f"{owner} is computed and has no default", help)
    if is_slot:
        return
    width = 1 if isinstance(computed, Since) else len(_windows_ms(column))
    width *= len(kinds) if isinstance(computed, Count | Sum) else 1
    message = f"{owner}: {name} makes {width} numbers, and width is {column.width}"  # type: ignore[union-attr]
    require(width == column.width, message, f"set width={width}")  # type: ignore[union-attr]
    if isinstance(computed, Rate):
        is_prior = isinstance(computed.prior, tuple | list) and len(computed.prior) == 2
        is_prior = is_prior and all(isinstance(number, int | float) for number in computed.prior)
        message = f"{owner}: prior is {computed.prior!r:.80}"
        require(is_prior, message, "give a share and how many interactions it weighs, such as (0.1, 20)")


def _check_last(spec: FeatureSpec, column: Slot, computed: Last) -> None:
    owner, source = f"column {column.name!r}", spec.slot(computed.slot)
    is_fit = column.multi and column.pooling != "weighted"
    require(is_fit, f"{owner}: Last makes several values", "set multi=True, and a pooling without weights")
    is_fit = not source.multi and source.computed is None
    message = f"{owner}: {source.name!r} has several values, or is computed itself"
    require(is_fit, message, "name a slot with one value that callers send")
    message = f"{owner}: {source.name!r} or the column itself has texts as values"
    require((source.value, column.value) == ("int", "int"), message, "Last takes slots whose values are whole numbers")
    message = f"{owner} does not share the keys of {source.name!r}"
    require(source.salt_name == column.salt_name, message, f"set keys_of={source.salt_name!r}")
    require(_length(column) > 0, f"{owner}: Last has no length", "set length of Last")
    for other in spec.slots if column.pooling == "sequence" else ():
        is_fit = other.pooling != "sequence" or (
            isinstance(other.computed, Last)
            and (set(_kinds(other)), _length(other)) == (set(_kinds(column)), _length(column))
        )
        message = f"{owner} and {other.name!r} are columns of one history"
        require(is_fit, message, "compute all sequence slots, from the same kinds and of one length, or none")

"""Retrieval: the towers that find candidates in the library of all items, as declared. It knows no model and no item.

A user tower and an item tower learn from the samples of the application, beside its model. Their rows are a table of
its own, and neither table nor weights of the ranking model change with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamlearn.features.labels import Label
from streamlearn.features.names import fingerprint, require, tuple_of
from streamlearn.features.spec import Dense, FeatureSpec, Side, Slot

__all__ = ["PREFIX", "TOWERS", "Library", "Retrieval", "check_retrieval", "of_ranking", "of_retrieval"]

TOWERS = "towers"
"""The table of the rows that the towers read."""
PREFIX = "retrieval/"
"""The begin of the names of the towers' weights and state in versions."""
DIM_MAX = 512
_DIM_STEP = 4
_EXPIRE_S_MAX = 10 * 366 * 86_400
_INITIAL_RANGE = 0.05
_INPUTS = ("k", "exclude", "allow", "candidates", "rank_by")
_IDS = "id"


@dataclass(frozen=True)
class Library:
    """The items among which candidates are found.

    Attributes:
        expire_s: An item leaves the library this long after it was last shown or written, in event time; None keeps it.
    """

    expire_s: int | None = None


@dataclass(frozen=True)
class Retrieval:
    """What finds the candidates of a request: two towers, and the library of all items.

    Attributes:
        label: The label whose positives are retrieved, such as "click".
        user: The user-side slots and dense columns that the user tower reads.
        item: The item-side ones that the item tower reads, the item id among them.
        dim: The length of the rows of both towers, and of the vectors that they make.
        model: The name of ready-made towers, or "module:Name" of a module beside app.py.
        library: The items.
    """

    label: str
    user: tuple[str, ...]
    item: tuple[str, ...]
    dim: int = 64
    model: str = "two_tower"
    library: Library = field(default_factory=Library)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user", tuple_of("retrieval: user", str, self.user))
        object.__setattr__(self, "item", tuple_of("retrieval: item", str, self.item))

    def features(self, spec: FeatureSpec) -> FeatureSpec:
        """Return the columns of both towers, in the order of the spec.

        Their keys are those of the spec, so that a sample serves both models. Their rows are in the table `towers`.
        """
        names = {*self.user, *self.item}
        rows: dict[str, Any] = {"table": TOWERS, "dim": self.dim, "initial_range": _INITIAL_RANGE, "computed": None}
        slots = tuple(replace(slot, **rows) for slot in spec.slots if slot.name in names)
        dense = tuple(replace(column, computed=None) for column in spec.dense if column.name in names)
        return FeatureSpec(slots=slots, item_id=spec.item_id, dense=dense)

    def fingerprint(self, towers: FeatureSpec, label: Label) -> str:
        """Return what changes when towers cannot continue from older versions."""
        return fingerprint([towers.fingerprint, label.first_name, self.model])


def check_retrieval(retrieval: Retrieval, spec: FeatureSpec, labels: tuple[Label, ...]) -> None:
    """Refuse a retrieval that does not fit the features and labels of its application; raises SpecError."""
    _check_names(spec, labels)
    logits = [label.name for label in labels if label.number is None]
    message = f"retrieval is of {retrieval.label!r}, which is not a label that is positive or negative"
    require(retrieval.label in logits, message, f"such labels are {', '.join(logits) or 'not declared'}")
    for side in ("user", "item"):
        _check_columns(retrieval, spec, side)
    message = f"retrieval: item lacks {spec.item_id!r}, the slot that names an item"
    require(spec.item_id in retrieval.item, message, f"add {spec.item_id!r}: its keys tell items apart")
    named = {slot.first_name for slot in spec.slots if slot.name in (*retrieval.user, *retrieval.item)}
    for slot in spec.slots:
        if slot.name in retrieval.user or slot.name in retrieval.item:
            message = f"retrieval: slot {slot.name!r} shares the keys of {slot.keys_of!r}, which is not named"
            require(slot.keys_of is None or slot.keys_of in named, message, f"name {slot.keys_of!r}, too, on its side")
    dim = retrieval.dim
    is_whole = isinstance(dim, int) and not isinstance(dim, bool)
    is_valid = is_whole and _DIM_STEP <= dim <= DIM_MAX and dim % _DIM_STEP == 0
    help = f"dim must be a multiple of {_DIM_STEP} from {_DIM_STEP} to {DIM_MAX}, such as 64"
    require(is_valid, f"retrieval: dim is {dim!r}", help)
    for column in spec.keyed:
        message = f"{column.name!r} has table {column.table!r}, which is that of retrieval"
        require(column.table != TOWERS, message, "name the table otherwise")
    is_library = isinstance(retrieval.library, Library)
    require(is_library, f"retrieval: library is {retrieval.library!r}", "write library=Library(expire_s=...)")
    expire_s = retrieval.library.expire_s
    is_span = isinstance(expire_s, int) and not isinstance(expire_s, bool) and 1 <= expire_s <= _EXPIRE_S_MAX
    help = f"expire_s must be a whole number from 1 to {_EXPIRE_S_MAX}, or None"
    require(expire_s is None or is_span, f"library: expire_s is {expire_s!r}", help)


def _check_names(spec: FeatureSpec, labels: tuple[Label, ...]) -> None:
    """Refuse what is named like another input or output of requests for items."""
    columns: list[Slot | Dense] = [*spec.slots_of("user"), *spec.dense_of("user")]
    for column in columns:
        for name in (column.name, column.first_name):
            message = f"retrieval: a user-side column is named {name!r}, as is an input of requests for items"
            require(name not in _INPUTS, message, f"name it otherwise than {', '.join(_INPUTS)}")
    message = f"retrieval: a label is named {_IDS!r}, as is the output with the ids of items"
    require(_IDS not in [label.name for label in labels], message, "name it otherwise")


def _check_columns(retrieval: Retrieval, spec: FeatureSpec, side: Side) -> None:
    columns: list[Slot | Dense] = [*spec.slots_of(side), *spec.dense_of(side)]
    known, named = [column.name for column in columns], retrieval.user if side == "user" else retrieval.item
    require(bool(named), f"retrieval: {side} names no column", f"name some of {', '.join(known)}")
    for name in named:
        message = f"retrieval: {side} names {name!r}, which is not a slot or dense column of the {side} side"
        require(name in known, message, f"those are {', '.join(known)}")
    require(len({*named}) == len(named), f"retrieval: {side} names a column twice", "name each column once")
    for column in columns:
        message = f"retrieval: item names {column.name!r}, which is computed: the library of items has no such columns"
        is_there = side == "user" or column.computed is None or column.name not in named
        require(is_there, message, "leave it out: nodes compute it for a request, and towers read items without one")


def of_ranking(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a version that belong to its ranking model."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}


def of_retrieval(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a version that belong to its towers, without the prefix of their names.

    Examples:
        >>> of_ranking({"kernel": 1, "retrieval/scale": 2}), of_retrieval({"kernel": 1, "retrieval/scale": 2})
        ({'kernel': 1}, {'scale': 2})
    """
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}

"""Model schema: a model's features, labels and tables as JSON for the native front, which decodes requests by it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from streamlearn.features import Dense, FeatureSpec, Label, Slot
from streamlearn.features.keys import keys_of
from streamlearn.native import native

__all__ = ["ItemInputs", "LibraryInputs", "described"]


class ItemInputs(NamedTuple):
    """What requests for items take beside their user, and the length of a vector."""

    salt: int  # of the keys of items
    is_text: bool  # whether ids of items are texts
    k_max: int  # most items of an answer
    dim: int


class LibraryInputs(NamedTuple):
    """How requests leave out what the library of items has, and how items are ranked."""

    k_max: int  # most items that are retrieved
    label: str  # by which items are ranked if a request names none


def described(
    features: FeatureSpec,
    labels: Sequence[Label],
    tables: Sequence[str],
    limits: dict[str, int],
    class_segment: str = "",
    *,
    items: ItemInputs | None = None,
    library: LibraryInputs | None = None,
) -> str:
    """Return the schema as JSON. Its inputs are, for each side, the slots as declared, then the dense columns.

    Labels are in the order of the columns of scores, tables in the order in which rows are read. The limits are
    `candidates_max`, `values_max` and `message_bytes_max`. The values of `class_segment` are classes of requests. With
    `items`, features are those of towers: requests have a user alone, and scores are its vector. With `library`,
    requests may leave out what a library has.
    """
    schema: dict[str, Any] = {
        "inputs": {"user": _inputs(features, "user"), "item": _inputs(features, "item")},
        "labels": [{"name": label.name, "is_number": label.number is not None} for label in labels],
        "segments": [segment.name for segment in features.segments_of("user")],
        "class_segment": class_segment,
        "tables": list(tables),
        "pack": features.pack.to_json(),
        "limits": limits,
    }
    if items is not None:
        schema["items"] = {"salt": items.salt, "is_text": items.is_text, "k_max": items.k_max}
        schema["labels"] = [{"name": str(at), "is_number": True} for at in range(items.dim)]
        # The graphs of towers take inputs of items, too, which are zeros here: they have no columns.
        schema["inputs"] |= {"item": []}
        schema["pack"]["item"] |= {"flat": [], "sequence": []}
    if library is not None:
        columns = [column.name for side in features.of_library for column in side]
        schema["library"] = {"id": features.item_id, "columns": columns, **library._asdict()}
    return msgspec.json.encode(schema).decode()


def _inputs(features: FeatureSpec, side: Literal["user", "item"]) -> list[dict[str, Any]]:
    return [*map(_slot, features.slots_of(side)), *map(_dense, features.dense_of(side))]


def _slot(slot: Slot) -> dict[str, Any]:
    counts = {"weighted": "weighted", "sequence": "newest"}
    return {
        "name": slot.name,
        "was": slot.was,
        "salt": native.slot_salt(slot.salt_name),
        "is_text": slot.value == "str",
        "count": counts.get(slot.pooling, "many" if slot.multi else "one"),
        "newest": slot.length,
        "default": None if slot.default is None else int(keys_of(slot, [slot.default])[0]),  # type: ignore[arg-type]
        "is_computed": slot.computed is not None,
    }


def _dense(dense: Dense) -> dict[str, Any]:
    bits = None if dense.default is None else struct.unpack("<I", struct.pack("<f", dense.default))[0]
    is_computed = dense.computed is not None
    return {
        "name": dense.name,
        "was": dense.was,
        "width": dense.width,
        "default_bits": bits,
        "is_computed": is_computed,
    }

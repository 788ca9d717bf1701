"""Names that events, schemas, metrics and files can all carry; and the fingerprint of a declaration."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from streamlearn.errors import SpecError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["check_name", "check_unique", "declared", "fingerprint", "model_fingerprint", "tuple_of"]

Declared = TypeVar("Declared")
NAME_CHARS_MAX = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# These would collide with the fields the event and sample schemas add beside the declared ones.
_RESERVED_SUFFIXES = ("_offsets", "_weights")
_RESERVED_PREFIX = "served_"


def check_name(what: str, name: str) -> None:
    """Refuse a name that some format could not carry.

    Args:
        what: The kind of thing named, for the message ("slot", "label").
        name: The name.

    Raises:
        SpecError: The name is not lower-case letters, digits and underscores, or is reserved.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        message = f"invalid {what} name {name!r}"
        hint = f"use lower-case letters, digits and underscores, beginning with a letter, at most {NAME_CHARS_MAX}"
        raise SpecError(message, help=hint)
    if name.startswith(_RESERVED_PREFIX) or name.endswith(_RESERVED_SUFFIXES):
        message = f"{what} name {name!r} is reserved"
        hint = f"names that begin with {_RESERVED_PREFIX!r} or end with {' or '.join(_RESERVED_SUFFIXES)} are reserved"
        raise SpecError(message, help=hint)


def check_unique(what: str, names: Iterable[str]) -> None:
    """Refuse the first name that stands twice.

    Raises:
        SpecError: Two of the names are equal.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            message = f"two {what}s are named {name!r}"
            raise SpecError(message, help=f"give each {what} its own name")
        seen.add(name)


def tuple_of(field: str, kind: type[Declared], found: object) -> tuple[Declared, ...]:
    """What was given where several declarations belong.

    Raises:
        SpecError: It is one of them alone, or holds something else.
    """
    name = kind.__name__
    if isinstance(found, kind | str) or not isinstance(found, Iterable):
        message = f"{field} is {found!r:.80}"
        raise SpecError(
            message, help=f"{field} must be a tuple: write ({name}(...),) with its comma even for one element"
        )
    items = tuple(found)
    for item in items:
        if not isinstance(item, kind):
            message = f"{field} holds {item!r:.80}; expected {name}"
            raise SpecError(message, help=f"build each with {name}(...)")
    return items


def declared(thing: DataclassInstance) -> dict[str, Any]:
    """What a declaration says beyond its defaults, for fingerprints.

    A field added to a declaration later enters no fingerprint until somebody uses it, so an upgrade refuses no
    model trained before. For the same reason the default of a field never changes.

    Args:
        thing: A dataclass of plain values.
    """
    said = {}
    for field in fields(thing):
        value = getattr(thing, field.name)
        if value != field.default:
            # Equal declarations are equal here too, whether a float was written 1 or 1.0.
            said[field.name] = float(value) if "float" in str(field.type) and value is not None else value
    return said


def fingerprint(values: Any) -> str:
    """Sixteen hex digits that stay the same while what is declared stays the same.

    Args:
        values: Plain JSON values; the order of lists counts, the order of mappings does not.
    """
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def model_fingerprint(features: str, labels: Sequence[str]) -> str:
    """The fingerprint of a model, from that of its features and the names of its labels in order."""
    return fingerprint([features, list(labels)])

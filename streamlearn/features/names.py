"""Names that events, schemas, metrics and files can all carry, and the fingerprint of a declaration."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from streamlearn.errors import SpecError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["check_name", "check_unique", "declared", "fingerprint", "model_fingerprint", "require", "tuple_of"]

Declared = TypeVar("Declared")
NAME_CHARS_MAX = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# These would collide with fields that the event and sample schemas add to the declared ones.
_RESERVED_SUFFIXES = ("_offsets", "_weights")
_RESERVED_PREFIX = "served_"


def require(rule: bool, message: str, help: str) -> None:
    """Raise SpecError unless a rule of declarations holds."""
    if not rule:
        raise SpecError(message, help=help)


def check_name(kind: str, name: str) -> None:
    """Refuse a name that some format could not carry; the error names the kind ("slot", "label")."""
    valid = isinstance(name, str) and _NAME.fullmatch(name) is not None and len(name) <= NAME_CHARS_MAX
    help = f"use lower-case letters, digits and underscores, beginning with a letter, at most {NAME_CHARS_MAX}"
    require(valid, f"invalid {kind} name {name!r}", help)
    reserved = name.startswith(_RESERVED_PREFIX) or name.endswith(_RESERVED_SUFFIXES)
    help = f"names that begin with {_RESERVED_PREFIX!r} or end with {' or '.join(_RESERVED_SUFFIXES)} are reserved"
    require(not reserved, f"{kind} name {name!r} is reserved", help)


def check_unique(kind: str, names: Iterable[str]) -> None:
    """Refuse the first name that occurs twice; raises SpecError."""
    seen: set[str] = set()
    for name in names:
        require(name not in seen, f"two {kind}s are named {name!r}", f"give each {kind} its own name")
        seen.add(name)


def tuple_of(field: str, kind: type[Declared] | tuple[type, ...], value: object) -> tuple[Declared, ...]:
    """Return the declarations in a field as a tuple; raises SpecError for a single one, or for anything else."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    name = " or ".join(one.__name__ for one in kinds)
    if isinstance(value, (*kinds, str)) or not isinstance(value, Iterable):
        message = f"{field} is {value!r:.80}"
        raise SpecError(
            message,
            help=f"{field} must be a tuple: write ({kinds[0].__name__}(...),) with its comma even for one element",
        )
    items = tuple(value)
    for item in items:
        message = f"{field} holds {item!r:.80}; expected {name}"
        require(isinstance(item, kind), message, f"build each with {name}(...)")
    return items


def declared(declaration: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a declaration that differ from their defaults, for fingerprints.

    A field that is added to the dataclass later changes no fingerprint until someone sets it, so trained models stay
    valid after an upgrade. For the same reason the default of a field never changes.
    """
    values = {}
    for field in fields(declaration):
        value = getattr(declaration, field.name)
        if value != field.default:
            values[field.name] = _plain(value, str(field.type))
    return values


def _plain(value: Any, kind: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"what": type(value).__name__, **declared(value)}
    # A float written as 1 or 1.0 is the same declaration.
    return float(value) if "float" in kind and isinstance(value, int | float) else value


def fingerprint(values: Any) -> str:
    """Return sixteen hex digits of plain JSON values. The order of lists counts, that of mappings does not."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def model_fingerprint(features: str, labels: Sequence[str]) -> str:
    """Return the fingerprint of a model, from the fingerprint of its features and its label names in order."""
    return fingerprint([features, list(labels)])

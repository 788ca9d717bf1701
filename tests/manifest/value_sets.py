"""The value sets that installations are tested with, and the objects of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from streamlearn.manifest.objects import FILES
from streamlearn.manifest.render import render
from streamlearn.manifest.values import Values

__all__ = ["NAME", "SETS", "objects_of", "read_set"]

FOLDER = Path(__file__).parent / "values"
SETS = sorted(FOLDER.glob("*.json"))
NAME = "shop"


def objects_of(values: Mapping[str, Any], name: str = NAME) -> list[dict[str, Any]]:
    """The objects for values, over those of the chart."""
    whole = _merged(msgspec.to_builtins(Values()), values)
    return [document for documents in render(FILES, whole, name).values() for document in documents]


def read_set(file: Path) -> dict[str, Any]:
    """The values of a file."""
    values: dict[str, Any] = json.loads(file.read_text())
    return values


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm lays values over those of the chart: mappings key by key."""
    both = {**under, **over}
    for name in under.keys() & over.keys():
        if isinstance(under[name], dict) and isinstance(over[name], dict):
            both[name] = _merged(under[name], over[name])
    return both

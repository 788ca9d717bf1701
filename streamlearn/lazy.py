"""Lazy: names of a package that are loaded when they are first asked for, so that light verbs stay light."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package.

    Args:
        package: Its name.
        modules: For each of its modules the names it has, parted by blanks.
    """
    where = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in where:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = getattr(importlib.import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return load

"""Imports that keep commands fast: names that load on first access, and large packages."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["collector_off", "lazy_names"]


@contextmanager
def collector_off() -> Iterator[None]:
    """Turn the garbage collector off while a large package is imported, and have it pass over what exists by then.

    An import leaves no garbage, and what it makes lives until the process ends. Then Python would look through all of
    it again, which takes a fifth of the time of a process that only imports TensorFlow.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package; `modules` maps each module to its names, separated by spaces."""
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load

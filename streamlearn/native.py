"""Access to the compiled module, after a check that its version is this package's version."""

from __future__ import annotations

from types import ModuleType

import streamlearn
from streamlearn.errors import NativeMismatch

__all__ = ["check", "native"]

_HELP = "build and install this checkout again with `pip install .` (in a clone: `make setup`)"


def check(module: ModuleType) -> None:
    """Raise NativeMismatch unless the compiled module has the version of this package."""
    version = getattr(module, "__version__", "none")
    if version != streamlearn.__version__:
        message = f"streamlearn {streamlearn.__version__} needs a compiled module of the same version; found {version}"
        raise NativeMismatch(message, help=_HELP)


try:
    from streamlearn import _native as native
except ImportError as error:
    message = f"streamlearn {streamlearn.__version__} has no compiled module: {error}"
    raise NativeMismatch(message, help=_HELP) from error

check(native)

"""The one door to the compiled module: it is checked to be of this package's version, then handed out."""

from __future__ import annotations

from types import ModuleType

import streamlearn
from streamlearn.errors import NativeMismatch

__all__ = ["check", "native"]

_HELP = "build and install this checkout again with `pip install .` (in a clone: `make setup`)"


def check(module: ModuleType) -> None:
    """Refuse a compiled module of another version than this package.

    Args:
        module: The imported compiled module.

    Raises:
        NativeMismatch: The two versions differ.
    """
    found = getattr(module, "__version__", "none")
    if found != streamlearn.__version__:
        message = f"streamlearn {streamlearn.__version__} needs a compiled module of the same version; found {found}"
        raise NativeMismatch(message, help=_HELP)


try:
    from streamlearn import _native as native
except ImportError as error:
    message = f"streamlearn {streamlearn.__version__} has no compiled module: {error}"
    raise NativeMismatch(message, help=_HELP) from error

check(native)

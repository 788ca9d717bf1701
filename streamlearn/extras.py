"""Extras: packages that only some commands need, and that `pip install streamlearn` alone does not bring."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from streamlearn.errors import UsageError

__all__ = ["EXTRAS", "check_tensorflow", "missing_extra"]

EXTRAS = {"apache_beam": "ingest", "envoy": "access", "matplotlib": "report", "s3fs": "s3", "tensorflow": "train"}
"""The extra that brings each module. A node takes `serve`, with a smaller TensorFlow than `train`."""

_NAMES = {"apache_beam": "apache-beam"}
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu")


def missing_extra(error: ModuleNotFoundError, words: Sequence[str]) -> UsageError | None:
    """Return what to say to a command that lacks a package; None if it is not a package of an extra.

    Examples:
        >>> missing_extra(ModuleNotFoundError(name="apache_beam"), ["ingest", "shop"]).help
        'install streamlearn with its extra [ingest]: see "Install for production" in the documentation'
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    verb = words[0] if words else ""
    message = f"{f'streamlearn {verb}'.strip()} needs {_NAMES.get(module, module)}, which is not installed"
    extra = "[serve], or [serve-gpu] for a GPU" if module == "tensorflow" and verb == "serve" else f"[{EXTRAS[module]}]"
    help = f'install streamlearn with its extra {extra}: see "Install for production" in the documentation'
    return UsageError(message, help=help)


def check_tensorflow() -> str:
    """Return the package that TensorFlow comes from; empty without one.

    Raises:
        UsageError: There are two packages of TensorFlow, whose files overwrite each other.
    """
    found = [name for name in _TENSORFLOWS if _is_installed(name)]
    if len(found) > 1:
        message = f"{' and '.join(found)} are both installed in {sys.prefix}, and each overwrites files of the other"
        help = f"pip uninstall {' '.join(found)}, then install one: extra serve brings {found[1]}, others {found[0]}"
        raise UsageError(message, help=help)
    return found[0] if found else ""


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version  # half as long to import as all of typer

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True

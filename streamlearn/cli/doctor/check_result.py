"""The result of one check of `streamlearn doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamlearn.errors import StreamlearnError

__all__ = ["Finding", "wrong"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. State "missing" means that something optional does not exist; "wrong" needs a fix."""

    what: str  # the subject of the check
    state: Literal["ok", "missing", "wrong"]
    detail: str  # the version or address, or the failure
    help: str = ""


def wrong(what: str, error: StreamlearnError) -> Finding:
    """Return the finding of a check that failed."""
    return Finding(what, "wrong", error.message, error.help)

"""The result of one check of `streamlearn doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: The subject of the check.
        state: "ok"; "missing" when something optional is not there; "wrong" when it must be mended.
        detail: The version or address found, or what went wrong.
        help: How to fix it.
    """

    what: str
    state: Literal["ok", "missing", "wrong"]
    detail: str
    help: str = ""

"""What one check of `streamlearn doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        what: What was looked at.
        state: "ok"; "missing" when something optional is not there; "wrong" when it must be mended.
        detail: The version or address found, or what went wrong.
        help: What to do about it.
    """

    what: str
    state: Literal["ok", "missing", "wrong"]
    detail: str
    help: str = ""

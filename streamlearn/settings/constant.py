"""Constants among the settings: code reads them there and tests replace them, but no file may set them."""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

__all__ = ["Fixed"]

T = TypeVar("T")
Fixed = Annotated[T, Meta(extra={"fixed": True})]
"""The type of a bound that no operator has a reason to change."""

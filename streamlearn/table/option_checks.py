"""Checked: settings that check their fields when they are made. It does not know what any field means."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec

from streamlearn.errors import ConfigError
from streamlearn.struct_decoder import from_plain

__all__ = ["Checked"]

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


class Checked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings whose fields match their annotations, and whose floats fit float32."""

    def __post_init__(self) -> None:
        """Check every field; the first one with a wrong type or value raises a `ConfigError`."""
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            try:
                from_plain(value, kind)
            except msgspec.ValidationError as error:
                self._refuse(name, str(error).replace("Expected", "expected"))
            if isinstance(value, float) and not abs(value) <= _FLOAT32_MAX:
                self._refuse(name, "float32 cannot hold it")

    def _title(self) -> str:
        return type(self).__name__

    def _refuse(self, name: str, why: str, *, help: str = "") -> None:
        message = f"{self._title()}: {name} is {getattr(self, name)!r}: {why}"
        raise ConfigError(message, help=help or f"see streamlearn.table.{type(self).__name__}")


@cache
def _kinds(kind: type[Checked]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}

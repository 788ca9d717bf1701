"""Checked: settings that are refused when they are made, by name. It does not know what any of them means."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec

from streamlearn.errors import ConfigError
from streamlearn.struct_decoder import from_plain

__all__ = ["Checked"]

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


class Checked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that hold what their annotations say, and floats that are finite as float32."""

    def __post_init__(self) -> None:
        """Refuse a field that is of another type or out of its bounds.

        Raises:
            ConfigError: With the first such field.
        """
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

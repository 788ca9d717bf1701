"""How settings are read: a typed struct filled from one TOML file, then from `--set a.b=c`.

It does not know which settings there are; see `settings`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from streamlearn.errors import ConfigError
from streamlearn.struct_decoder import from_plain

__all__ = ["FILE_BYTES_MAX", "Field", "apply_overrides", "fields_of", "read_bounded", "read_settings"]

FILE_BYTES_MAX = 1 << 20
_MPS = "set {} in the node's environment; its lane processes inherit it"
_FIXED = (
    "request_timeout_s", "answer_wait_s", "check_s", "fetch_bytes_max", "request_bytes_max", "response_bytes_max",
    "decompressed_bytes_max", "lock_wait_s",
)  # fmt: skip
_REPLACED = {
    **{f"topics.{name}": "remove it; the value is fixed" for name in _FIXED},
    "impressions.share": "set join.logged_share, which both nodes and the join use",
    "serving.mps_percent": _MPS.format("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    "serving.mps_folder": _MPS.format("CUDA_MPS_PIPE_DIRECTORY"),
}
"""Settings of earlier releases, and what to do instead."""

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Field:
    """One setting, as documentation and `streamlearn settings` show it."""

    path: str
    type: str
    default: Any
    description: str


def read_settings(kind: type[T], file: Path | None, overrides: Sequence[str] = ()) -> T:
    """Read settings: defaults, then the file, then the overrides.

    Args:
        kind: The struct to fill.
        file: A TOML file; None or a missing file leaves the defaults.
        overrides: Texts like "topics.reach_s=5", each value a TOML value (a bare word is a string).

    Raises:
        ConfigError: The file is no TOML; a key is unknown; a value is of a wrong type or out of its bounds.
    """
    given = _read_toml(file) if file is not None and file.exists() else {}
    origin = str(file) if file is not None else "settings"
    _check_keys(kind, given, origin)
    _convert(kind, given, origin)  # so that a fault of the file is told as the file's
    return _convert(kind, apply_overrides(kind, given, overrides), "--set")


def apply_overrides(kind: type[msgspec.Struct], given: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """What was given, with each override laid over it; nothing given is changed.

    Raises:
        ConfigError: An override is not `path=value`, or its path is no setting.
    """
    known = {one.path for one in fields_of(kind)}
    result: dict[str, Any] = {name: dict(v) if isinstance(v, dict) else v for name, v in given.items()}
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not path:
            message = f"--set {override!r} is not SECTION.NAME=VALUE"
            raise ConfigError(message, help="for example --set topics.reach_s=5")
        if path not in known:
            raise _unknown(kind, path, known, "--set")
        *sections, name = path.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = _toml_value(text.strip())
    return result


def fields_of(kind: type[msgspec.Struct]) -> list[Field]:
    """Every setting of a struct and of the structs in it, in declared order."""
    return list(_walk(inspect.type_info(kind), kind(), ""))


def _walk(info: inspect.Type, defaults: Any, prefix: str) -> Iterator[Field]:
    assert isinstance(info, inspect.StructType)
    for one in info.fields:
        default = getattr(defaults, one.name)
        if isinstance(one.type, inspect.StructType):
            yield from _walk(one.type, default, f"{prefix}{one.name}.")
            continue
        described = one.type if isinstance(one.type, inspect.Metadata) else None
        if described and (described.extra or {}).get("fixed"):
            continue
        extra = (described.extra_json_schema or {}) if described else {}
        inner = described.type if described else one.type
        yield Field(f"{prefix}{one.name}", _type_name(inner), default, extra.get("description", ""))


def _type_name(info: inspect.Type) -> str:
    match info:
        case inspect.LiteralType(values=values):
            return " | ".join(f'"{value}"' for value in values)
        case inspect.IntType() | inspect.FloatType():
            bounds = {"above": info.gt, "at least": info.ge, "below": info.lt, "at most": info.le}
            name = "int" if isinstance(info, inspect.IntType) else "float"
            return ", ".join([name, *(f"{word} {one}" for word, one in bounds.items() if one is not None)])
        case inspect.StrType():
            return "str"
        case inspect.BoolType():
            return "bool"
        case inspect.ListType(item_type=item):
            return f"list of {_type_name(item)}"
        case inspect.DictType(key_type=key, value_type=value):
            return f"table of {_type_name(key)} to {_type_name(value)}"
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def read_bounded(file: Path, what: str) -> bytes:
    """A file that a person wrote, and so is small.

    Args:
        file: Which.
        what: What it is, for the message.

    Raises:
        ConfigError: It cannot be read, or has more than FILE_BYTES_MAX bytes.
    """
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}"
        raise ConfigError(message, help=f"check the path of {what} and its permissions") from error
    if len(raw) > FILE_BYTES_MAX:
        message = f"{file} has more than {FILE_BYTES_MAX} bytes"
        raise ConfigError(message, help=f"check that it is the right path of {what}")
    return raw


def _read_toml(file: Path) -> dict[str, Any]:
    raw = read_bounded(file, "the settings")
    try:
        return tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{file} is not TOML: {error}"
        raise ConfigError(message, help="see docs/settings.md for the sections and keys") from error


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_keys(kind: type[msgspec.Struct], given: Mapping[str, Any], origin: str) -> None:
    known = {one.path for one in fields_of(kind)}
    sections = {path.partition(".")[0] for path in known}
    for section, values in given.items():
        if section not in sections:
            raise _unknown(kind, section, sections, origin)
        for name in values if isinstance(values, dict) else ():
            path = f"{section}.{name}"
            if path not in known:
                raise _unknown(kind, path, known, origin)


def _unknown(kind: type[msgspec.Struct], path: str, known: set[str], origin: str) -> ConfigError:
    if path in _REPLACED:
        message = f"{origin}: {path} has been removed"
        return ConfigError(message, help=_REPLACED[path])
    section, _, name = path.partition(".")
    fixed = getattr(getattr(kind(), section, None), name, None)
    if name and fixed is not None:
        message = f"{origin}: {path} cannot be set; its value is always {fixed!r}"
        return ConfigError(message, help="remove it; docs/settings.md lists the settings")
    close = difflib.get_close_matches(path, sorted(known), n=1)
    message = f"{origin}: unknown setting {path!r}"
    hint = f"did you mean {close[0]!r}?" if close else f"the known ones are {', '.join(sorted(known))}"
    return ConfigError(message, help=hint)


def _convert(kind: type[T], given: Mapping[str, Any], origin: str) -> T:
    try:
        return from_plain(given, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        path = place.rstrip("`").lstrip(".")
        message = f"{origin}: {path}: {what[:1].lower()}{what[1:]}" if path else f"{origin}: {what}"
        wanted = next((one for one in fields_of(kind) if one.path == path), None)
        hint = f"{path} is {wanted.type}; its default is {wanted.default!r}" if wanted else ""
        raise ConfigError(message, help=hint or "see docs/settings.md") from error

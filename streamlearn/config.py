"""Reading of settings: a typed struct is filled from one TOML file, then from `--set a.b=c`.

It does not know which settings exist; see `settings`.
"""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from streamlearn.errors import ConfigError
from streamlearn.struct_decoder import from_plain

__all__ = [
    "FILE_BYTES_MAX",
    "Field",
    "apply_overrides",
    "changed_settings",
    "fields_of",
    "read_bounded",
    "read_settings",
    "without_login",
]

FILE_BYTES_MAX = 1 << 20
_SETTINGS_PAGE = '"Settings" in the documentation lists the sections and keys'
_MPS = "set {} in the node's environment; its lane processes inherit it"
_FIXED = (
    "request_timeout_s", "answer_wait_s", "check_s", "fetch_bytes_max", "request_bytes_max", "response_bytes_max",
    "decompressed_bytes_max", "lock_wait_s",
)  # fmt: skip
_REPLACED = {
    **{f"topics.{name}": "remove it; the value is fixed" for name in _FIXED},
    "front.degraded_candidates": "set allowance.candidates_min, the fewest candidates that a request keeps",
    "impressions.share": "set join.logged_share, which both nodes and the join use",
    "console.late_s": "remove it; training is late after five publish intervals, and not before 300 s",
    "replica.drain_s": "set front.drain_s, which is for this too",
    "telemetry.metrics_port": "set telemetry.listen to an address, such as 127.0.0.1:9460",
    "serving.mps_percent": _MPS.format("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    "serving.mps_folder": _MPS.format("CUDA_MPS_PIPE_DIRECTORY"),
}
"""Removed settings, each with its replacement."""

# Up to the last "@", because a password may contain any character; a URL without a host has no login.
_LOGIN = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)(?!/).*@", re.DOTALL)

T = TypeVar("T", bound=msgspec.Struct)
_Section = type[msgspec.Struct]


@dataclass(frozen=True)
class Field:
    """One setting, as documentation and `streamlearn settings` show it."""

    path: str
    type: str
    default: Any
    section: _Section

    @property
    def description(self) -> str:
        """The docstring below the field. It is read from the source, because Python drops it."""
        return _field_docs(self.section)[self.path.rpartition(".")[2]]


def read_settings(kind: type[T], file: Path | None, overrides: Sequence[str] = (), *, option: str = "--set") -> T:
    """Read settings: defaults, then the file (if it exists), then the overrides.

    An override is a text such as "topics.reach_s=5". Its value is a TOML value; a bare word is a string. Errors name
    the option that gave it.

    Raises:
        ConfigError: The file is not TOML, a key is unknown, or a value has a wrong type or is out of its bounds.
    """
    given = _read_toml(file) if file is not None and file.exists() else {}
    origin = str(file) if file is not None else "settings"
    _check_keys(kind, given, origin)
    _convert(kind, given, origin)  # first without overrides, so that an error of the file names the file
    return _convert(kind, apply_overrides(kind, given, overrides, option=option), option)


def apply_overrides(
    kind: type[msgspec.Struct], given: Mapping[str, Any], overrides: Sequence[str], *, option: str = "--set"
) -> dict[str, Any]:
    """Return a copy of the given values with the overrides applied.

    Raises:
        ConfigError: An override is not `path=value`, or its path is not a setting.
    """
    known = {field.path for field in fields_of(kind)}
    result: dict[str, Any] = {name: dict(value) if isinstance(value, dict) else value for name, value in given.items()}
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not path:
            message = f"{option} {override!r} is not {'SECTION.' if option == '--set' else ''}NAME=VALUE"
            raise ConfigError(
                message, help=f"for example {option} {'topics.reach_s' if option == '--set' else 'shards'}=5"
            )
        if path not in known:
            raise _unknown(kind, path, known, option)
        *sections, name = path.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = _toml_value(text.strip())
    return result


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return every setting of a struct and of the structs in it, in declared order."""
    return tuple(_walk(inspect.type_info(kind), kind(), ""))


def changed_settings(settings: msgspec.Struct) -> dict[str, Any]:
    """Return, by path, the settings that differ from their defaults, as they may be shown."""
    values = ((field, attrgetter(field.path)(settings)) for field in fields_of(type(settings)))
    return {field.path: without_login(value) for field, value in values if value != field.default}


def without_login(value: Any) -> Any:
    """Return the value of a setting without the user and password of a URL.

    Examples:
        >>> without_login(["redis://me:secret@host:6379", "file:///a@b"])
        ['redis://host:6379', 'file:///a@b']
    """
    if isinstance(value, str):
        return _LOGIN.sub(r"\1", value)
    if isinstance(value, dict):
        return {name: without_login(item) for name, item in value.items()}
    return [without_login(item) for item in value] if isinstance(value, list | tuple) else value


def _walk(info: inspect.Type, defaults: Any, prefix: str) -> Iterator[Field]:
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        default, kind = getattr(defaults, field.name), field.type
        if isinstance(kind, inspect.StructType):
            yield from _walk(kind, default, f"{prefix}{field.name}.")
        elif not isinstance(kind, inspect.Metadata):
            yield Field(f"{prefix}{field.name}", _type_name(kind), default, info.cls)
        elif not (kind.extra or {}).get("fixed"):
            yield Field(f"{prefix}{field.name}", _type_name(kind.type), default, info.cls)


@cache
def _field_docs(section: _Section) -> dict[str, str]:
    (definition,) = ast.parse(dedent(getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(str(below.value.value).split())
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def _type_name(info: inspect.Type) -> str:
    match info:
        case inspect.LiteralType(values=values):
            return " | ".join(f'"{value}"' for value in values)
        case inspect.IntType() | inspect.FloatType():
            bounds = {"above": info.gt, "at least": info.ge, "below": info.lt, "at most": info.le}
            name = "int" if isinstance(info, inspect.IntType) else "float"
            return ", ".join([name, *(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)])
        case inspect.StrType():
            return "str"
        case inspect.BoolType():
            return "bool"
        case inspect.ListType(item_type=item):
            return f"list of {_type_name(item)}"
        case inspect.StructType():
            return "table"
        case inspect.DictType(key_type=key, value_type=value):
            return f"table of {_type_name(key)} to {_type_name(value)}"
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def read_bounded(file: Path, what: str) -> bytes:
    """Read a small file that a person wrote; `what` names it in the help.

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
        raise ConfigError(message, help=_SETTINGS_PAGE) from error


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_keys(kind: type[msgspec.Struct], given: Mapping[str, Any], origin: str, prefix: str = "") -> None:
    known = {field.path for field in fields_of(kind)}
    sections = {path.partition(".")[0] for path in known}
    for name, value in given.items():
        path = f"{prefix}{name}"
        if path not in known and not any(other.startswith(f"{path}.") for other in known):
            raise _unknown(kind, path, known if prefix else sections, origin)
        if isinstance(value, dict) and path not in known:
            _check_keys(kind, value, origin, f"{path}.")


def _unknown(kind: type[msgspec.Struct], path: str, known: set[str], origin: str) -> ConfigError:
    if path in _REPLACED:
        message = f"{origin}: {path} has been removed"
        return ConfigError(message, help=_REPLACED[path])
    section, _, name = path.partition(".")
    fixed = getattr(getattr(kind(), section, None), name, None)
    if name and fixed is not None:
        message = f"{origin}: {path} cannot be set; its value is always {fixed!r}"
        return ConfigError(message, help=f"remove it; {_SETTINGS_PAGE}")
    close = difflib.get_close_matches(path, sorted(known), n=1)
    message = f"{origin}: unknown setting {path!r}"
    hint = f"did you mean {close[0]!r}?" if close else f"the known ones are {', '.join(sorted(known))}"
    return ConfigError(message, help=hint)


def _convert(kind: type[T], given: Mapping[str, Any], origin: str) -> T:
    try:
        return from_plain(given, kind)
    except msgspec.ValidationError as error:
        what, _, location = str(error).partition(" - at `$")
        path = location.rstrip("`").lstrip(".")
        message = f"{origin}: {path}: {what[:1].lower()}{what[1:]}" if path else f"{origin}: {what}"
        field = next((field for field in fields_of(kind) if field.path == path), None)
        hint = f"{path} is {field.type}; its default is {field.default!r}" if field else _SETTINGS_PAGE
        raise ConfigError(message, help=hint) from error

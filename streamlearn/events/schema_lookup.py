"""The schemas that an application's settings name: older ones, and those of a schema registry by id."""

from __future__ import annotations

from pathlib import Path

from streamlearn.apps import AppFolder
from streamlearn.config import read_bounded
from streamlearn.errors import ConfigError
from streamlearn.schemas import Schema, schema_of

__all__ = ["named_schemas"]

REGISTRY_ID_MAX = 2**31 - 1


def named_schemas(folder: AppFolder) -> tuple[tuple[Schema, ...], dict[int, Schema]]:
    """Read the files of `topics.old_schemas` and `topics.schema_ids`; raises ConfigError for an invalid file or id."""
    topics = folder.settings.topics
    old = tuple(_read(folder.folder / name, "topics.old_schemas") for name in topics.old_schemas)
    ids = {_number(number): name for number, name in topics.schema_ids.items()}
    return old, {number: _read(folder.folder / name, "topics.schema_ids") for number, name in ids.items()}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > REGISTRY_ID_MAX:
        message = f"topics.schema_ids: invalid schema id {text!r}"
        raise ConfigError(message, help="a schema registry id is a whole number, such as 17")
    return int(text)


def _read(file: Path, setting: str) -> Schema:
    try:
        return schema_of(read_bounded(file, "an Avro schema").decode())
    except (ConfigError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, ConfigError) else "not valid UTF-8"
        message = f"{setting}: {file.name}: {reason}"
        raise ConfigError(message, help="name the file of one Avro record schema, relative to app.toml") from error

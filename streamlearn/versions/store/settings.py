"""Limits of files and of loading. `Store.files` and `Store.loading` take some of them from `[versions]`."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamlearn.errors import ConfigError
from streamlearn.struct_decoder import from_plain

__all__ = ["FileSettings", "LoadSettings", "ScanSettings", "checked"]

_MIB = 1 << 20
Limits = TypeVar("Limits", bound=Struct)


def checked(settings: Limits) -> Limits:
    """Return settings that code constructed; raises `ConfigError` if a value is out of bounds."""
    try:
        return from_plain(msgspec.structs.asdict(settings), type(settings))
    except msgspec.ValidationError as error:
        message = f"{type(settings).__name__}: {error}"
        raise ConfigError(message, help=f"see streamlearn.versions.{type(settings).__name__}") from None


class FileSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How files of versions are written.

    Attributes:
        file_bytes_max: The largest file, which bounds the memory a reader needs. Lower it for small serving nodes;
            raise it for fewer requests to an object store.
        manifest_bytes_max: A version with a larger manifest is not written.
    """

    file_bytes_max: Annotated[int, Meta(ge=65_536, le=1 << 30)] = 64 * _MIB
    manifest_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 16 * _MIB


class LoadSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How versions are read. Larger files and manifests, and longer chains, are refused.

    Attributes:
        fetch_threads: Files fetched and verified at once while earlier ones are staged; memory holds one more.
        stage_threads: Threads that share the staging of one file.
        deltas_max: Deltas after the base of a chain; more would take too long to read.
        retire_wait_ms_max: How long to wait for readers of an intermediate version before the next one.
    """

    fetch_threads: Annotated[int, Meta(ge=1, le=64)] = 4
    stage_threads: Annotated[int, Meta(ge=1, le=128)] = 1
    file_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 1 << 30
    manifest_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 16 * _MIB
    deltas_max: Annotated[int, Meta(ge=0)] = 100_000
    retire_wait_ms_max: Annotated[int, Meta(ge=0)] = 1_000


class ScanSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much memory compaction, reverts, `diff` and exports use for rows.

    Attributes:
        scan_bytes_max: Memory for rows of a table. A larger table is processed by ranges of parts, and its files are
            read once for each range. Raise it if versions are large and memory is plentiful.
        scan_bytes_min: Always available; beyond it, at most half the size of a shard's base is used.
    """

    scan_bytes_max: Annotated[int, Meta(ge=_MIB)] = 512 * _MIB
    scan_bytes_min: Annotated[int, Meta(ge=0)] = 32 * _MIB

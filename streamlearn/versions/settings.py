"""Limits of stores, files and loading; how they are reached is the business of who keeps them."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from streamlearn.decoding import from_plain
from streamlearn.errors import ConfigError

__all__ = ["FileSettings", "LoadSettings", "ScanSettings", "StoreSettings", "checked"]

_MIB = 1 << 20


Limits = TypeVar("Limits", bound=Struct)


def checked(settings: Limits) -> Limits:
    """Settings that were made by hand, when they are within their bounds.

    Raises:
        ConfigError: One is not.
    """
    try:
        return from_plain(msgspec.structs.asdict(settings), type(settings))
    except msgspec.ValidationError as error:
        message = f"{type(settings).__name__}: {error}"
        raise ConfigError(message, help=f"see streamlearn.versions.{type(settings).__name__}") from None


class StoreSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a store is used.

    Attributes:
        request_timeout_ms: How long one request to an object store may take before it is tried again.
        attempts_max: How often a request to an object store is tried.
        mapped_bytes_min: Local files of at least this size are mapped into memory and not copied.
        spool_memory_bytes_max: What is written to an object store is collected in memory up to this, and beyond it
            in a temporary file of this machine.
        entries_max: A folder with more entries is not listed. Raise it when versions are kept for very long.
    """

    request_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    attempts_max: Annotated[int, Meta(ge=1, le=100)] = 5
    mapped_bytes_min: Annotated[int, Meta(ge=0)] = _MIB
    spool_memory_bytes_max: Annotated[int, Meta(ge=0)] = 8 * _MIB
    entries_max: Annotated[int, Meta(ge=1)] = 1_000_000


class FileSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How files of versions are written.

    Attributes:
        file_bytes_max: No file becomes larger, so that whoever reads one needs no more memory. Lower it where
            serving nodes are small, raise it for fewer requests to an object store.
        manifest_bytes_max: A version whose manifest would be larger is not written.
    """

    file_bytes_max: Annotated[int, Meta(ge=65_536, le=1 << 30)] = 64 * _MIB
    manifest_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 16 * _MIB


class LoadSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How versions are read.

    Attributes:
        fetch_threads: Files fetched and verified at once while earlier ones are staged; one more than these are held
            in memory.
        stage_threads: Threads that share the staging of one file.
        file_bytes_max: A version with a larger file is refused.
        manifest_bytes_max: A larger manifest is refused.
        deltas_max: A chain with more deltas after its base is refused: it would take too long to read.
        retire_wait_ms_max: How long readers of a version that is passed over are waited for.
    """

    fetch_threads: Annotated[int, Meta(ge=1, le=64)] = 4
    stage_threads: Annotated[int, Meta(ge=1, le=128)] = 1
    file_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 1 << 30
    manifest_bytes_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 16 * _MIB
    deltas_max: Annotated[int, Meta(ge=0)] = 100_000
    retire_wait_ms_max: Annotated[int, Meta(ge=0)] = 1_000


class ScanSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much of versions is held at once by what works on whole ones: compaction, reverts, `diff`, exports.

    Attributes:
        scan_bytes_max: Memory for rows of a table. What does not fit is worked on range of parts by range, and files
            are read once for each. Raise it where versions are large and memory is not scarce.
        scan_bytes_min: So much is taken in any case; beyond it no more than half of a shard's base.
    """

    scan_bytes_max: Annotated[int, Meta(ge=_MIB)] = 512 * _MIB
    scan_bytes_min: Annotated[int, Meta(ge=0)] = 32 * _MIB

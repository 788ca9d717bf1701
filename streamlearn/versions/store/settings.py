"""Limits of files and of loading. What `[versions]` says of them is in `Store.files` and `Store.loading`."""

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
    """Settings that were made by hand, when they are within their bounds.

    Raises:
        ConfigError: One is not.
    """
    try:
        return from_plain(msgspec.structs.asdict(settings), type(settings))
    except msgspec.ValidationError as error:
        message = f"{type(settings).__name__}: {error}"
        raise ConfigError(message, help=f"see streamlearn.versions.{type(settings).__name__}") from None


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

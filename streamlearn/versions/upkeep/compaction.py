"""Compaction: writes a base that stands for a version, from files alone, so that chains stay short."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Struct

from streamlearn.clock import SYSTEM_CLOCK, Clock
from streamlearn.errors import FileTaken
from streamlearn.versions.format.chain import Chain
from streamlearn.versions.format.library_files import library_in
from streamlearn.versions.format.manifest import Cut, Head, Manifest, VersionRef
from streamlearn.versions.format.predictions import waiting_in
from streamlearn.versions.format.scratch import Progress, scan_table, shards_in, upkeep_at
from streamlearn.versions.format.writer import VersionWriter
from streamlearn.versions.store.interface import Store
from streamlearn.versions.store.settings import ScanSettings

__all__ = ["Compacted", "compact"]


@dataclass(frozen=True)
class Compacted:
    """The version that now has a base, the base's folder, and the rows and bytes written.

    `is_new` says whether this call wrote the base; otherwise it existed, or another compactor was first.
    """

    ref: VersionRef
    folder: str
    is_new: bool
    rows: int
    bytes: int
    wall_s: float


def compact(
    store: Store,
    model: str,
    upto: int | None = None,
    *,
    scan: ScanSettings | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Compacted:
    """Write the base that stands for a version, by default the newest; its chain and later ones then begin there.

    The version itself does not change. Two calls at once do no harm: the first to finish wins. `progress` takes the
    number of parts done and of all parts, over all tables.

    Raises:
        VersionDefect: There is no such version, or its chain is damaged.
        Oversize: A single part does not fit into `scan_bytes_max`.
    """
    begin_s = clock.monotonic_s()
    chain = Chain.find(store, model, upto)
    manifest = chain.manifest
    store.signatures.check_can_sign(manifest)
    if manifest.kind == "base":
        return Compacted(chain.ref, chain.links[0].folder, False, 0, 0, clock.monotonic_s() - begin_s)
    head = Head(**(_fields(manifest, Head) | {"kind": "base", "stands_for": chain.ref}))
    writer = VersionWriter(store, head)
    scanned = partial(scan_table, [chain], scan=scan, progress=progress)
    for shard in shards_in(manifest):
        rows_of = (changes for record in manifest.tables for (changes,) in scanned(record.name, shard.parts))
        writer.add_rows(rows_of, shard=shard.number, parts=shard.parts)
    for record in manifest.tables:
        for shard, upkeep in upkeep_at(chain, record.name):
            writer.add_upkeep(record.name, upkeep, shard=shard.number, parts=shard.parts)
    if (waiting := waiting_in(store, chain.links)) is not None:
        writer.add_predictions(waiting)
    if (items := library_in(store, chain.links)) is not None:
        writer.add_library(items)
    writer.copy_model(chain.head)
    is_new, written = True, writer.entries
    try:
        writer.finish(Cut(**_fields(manifest, Cut)), clock=clock)
    except FileTaken:
        # Another compactor was first; it read the same version, so its base is as good.
        Chain.find(store, model, chain.version)
        is_new, written = False, []
    rows = sum(entry.rows for entry in written if entry.kind == "rows")
    size = sum(entry.bytes for entry in written)
    return Compacted(chain.ref, writer.head.folder, is_new, rows, size, clock.monotonic_s() - begin_s)


def _fields(manifest: Manifest, kind: type[Struct]) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in kind.__struct_fields__}
